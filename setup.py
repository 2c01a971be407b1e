"""What pyproject.toml cannot say: the extensions, and run-time compiled kernels as package data."""

import shutil
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

# The limited API needs the GIL's reference counts; without it products take the long way through Python.
memo = [
    Extension(
        "gemm._memo",
        ["csrc/python/memo.c"],
        include_dirs=["csrc"],
        depends=["csrc/gemm.h"],
        py_limited_api=True,
    )
]


class BuildWithKernels(build_py):
    """Copies the sources that are compiled at run time into the wheel; an editable install reads the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in [*Path("kernels").rglob("*.cl"), *Path("csrc/cuda").rglob("*.cu")]:
            target = Path(self.build_lib, "gemm", "_sources", source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


setup(
    cffi_modules=["build.py:ffibuilder"],
    ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else memo,
    cmdclass={"build_py": BuildWithKernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
