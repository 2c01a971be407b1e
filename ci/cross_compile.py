"""cross_compile.py FOLDER: the C sources compile for the systems whose wheels cannot be built here.

For macOS all of them, FOLDER being NumPy's headers for it and Python's those of this machine; for Windows the engine
alone, by clang-cl; for musl the driver, since kernels call nothing of a C library. But for libgemm on macOS nothing is
linked, and nothing runs. The compiler is Zig's Clang, which brings the headers of all of these.
"""

import os
import platform
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import ziglang

ROOT = Path(__file__).resolve().parents[1]
ZIG = Path(ziglang.__file__).parent
WINDOWS_HEADERS = [ZIG / "lib" / "include", ZIG / "lib" / "libc" / "include" / "any-windows-any"]


@contextmanager
def build_on(system: str, machine: str, **environment: str) -> Iterator[dict[str, Any]]:
    """What build.py has on such a machine."""
    named = mock.patch.object(platform, "system", return_value=system)
    with named, mock.patch.dict(os.environ, GEMM_BUILD_MACHINE=machine, **environment):
        yield runpy.run_path(str(ROOT / "build.py"))


def engine(system: str, machine: str) -> tuple[list[str], list[str]]:
    """The engine's sources and what the compiler is told there."""
    with build_on(system, machine) as build, tempfile.TemporaryDirectory() as folder:
        made = build["ffibuilder"].distutils_extension(folder, verbose=False)
    return made.sources[1:], made.extra_compile_args  # the first source is cffi's, which needs Python's headers


def library(system: str, machine: str, *compiler: str) -> None:
    """Links libgemm; raises CalledProcessError where that fails."""
    words = shlex.join([sys.executable, "-m", "ziglang", *compiler])
    with build_on(system, machine, CC=words) as build, tempfile.TemporaryDirectory() as folder:
        build["make_library"](Path(folder), package=True)
    print(f"{system}: libgemm is linked")


def compile_all(name: str, compiler: list[str], sources: list[str]) -> bool:
    """Whether all compile; says what does not."""

    def objects(source: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "ziglang", *compiler, "-c", source, "-o", f"{folder}/x.o"]
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [done for done in pool.map(objects, sources) if done.returncode]
    for done in failed:
        print(done.stderr)
    print(f"{name}: {len(sources) - len(failed)} of {len(sources)} compile")
    return not failed


def main(numpy_headers: str) -> bool:
    sources, flags = engine("Darwin", "arm64")
    headers = [f"-I{folder}" for folder in (sysconfig.get_path("include"), numpy_headers)]
    modules = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "csrc" / "python").glob("*.c"))]
    mac = ["cc", "-target", "aarch64-macos.11.0", "-Wno-unused-command-line-argument"]
    works = [
        compile_all("macOS, engine", [*mac, "-Icsrc", *flags], sources),
        compile_all("macOS, extensions", [*mac, *headers], modules),
    ]
    library("Darwin", "arm64", *mac)
    sources, flags = engine("Windows", "AMD64")
    clang_cl = ["clang", "--driver-mode=cl", "--target=x86_64-pc-windows-msvc", "-nobuiltininc"]
    found = [f"/imsvc{folder}" for folder in WINDOWS_HEADERS]
    works.append(compile_all("Windows, engine", [*clang_cl, *found, "/Icsrc", *flags], sources))
    for machine in ("x86_64", "aarch64"):
        sources, flags = engine("Linux", machine)
        driver = [source for source in sources if "/driver/" in source]
        compiler = ["cc", "-target", f"{machine}-linux-musl", "-Icsrc", *flags]
        works.append(compile_all(f"musl, {machine}, driver", compiler, driver))
    return all(works)


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
