"""build_wheels.py WHEEL FOLDER [PLATFORM...]: build wheels for other platforms, by Zig's Clang, into FOLDER.

WHEEL is one that was built on this machine. A wheel for another platform has the same Python files. Its libraries are
compiled here: Zig has the C libraries of all these systems, Python's limited API has the same headers everywhere, and
NumPy's wheel for the platform has NumPy's headers. For Windows, the import library of python3.dll is made of the stable
ABI's list. Every wheel is checked: its tag, its files, and what its libraries import and export. At the end a table
says what was made and checked. In it, "3 libraries" means: each is made for the right machine, and imports and exports
only what it may.

PLATFORMs are the keys of PLATFORMS; the default is all of them. Free-threaded Python has other headers: cibuildwheel
builds its wheels.
"""

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import lief
from abi3info import DATAS, FUNCTIONS
from cross_compile import CC, ZIG, build_on

OLDEST = (3, 10)
"""The oldest CPython whose stable ABI the wheels use."""


class Platform(NamedTuple):
    """Attributes:
    system, machine: as platform.system() and platform.machine() name them.
    zig: Zig's name of the target. uv: uv's name of the platform.
    tag: the wheel's platform tag.
    """

    system: str
    machine: str
    zig: str
    uv: str
    tag: str


PLATFORMS = {
    "manylinux-x86_64": Platform("Linux", "x86_64", "x86_64-linux-gnu.2.17", "x86_64-manylinux_2_28",
                                 "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    "manylinux-aarch64": Platform("Linux", "aarch64", "aarch64-linux-gnu.2.17", "aarch64-manylinux_2_28",
                                  "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    "musllinux-x86_64": Platform("Linux", "x86_64", "x86_64-linux-musl", "x86_64-unknown-linux-musl",
                                 "musllinux_1_2_x86_64"),
    "musllinux-aarch64": Platform("Linux", "aarch64", "aarch64-linux-musl", "aarch64-unknown-linux-musl",
                                  "musllinux_1_2_aarch64"),
    "macos-arm64": Platform("Darwin", "arm64", "aarch64-macos.11.0", "aarch64-apple-darwin", "macosx_11_0_arm64"),
    "windows-amd64": Platform("Windows", "AMD64", "x86_64-windows-gnu", "x86_64-pc-windows-msvc", "win_amd64"),
    "windows-arm64": Platform("Windows", "ARM64", "aarch64-windows-gnu", "aarch64-pc-windows-msvc", "win_arm64"),
}  # fmt: skip
PYCONFIG = """
#define MS_WIN32
#define MS_WIN64
#define MS_WINDOWS
#define NT_THREADS
#define WITH_THREAD
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_PID_T 8
#define SIZEOF_FLOAT 4
#define SIZEOF_DOUBLE 8
#define ALIGNOF_LONG 4
#define ALIGNOF_SIZE_T 8
#define HAVE_STDARG_PROTOTYPES
#define PY_FORMAT_SIZE_T "ll"
#define PLATLIBDIR "lib"
"""
"""pyconfig.h for Windows. It only has what the headers of the limited API read."""


def headers(platform: Platform, folder: Path) -> list[str]:
    """The compiler options for Python's and NumPy's headers for this platform."""
    python = folder / "python"
    shutil.copytree(sysconfig.get_path("include"), python)
    if platform.system == "Windows":
        (python / "pyconfig.h").write_text(PYCONFIG)
    words = ["uv", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
    subprocess.run([*words, "--python-platform", platform.uv, "--target", folder / "site", "numpy>=2"], check=True)
    return [f"-I{python}", f"-I{folder / 'site/numpy/_core/include'}"]


def python_library(platform: Platform, folder: Path) -> list[str]:
    """The linker's options for Python's functions. Except on Windows, the process that loads a module has them."""
    if platform.system != "Windows":
        return ["-Wl,-undefined,dynamic_lookup"] if platform.system == "Darwin" else []
    names = [symbol.name for symbol, item in FUNCTIONS.items() if (item.added.major, item.added.minor) <= OLDEST]
    names += [f"{symbol.name} DATA" for symbol, item in DATAS.items() if (item.added.major, item.added.minor) <= OLDEST]
    (folder / "python3.def").write_text("\n".join(["LIBRARY python3.dll", "EXPORTS", *sorted(names)]))
    machine = {"AMD64": "i386:x86-64", "ARM64": "arm64"}[platform.machine]
    words = ["dlltool", "-m", machine, "-d", folder / "python3.def", "-l", folder / "libpython3.a"]
    subprocess.run([*ZIG, *words], check=True)
    return [str(folder / "libpython3.a")]


def build_libraries(platform: Platform, package: Path) -> None:
    """Compile gemm._cpu, gemm._memo and, except on Windows, libgemm into the package's folder."""
    compiler = [*CC, "-target", platform.zig, "-Wno-unused-command-line-argument",
                "-Wno-dll-attribute-on-redeclaration"]  # fmt: skip
    suffix = ".pyd" if platform.system == "Windows" else ".abi3.so"
    named = build_on(platform.system, platform.machine, CC=shlex.join(compiler))
    with named as build, tempfile.TemporaryDirectory() as name:
        include, python = headers(platform, Path(name)), python_library(platform, Path(name))
        pic = [] if platform.system == "Windows" else ["-fPIC"]

        def module(stem: str, sources: list[str], flags: list[str]) -> dict[str, str]:
            """Compile and link a module. Returns its object files, by source."""

            def compile_one(source: str) -> str:
                to = f"{name}/{stem}-{source.replace('/', '_')}.o"
                words = [*compiler, *pic, *include, *flags, "-c", source, "-o", to]
                subprocess.run(words, cwd=build["ROOT"], check=True)
                return to

            objects = build["compile_all"](sources, compile_one)
            link = ["-Wl,-Bsymbolic", "-lm"] if platform.system == "Linux" else python
            if platform.system == "Darwin":  # the default is the path on this machine
                link = [*link, f"-Wl,-install_name,@rpath/{stem}{suffix}"]
            words = ["-shared", "-s", *objects, *link, "-o", package / f"{stem}{suffix}"]
            subprocess.run([*compiler, *words], check=True)
            return dict(zip(sources, objects, strict=True))

        # On Windows for Arm, LLVM cannot describe the stack of functions with aligned loops: "Failed to evaluate
        # function length in SEH unwind info".
        unaligned = platform.system == "Windows" and platform.machine == "ARM64"
        flags = [flag for flag in build["FLAGS"] if not (unaligned and "align" in flag)]
        engine = build["ffibuilder"].distutils_extension(name, verbose=False)
        made = module("_cpu", engine.sources, ["-Icsrc", *flags])
        for extension in build["extensions"]():
            module(extension.name.removeprefix("gemm."), extension.sources, ["-O3", "-fvisibility=hidden"])
        if platform.system != "Windows":
            build["make_library"](package, made)


def build_wheel(native: Path, platform: Platform, folder: Path) -> Path:
    """Build the platform's wheel from the native one, and return its path."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", name, native], check=True)
        (root,) = Path(name).iterdir()
        shutil.rmtree(root / "gemm/lib")
        for old in root.glob("gemm/*.so"):
            old.unlink()
        build_libraries(platform, root / "gemm")
        (metadata,) = root.glob("*.dist-info/WHEEL")
        tags = "".join(f"Tag: cp310-abi3-{tag}\n" for tag in platform.tag.split("."))
        kept = "".join(line for line in metadata.read_text().splitlines(keepends=True) if not line.startswith("Tag:"))
        metadata.write_text(kept.rstrip("\n") + "\n" + tags)
        packed = Path(name, "packed")  # FOLDER may have the wheel of an earlier run
        packed.mkdir()
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", packed, root], check=True)
        (made,) = packed.iterdir()
        return Path(shutil.copy(made, folder))


SYSTEM_LIBRARIES = {
    "Linux": r"lib(c|m|pthread|dl|rt)\.so(\.\d)?|ld-linux-.*|libc\.musl-.*",
    "Darwin": r"/usr/lib/libSystem\.B\.dylib",
    "Windows": r"(?i)(python3|kernel32|ntdll)\.dll|api-ms-win-crt-.*\.dll",
}
"""The libraries that a wheel's libraries may import, by system."""
ARCHITECTURES = {"x86_64": "X86_64", "AMD64": "X86_64", "aarch64": "ARM64", "arm64": "ARM64", "ARM64": "ARM64"}
EXPORTS = {
    "_cpu": {"PyInit__cpu", "gemm_get_num_threads", "gemm_set_num_threads"}, "_memo": {"PyInit__memo"},
}  # fmt: skip
BLAS = {f"cblas_{letter}gemm{form}" for letter in "sdcz" for form in ("", "_64", "_batch", "_batch_strided")}
"""Functions that libgemm exports, among others."""


def check_library(file: Path, platform: Platform) -> None:
    """Check for which machine a library is made, what it imports and what it exports. Raises AssertionError."""
    library = lief.parse(str(file)).abstract
    assert library.header.architecture.name == ARCHITECTURES[platform.machine], library.header.architecture
    # On macOS, the list of imports also contains the library's own name.
    imported = {name for name in map(str, library.libraries) if name != f"@rpath/{file.name}"}
    strange = {name for name in imported if not re.fullmatch(SYSTEM_LIBRARIES[platform.system], name)}
    assert not strange, f"{file.name} imports {strange}"
    underscore = "_" if platform.system == "Darwin" else ""
    exported = {function.name.removeprefix(underscore) for function in library.exported_functions}
    if file.name == "libgemm.so":
        assert exported >= BLAS, BLAS - exported
    else:
        exported -= {"_init", "_fini", "__dso_handle", "_mh_dylib_header"}  # the linkers' own names
        assert exported == EXPORTS[file.name.partition(".")[0]], exported
    print(f"  {file.name}: {file.stat().st_size >> 10} KiB, imports {', '.join(sorted(imported)) or 'nothing'}")


def check_wheel(wheel: Path, platform: Platform) -> str:
    """Check the wheel's files. Returns what was checked. Raises AssertionError or CalledProcessError."""
    print(wheel.name, flush=True)
    with tempfile.TemporaryDirectory() as name:
        zipfile.ZipFile(wheel).extractall(name)
        package = Path(name, "gemm")
        libraries = [*package.glob("_*.so"), *package.glob("*.pyd"), *package.glob("lib/*.so")]
        assert len(libraries) == 3 - (platform.system == "Windows"), libraries
        for library in libraries:
            check_library(library, platform)
    done = [f"{len(libraries)} libraries", "abi3audit", "twine"]
    # auditwheel is not run for musl: musl's symbols have no versions, and auditwheel knows musl's libc only by the name
    # that Alpine gives to it.
    if "manylinux" in platform.tag:
        shown = subprocess.run(["auditwheel", "show", wheel], check=True, capture_output=True, text=True).stdout
        assert f'"{platform.tag.partition(".")[0]}"' in shown.split("platform tag", 1)[1], shown
        done.append("auditwheel")
    subprocess.run(["abi3audit", "--strict", wheel], check=True)
    subprocess.run(["twine", "check", "--strict", wheel], check=True)
    return ", ".join(done)


def main(native: Path, folder: Path, names: list[str]) -> None:
    if missing := [tool for tool in ("uv", "auditwheel", "abi3audit", "twine") if not shutil.which(tool)]:
        sys.exit(f"not on the path: {', '.join(missing)}")
    chosen = {name: PLATFORMS[name] for name in names or PLATFORMS}
    folder.mkdir(parents=True, exist_ok=True)
    table = [("platform", "tag", "MiB", "checked", "seconds")]
    for name, platform in chosen.items():
        start = time.monotonic()
        wheel = build_wheel(native.resolve(), platform, folder)
        checked = check_wheel(wheel, platform)
        tag = f"cp310-abi3-{platform.tag.partition('.')[0]}"
        size, seconds = wheel.stat().st_size / 2**20, time.monotonic() - start
        table.append((name, tag, f"{size:.1f}", checked, f"{seconds:.0f}"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
