"""The NumPy backend: numpy.matmul followed by the epilogue.

This backend is the last fallback, for every dtype that NumPy can multiply. For the dtypes that NumPy's BLAS multiplies,
the catalog has kernels <letter>gemm_numpy_blas. `auto` chooses such a kernel where measurements show that it is faster
than gemm's own kernels.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gemm.catalog import Kernel
from gemm.core.backend import Backend, Launch
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, Problem


class NumpyBackend(Backend):
    """NumPy on the host. float16 and bfloat16 are summed in float32 and rounded once at the end. Integers wrap."""

    name: ClassVar[str] = "numpy"

    def devices(self) -> tuple[Device, ...]:
        """Return the one device, numpy:0, which always exists. Its `driver` is the BLAS that NumPy was built with."""
        return (Device("numpy", "numpy:0", f"NumPy {np.__version__}", driver=_blas(), unified=True),)

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """Return a launch for the dtype of `problem`."""
        dtype = np.dtype(problem.dtype)
        work = np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype

        def launch(a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any) -> None:
            with np.errstate(all="ignore"):  # NaN and Inf are valid results: no warnings
                if c is None and alpha == 1 and work == dtype:
                    matmul(a, b, out=out)
                    return
                # The result is a new array. If k = 0, matmul returns zeros, as every backend must.
                result = matmul(a.astype(work, copy=False), b.astype(work, copy=False))
                _scale(result, alpha)
                if c is not None:
                    addend = np.array(c, work, order="C")
                    _scale(addend, beta)
                    result += addend
                out[...] = result  # rounds if out is narrower than `work`

        return launch


def _blas() -> str:
    """Return the name and version of NumPy's BLAS."""
    built = getattr(getattr(np, "__config__", None), "CONFIG", {})
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', '')} {blas.get('version', '')}".strip()


def _scale(array: np.ndarray, factor: Any) -> None:
    """Compute array *= factor in place, for a C-ordered array.

    A real factor scales the real and imaginary parts separately. A complex multiplication would also multiply by the
    factor's imaginary part, which is 0, and 0 * infinity is NaN.
    """
    if factor == 1:
        return
    if array.dtype.kind == "c" and factor.imag == 0:
        array, factor = array.view(array.real.dtype), factor.real
    array *= array.dtype.type(factor)
