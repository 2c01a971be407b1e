"""cross_compile.py SYSTEM FOLDER: compile the C sources for another system, with Zig's Clang in place of its compiler.

Zig contains the headers of all these systems. ccache keeps the object files, because Zig's own cache goes by the paths
of files, which differ from run to run.

    macos           All sources are compiled, without optimisation, because nothing runs. FOLDER has NumPy's headers for
                    macOS; Python's headers are those of this machine. Only libgemm is linked.
    windows         The engine is compiled with clang-cl's options, as cibuildwheel does, but without optimisation, for
                    Arm and for x86-64. The programs of tests/fuzz are linked from the x86-64 engine and MinGW's C
                    library, in FOLDER.
    musl-aarch64    The same programs, linked to the system's musl, because half of Zig's static libc is not musl.
    musl-x86_64     libgemm, and the same programs with its kernels, with little optimisation: the wheel for Windows
                    has the same kernels, optimised by the same compiler.
"""

import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import ziglang
from engine import ROOT
from engine import engine as engine_sources

ZIG = [sys.executable, "-m", "ziglang"]
LIBRARY = Path(ziglang.__file__).parent / "lib"
CC, CLANG_CL = (
    [*filter(None, [shutil.which("ccache")]), str(ROOT / "ci" / "zig" / name)] for name in ("clang", "clang-cl")
)
os.environ.update(
    ZIG=str(LIBRARY.parent / "zig"), CCACHE_COMPILERCHECK=f"string:{version('ziglang')}", CCACHE_BASEDIR="/"
)
WINDOWS_HEADERS = [LIBRARY / "include", LIBRARY / "libc" / "include" / "any-windows-any"]


@contextmanager
def build_on(system: str, machine: str, **environment: str) -> Iterator[dict[str, Any]]:
    """The globals of build.py on such a machine."""
    named = mock.patch.object(platform, "system", return_value=system)
    with named, mock.patch.dict(os.environ, GEMM_BUILD_MACHINE=machine, **environment):
        yield runpy.run_path(str(ROOT / "build.py"))


def engine(system: str, machine: str, folder: Path) -> tuple[list[str], list[str]]:
    """The engine's sources and compiler options for this machine. Writes FOLDER/rows.h, the list of its kernels."""
    with build_on(system, machine) as build, tempfile.TemporaryDirectory() as work:
        made = build["ffibuilder"].distutils_extension(work, verbose=False)
        return engine_sources(build, folder), made.extra_compile_args


def library(
    system: str, machine: str, compiler: list[str], level: str, folder: Path, made: dict[str, str] | None = None
) -> None:
    """Make FOLDER/lib/libgemm.so, optimised at this level; unless `made` has object files, by source, also libgemm.a.

    Raises CalledProcessError if that fails.
    """
    with build_on(system, machine, CC=shlex.join(compiler), CFLAGS=level) as build:
        build["make_library"](folder, made)
    print(f"{system}, {machine}: libgemm is linked")


def compile_all(name: str, compiler: list[str], sources: list[str], folder: Path) -> list[str]:
    """Compile `sources` to object files in FOLDER. Prints errors, and exits if there are any."""
    objects = [str(folder / f"{Path(source).stem}.o") for source in sources]

    def compile_one(source: str, to: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*compiler, "-c", source, "-o", to], cwd=ROOT, capture_output=True, text=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [done for done in pool.map(compile_one, sources, objects) if done.returncode]
    for done in failed:
        print(done.stderr)
    print(f"{name}: {len(sources) - len(failed)} of {len(sources)} compile")
    if failed:
        sys.exit(1)
    return objects


def programs(names: list[str], compiler: list[str], objects: list[str], folder: Path) -> None:
    """Link the programs of tests/fuzz to FOLDER/NAME."""
    for name in names:
        source = f"tests/fuzz/{Path(name).stem}.c"
        words = ["-O2", "-ffp-contract=off", "-DSEEDED", "-Icsrc", f"-I{folder}", source, *objects, "-o", folder / name]
        subprocess.run([*compiler, *words], cwd=ROOT, check=True)


def macos(numpy_headers: Path) -> None:
    # Zig instruments code that is not optimised, unless told otherwise. Compiling then takes four times as long.
    plain = ["-Wno-unused-command-line-argument", "-fno-sanitize=undefined"]
    mac = [*CC, "-target", "aarch64-macos.11.0", *plain]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources, flags = engine("Darwin", "arm64", folder)
        objects = compile_all("macOS, engine", [*mac, "-Icsrc", *flags, "-O0"], sources, folder)
        headers = [f"-I{each}" for each in (sysconfig.get_path("include"), numpy_headers)]
        modules = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc" / "python").glob("*.c"))]
        compile_all("macOS, extensions", [*mac, *headers], modules, folder)
        library("Darwin", "arm64", mac, "-O0", folder, dict(zip(sources, objects, strict=True)))


def windows(folder: Path) -> None:
    found = [f"/imsvc{each}" for each in WINDOWS_HEADERS]
    # /Zl requests no default libraries and /GS- no stack checks, because only Microsoft's compiler provides these.
    # _fltused is the only name that is then missing. The wheels for Windows have the optimised kernels, and optimising
    # takes three quarters of the time to compile.
    apart = ["/Zl", "/GS-", "/Od"]
    for machine, target in (("ARM64", "aarch64"), ("AMD64", "x86_64")):  # the programs have the objects of the last one
        sources, flags = engine("Windows", machine, folder)
        clang_cl = [*CLANG_CL, f"--target={target}-pc-windows-msvc", "-nobuiltininc"]
        words = [*clang_cl, *found, "/Icsrc", *flags, *apart]
        objects = compile_all(f"Windows, {machine}, engine", words, sources, folder)
    (folder / "fltused.c").write_text("int _fltused;\n")
    objects.append(str(folder / "fltused.c"))
    names = ["check_engine.exe", "fuzz_engine.exe", "race_engine.exe"]
    programs(names, [*CC, "-target", "x86_64-windows-gnu"], [*objects, "-lpthread"], folder)


def musl(machine: str, folder: Path) -> None:
    compiler = [*CC, "-target", f"{machine}-linux-musl", "-dynamic", "-Wno-unused-command-line-argument"]
    sources, flags = engine("Linux", machine, folder)
    if machine == "x86_64":
        library("Linux", machine, compiler, "-O1", folder)
        objects = [str(folder / "lib" / "libgemm.a")]
        listed = (folder / "rows.h").read_text().splitlines(keepends=True)
        (folder / "rows.h").write_text("".join(line for line in listed if re.match(r"ROW\([sdcz]gemm_", line)))
    else:
        objects = compile_all(f"musl, {machine}, engine", [*compiler, "-Icsrc", *flags, "-O3"], sources, folder)
    programs(["check_engine", "fuzz_engine", "race_engine"], compiler, [*objects, "-lm"], folder)


if __name__ == "__main__":
    system, _, machine = sys.argv[1].partition("-")
    folder = Path(sys.argv[2]).resolve()
    if system == "musl":
        musl(machine, folder)
    else:
        {"macos": macos, "windows": windows}[system](folder)
