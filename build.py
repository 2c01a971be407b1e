"""Builds the C extensions: gemm._cpu, by cffi (the driver and this architecture's kernels), and those of csrc/python.

`python build.py` compiles them in place; setup.py takes `ffibuilder` and `extensions` from here. A new kernel needs
nothing here: a row's source is compiled and its descriptor, named like the row, declared. Set GEMM_BUILD_MACHINE
(x86_64, aarch64, ...) where platform.machine() does not tell the target. No instruction set is switched on globally:
kernels do so function by function, and the CPU is asked at run time, so that one build runs on every CPU.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).resolve().parent
TARGETS = {
    "x86_64": {"avx2", "avx512", "amx"}, "amd64": {"avx2", "avx512", "amx"},
    "aarch64": {"neon"}, "arm64": {"neon"},
    "armv7l": {"armv7"}, "armv8l": {"armv7"},
}  # fmt: skip
"""Kernel targets of each architecture, as platform.machine() spells it; the scalar ones belong to all."""


def hand_over() -> None:
    """Give `python -m build`, which finds this file first when run here, to PyPA's build."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    try:
        runpy.run_module("build", run_name="__main__", alter_sys=True)
    except ImportError as error:
        if error.name not in (None, "build"):
            raise
        sys.exit("PyPA's build is not installed: pip install build. (To compile in place: python build.py)")


def rows() -> list[Any]:
    """The catalog's CPU rows for the target architecture, read without importing the package (it needs NumPy)."""
    machine = os.environ.get("GEMM_BUILD_MACHINE") or platform.machine()
    targets = {"scalar"} | TARGETS.get(machine.lower(), set())
    sys.path.insert(0, str(ROOT / "gemm"))
    try:
        from catalog import KERNELS
    finally:
        sys.path.pop(0)
    return [row for row in KERNELS if row.backend == "cpu" and row.target in targets]


def declarations(header: str) -> str:
    """What cffi's parser takes of gemm.h: its declarations, without comments, directives and the C++ guards."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


def make_builder(base: Path = Path()) -> FFI:
    """The cffi builder, its paths below `base`; setuptools wants them relative to the project's folder."""
    kernels = "".join(f"extern const gemm_kernel {row.name};\n" for row in rows())
    files = {path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.[ch]")}
    sources = {path for path in files if path.match("driver/*.c")} | {Path(row.source) for row in rows()}
    options: dict[str, list[str]] = {"extra_compile_args": ["/O2", "/fp:precise", "/std:c11"]}
    if platform.system() != "Windows":
        # The order of operations is the contract: a multiplication and an addition must not become an fma where
        # the source has none, and nothing of -ffast-math may ever be here.
        # No debug information, which Python's own flags ask for: most of the time and of the file.
        flags = ["-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-pthread"]
        # Up to a tenth of a small product's time hangs on where its loops happen to lie in their cache lines.
        # The threshold: a loop counts as worth it, however seldom GCC guesses that it is come to.
        flags += ["-falign-functions=64", "-falign-loops=64", "--param=align-threshold=65535"]
        options = {"extra_compile_args": flags, "extra_link_args": ["-pthread"], "libraries": ["m"]}
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


def extensions() -> list[Any]:
    """gemm._memo and gemm._cuda, written against the limited API; without the GIL, which they need, there are none."""
    from numpy import get_include
    from setuptools import Extension

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    return [
        Extension("gemm._memo", [f"csrc/python/{part}.c" for part in ("memo", "front", "batch", "many", "order")],
                  include_dirs=[get_include()],
                  depends=["csrc/gemm.h", *(f"csrc/python/{part}.h" for part in ("memo", "batch", "order"))],
                  py_limited_api=True),
        Extension("gemm._cuda", [*(f"csrc/python/cuda_{part}.c" for part in ("heads", "memo", "module", "sequence")),
                                 "csrc/python/order.c"],
                  depends=["csrc/gemm.h", "csrc/python/cuda.h", "csrc/python/order.h"], py_limited_api=True),
    ]  # fmt: skip


def build_command() -> type[Any]:
    """setuptools' build_ext, but compiling an extension's fifty files side by side."""
    from setuptools.command.build_ext import build_ext

    class BuildSideBySide(build_ext):
        def build_extensions(self) -> None:
            compile_files = self.compiler.compile

            def compile_each(sources: list[str], *args: Any, **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    objects = list(pool.map(lambda source: compile_files([source], *args, **options), sources))
                return [name for names in objects for name in names]

            self.compiler.compile = compile_each
            super().build_extensions()

    return BuildSideBySide


def compile_in_place() -> None:
    """Compile and put the extensions beside the package's modules; no metadata is read, so any setuptools will do."""
    from setuptools import Distribution

    os.chdir(ROOT)
    engine = make_builder().distutils_extension(tmpdir="build/cffi", verbose=False)
    engine.py_limited_api = not sysconfig.get_config_var("Py_GIL_DISABLED")
    settings = {"name": "gemm", "ext_modules": [engine, *extensions()], "cmdclass": {"build_ext": build_command()}}
    command = Distribution(settings).get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


if getattr(globals().get("__spec__"), "name", "") == "build" and __name__ == "__main__":
    hand_over()
elif __name__ == "__main__":
    compile_in_place()
else:
    ffibuilder = make_builder()
