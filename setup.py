"""The settings that pyproject.toml cannot express: extensions, and kernels compiled at run time as package data."""

import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    """Copies sources that are compiled at run time into the wheel. An editable install reads them from the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in [*Path("kernels").rglob("*.cl*"), *Path("csrc/cuda").rglob("*.cu*")]:
            target = Path(self.build_lib, "gemm", "_sources", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


# Free-threaded Python has no stable ABI, and setuptools refuses to build a wheel that claims one.
stable = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp310"}}
build = runpy.run_path("build.py")
if {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}.intersection(sys.argv):
    build["require_compiler"]("stdio.h", "Python.h")  # before setuptools copies files, and prints a line for each
setup(
    cffi_modules=["build.py:ffibuilder"],
    ext_modules=build["extensions"](),
    cmdclass={"build_py": BuildWithKernels, "build_ext": build["build_command"]()},
    options=stable,
)
