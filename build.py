"""Builds the C parts of the package: the extension gemm._cpu, the extensions of csrc/python, and libgemm.

gemm._cpu contains the driver and the kernels of the target architecture, and is built with cffi. libgemm is the same
engine for programs in C.

    python build.py                  compiles everything in place
    python build.py --library DIR    compiles only libgemm; requires a C compiler, but no package from PyPI

setup.py uses `ffibuilder`, `extensions` and `build_command` of this file. A new kernel requires no change here. Each
CPU kernel has a row in the catalog. The row names the source to compile. The source defines a descriptor with the name
of the row.

If the target is not what platform.machine() returns, set GEMM_BUILD_MACHINE (x86_64, aarch64, ...). No compiler flag
enables an instruction set globally. Each kernel enables its own for single functions, and the engine checks the CPU's
features at run time. Therefore one build runs on every CPU of an architecture.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cffi import FFI

ROOT = Path(__file__).resolve().parent
TARGETS = {
    "x86_64": {"avx2", "avx512", "amx"}, "amd64": {"avx2", "avx512", "amx"},
    "aarch64": {"neon", "sme"}, "arm64": {"neon", "sme"},
    "armv7l": {"armv7"}, "armv8l": {"armv7"},
}  # fmt: skip
"""The kernel targets of each architecture, by the value of platform.machine(). Every architecture also has `scalar`."""


COMPILER = (
    "gemm compiles its C engine, and {lacks}: install a C compiler and Python's headers (Debian, Ubuntu: apt-get "
    "install gcc libc6-dev python3-dev; Fedora: dnf install gcc python3-devel; Alpine: apk add gcc musl-dev "
    'python3-dev; macOS: xcode-select --install; Windows: Visual Studio\'s Build Tools with "C++ Clang tools"; '
    "Termux: pkg install clang), or name the compiler in $CC."
)


def require_compiler(*headers: str) -> None:
    """Exit with one sentence that says what to install, unless a compiler translates a file that includes `headers`.

    The function does nothing on Windows, where setuptools looks for the compiler.
    """
    if platform.system() == "Windows":
        return
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(command[0]):
        sys.exit(COMPILER.format(lacks=f"there is no compiler {command[0]}"))
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "headers.c")
        source.write_text("".join(f"#include <{header}>\n" for header in headers), encoding="utf-8")
        words = [*command, *shlex.split(os.environ.get("CFLAGS", "")), f"-I{sysconfig.get_path('include')}"]
        done = subprocess.run([*words, "-c", source, "-o", f"{source}.o"], capture_output=True, text=True)
    if done.returncode:
        wrong = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        sys.exit(COMPILER.format(lacks=f"{command[0]} fails ({wrong})"))


def compile_all(sources: Sequence[str], compile_one: Callable[[str], Any]) -> list[Any]:
    """Compile the sources on all CPUs that this process may use, the slowest first, and print each that is done.

    Returns the results of `compile_one`, in the order of `sources`.
    """
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    longest = "bgemm", "hgemm", "cgemm", "zgemm"  # these take 4 to 10 s each; started last, one would run alone
    ordered = sorted(sources, key=lambda source: not Path(source).name.startswith(longest))
    with ThreadPoolExecutor(able) as pool:
        results = {}
        running = {pool.submit(compile_one, source): source for source in ordered}
        try:
            for done in as_completed(running):
                results[running[done]] = done.result()
                print(f"[{len(results)}/{len(sources)}] {running[done]}", flush=True)
        except BaseException:  # any, Ctrl-C too: it is raised again, but first the pool must be stopped
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [results[source] for source in sources]


def run_pypa_build() -> None:
    """Run PyPA's build. In this directory, `python -m build` finds this file instead of that package."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    try:
        runpy.run_module("build", run_name="__main__", alter_sys=True)
    except ImportError as error:
        if error.name not in (None, "build"):
            raise
        sys.exit("PyPA's build is not installed: pip install build. (To compile in place: python build.py)")


def rows() -> list[Any]:
    """The catalog's rows of CPU kernels for the target architecture.

    The catalog is read without importing gemm, because gemm requires NumPy.
    """
    machine = os.environ.get("GEMM_BUILD_MACHINE") or platform.machine()
    targets = {"scalar"} | TARGETS.get(machine.lower(), set())
    sys.path.insert(0, str(ROOT / "gemm"))
    try:
        from catalog import KERNELS
    finally:
        sys.path.pop(0)
    return [row for row in KERNELS if row.backend == "cpu" and row.target in targets]


FLAGS = [
    # The contract defines the order of operations. Therefore the compiler must not contract a multiplication and an
    # addition to an fma, and no option of -ffast-math may be added here.
    # -g0: Python's own flags request debug information, which takes most of the compile time and of the file size.
    "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-pthread",
    # The alignment of loops to cache lines changes the time of a small product by up to a tenth.
    # The threshold makes GCC align every loop, even if it estimates that the loop is executed rarely.
    "-falign-functions=64", "-falign-loops=64", "--param=align-threshold=65535",
]  # fmt: skip
"""Flags for compilers that accept GCC's options."""


def declarations(header: str) -> str:
    """The declarations of gemm.h for cffi's parser: without comments, preprocessor directives and C++ guards."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


def make_builder(base: Path = Path()) -> FFI:
    """The cffi builder, with paths below `base`. setuptools requires paths relative to the project's directory."""
    from cffi import FFI

    kernels = "".join(f"extern const gemm_kernel {row.name};\n" for row in rows())
    files = {path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.[ch]")}
    sources = {path for path in files if path.match("driver/*.c")} | {Path(row.source) for row in rows()}
    if platform.system() == "Windows":  # clang-cl defines GCC's macros only with -fgnuc-version
        flags = ["/O2", "/clang:-ffp-contract=off", "/clang:-fno-math-errno", "/clang:-fgnuc-version=4.2.1"]
        options: dict[str, list[str]] = {"extra_compile_args": flags}
    else:
        link = ["-pthread"]
        if platform.system() == "Linux":  # otherwise gemm._cpu could call a libgemm that is loaded, too
            link.append("-Wl,-Bsymbolic")
        options = {"extra_compile_args": FLAGS, "extra_link_args": link, "libraries": ["m"]}
    builder = FFI()
    builder.cdef(declarations((ROOT / "csrc" / "gemm.h").read_text(encoding="utf-8")) + kernels)
    builder.set_source(
        "gemm._cpu",
        '#include "gemm.h"\n' + kernels,
        sources=sorted((base / path).as_posix() for path in sources),
        include_dirs=[(base / "csrc").as_posix()],
        depends=sorted((base / path).as_posix() for path in files if path.suffix == ".h"),
        **options,
    )
    return builder


BLAS = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
"""The types of libgemm, and their letters in BLAS."""


def make_library(prefix: Path, made: Mapping[str, str] | None = None) -> None:
    """Compile libgemm: prefix/lib/libgemm.so and, unless `made` is given, libgemm.a and include/gemm_cblas.h.

    Also write the files by which pkg-config and CMake find them.

    made: {source: object file} of the sources that were already compiled for gemm._cpu. The tools are $CC and $AR; the
    defaults are the compiler and archiver that built Python. $CFLAGS and $LDFLAGS follow the flags of this file.
    """

    def call(tool: str, default: str, *words: str | Path) -> None:
        program = os.environ.get(tool) or sysconfig.get_config_var(tool) or default
        subprocess.run([*shlex.split(program), *map(str, words)], check=True, cwd=ROOT)

    # For all products of a type, libgemm uses the first kernel of this table that the CPU can run. Therefore kernels
    # that suit only some products come last.
    kernels = [row for row in rows() if row.name[:5] == f"{BLAS.get(row.dtype, '').lower()}gemm"]
    table = [
        f'ROW(BLAS_{BLAS[row.dtype]}, {row.name}, "{row.target}", '
        f"{' | '.join(f'GEMM_{need.upper()}' for need in row.needs) or 0})\n"
        for row in sorted(kernels, key=lambda row: (bool(row.suits), -row.gflops))
    ]
    own = (path.relative_to(ROOT) for part in ("driver", "cblas") for path in (ROOT / "csrc" / part).glob("*.c"))
    engine = sorted({path.as_posix() for path in own} | {row.source for row in kernels})
    library, headers = prefix.resolve() / "lib", prefix.resolve() / "include"
    library.mkdir(parents=True, exist_ok=True)
    more, link = (shlex.split(os.environ.get(name, "")) for name in ("CFLAGS", "LDFLAGS"))
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "rows.h").write_text("".join(table), encoding="utf-8")
        flags = ["-std=gnu11", "-fPIC", *FLAGS, f"-I{work}", "-Icsrc", "-Igemm/include", *more]

        def compile_one(source: str) -> str:
            to = str(Path(work, source.replace("/", "_")).with_suffix(".o"))
            call("CC", "cc", *flags, "-c", source, "-o", to)
            return to

        rest = [source for source in engine if source not in (made or {})]
        objects = [*compile_all(rest, compile_one), *(made[source] for source in engine if made and source in made)]
        named = ["-Wl,-install_name,@rpath/libgemm.so"] if platform.system() == "Darwin" else ["-Wl,-soname,libgemm.so"]
        call("CC", "cc", "-shared", "-pthread", *named, *objects, "-o", library / "libgemm.so", *link, "-lm")
        version = re.search(r'^VERSION = "(.*)"', (ROOT / "gemm/core/__init__.py").read_text("utf-8"), re.M)
        for name, folder in (
            ("gemm.pc", "pkgconfig"),
            *((f"gemm-config{x}.cmake", "cmake/gemm") for x in ("", "-version")),
        ):
            text = (ROOT / "csrc/cblas/package" / name).read_text("utf-8").replace("@VERSION@", version[1])
            (library / folder).mkdir(parents=True, exist_ok=True)
            (library / folder / name).write_text(text, "utf-8")
        if made is not None:  # the package already contains the header
            return
        (library / "libgemm.a").unlink(missing_ok=True)
        call("AR", "ar", "rcs", library / "libgemm.a", *objects)
    headers.mkdir(exist_ok=True)
    shutil.copy(ROOT / "gemm/include/gemm_cblas.h", headers)


def extensions() -> list[Any]:
    """A list with the extension gemm._memo, for Python's limited API.

    The list is empty for a free-threaded Python, because gemm._memo requires the GIL.
    """
    from numpy import get_include
    from setuptools import Extension

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    folder = ROOT / "csrc/python"
    hidden = [] if platform.system() == "Windows" else ["-g0", "-fvisibility=hidden"]
    sources, headers = (sorted(path.relative_to(ROOT).as_posix() for path in folder.glob(f"*.{x}")) for x in "ch")
    return [
        Extension("gemm._memo", sources, include_dirs=[get_include()], depends=["csrc/gemm.h", *headers],
                  extra_compile_args=hidden, py_limited_api=True),
    ]  # fmt: skip


def build_command() -> type[Any]:
    """A build_ext for setuptools. It compiles in parallel, on Windows with clang-cl, and also builds libgemm."""
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        def build_extensions(self) -> None:
            if self.compiler.compiler_type == "msvc":  # MSVC cannot enable instruction sets for single functions
                if not self.compiler.initialized:  # it is already initialized when cross-compiling
                    self.compiler.initialize()
                self.compiler.cc = "clang-cl"
                if not shutil.which("clang-cl", path=getattr(self.compiler, "_paths", None)):
                    sys.exit(COMPILER.format(lacks="there is no compiler clang-cl"))
            compile_files = self.compiler.compile

            def compile_each(sources: list[str], *args: Any, **options: Any) -> list[str]:
                objects = compile_all(sources, lambda source: compile_files([source], *args, **options)[0])
                self.made.update(zip(sources, map(os.path.abspath, objects), strict=True))
                return objects

            self.compiler.compile = compile_each
            super().build_extensions()

        def run(self) -> None:
            self.made: dict[str, str] = {}
            super().run()
            if platform.system() == "Windows":  # libgemm is not built: the compilers do not accept GCC's options
                return
            package = ROOT / "gemm" if self.inplace else Path(self.build_lib, "gemm")
            library = package / "lib" / "libgemm.so"
            patterns = ("*.py", "csrc/**/*.[ch]", "csrc/cblas/package/*", "gemm/include/*.h", "gemm/catalog/*.py",
                        "gemm/core/__init__.py")  # fmt: skip  # the last has the version
            made_of = (path for pattern in patterns for path in ROOT.glob(pattern))
            if not library.exists() or max(map(os.path.getmtime, made_of)) > library.stat().st_mtime:
                make_library(package, self.made)

    return ParallelBuild


def compile_in_place() -> None:
    """Compile the extensions into the package's directory.

    Any version of setuptools works, because the project's metadata are not read.
    """
    from setuptools import Distribution

    os.chdir(ROOT)
    require_compiler("stdio.h", "Python.h")
    engine = make_builder().distutils_extension(tmpdir="build/cffi", verbose=False)
    engine.py_limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
    settings = {"name": "gemm", "ext_modules": [engine, *extensions()], "cmdclass": {"build_ext": build_command()}}
    command = Distribution(settings).get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


if getattr(globals().get("__spec__"), "name", "") == "build" and __name__ == "__main__":
    run_pypa_build()
elif __name__ == "__main__" and sys.argv[1:2] == ["--library"] and len(sys.argv) == 3:
    require_compiler("stdio.h")
    make_library(Path(sys.argv[2]))
elif __name__ == "__main__" and len(sys.argv) == 1:
    compile_in_place()
elif __name__ == "__main__":
    sys.exit("usage: build.py [--library DIR]")
else:
    ffibuilder = make_builder()
