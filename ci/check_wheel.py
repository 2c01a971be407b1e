"""check_wheel.py [ARGUMENT...]: check that the installed gemm is imported, has all its C modules, and multiplies.

With ARGUMENTs, the script also runs the conformance suite, and passes the ARGUMENTs to pytest.
"""

import importlib
import sys
import sysconfig
from pathlib import Path

import numpy as np

import gemm

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> str | int:
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    needs_gil = [] if free_threaded else ["gemm._memo"]
    site = Path(sysconfig.get_path("platlib")).resolve()
    for name in ("gemm", "gemm._cpu", *needs_gil):
        file = Path(importlib.import_module(name).__file__ or "").resolve()
        print(f"{name}: {file}")
        if not file.is_relative_to(site):
            return f"{name} does not come from {site}"
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    if not np.array_equal(gemm.gemm(a, a.T, backend="cpu"), a @ a.T):
        return "the cpu backend multiplies wrongly"
    if free_threaded and sys._is_gil_enabled():
        return "gemm has switched the GIL on"
    if not arguments:
        return 0
    import pytest

    return pytest.main([str(ROOT / "tests" / "conformance"), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
