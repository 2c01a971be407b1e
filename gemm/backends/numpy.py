"""numpy.matmul and the epilogue. Every dtype that NumPy multiplies, the fallback of last resort; those that its BLAS
multiplies are rows of their own, which `auto` chooses where that was measured to be faster than our own kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gemm.catalog import Kernel
from gemm.core.backend import Backend, Launch
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, Problem


class NumpyBackend(Backend):
    """NumPy on the host. Sums of float16 and bfloat16 are float32's, rounded once at the end; integers wrap exactly."""

    name: ClassVar[str] = "numpy"

    def devices(self) -> tuple[Device, ...]:
        """One device, numpy:0; always there. Its driver is the BLAS that NumPy was built with."""
        return (Device("numpy", "numpy:0", f"NumPy {np.__version__}", driver=_blas(), unified=True),)

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """A launch for the dtype of `problem`."""
        dtype = np.dtype(problem.dtype)
        work = np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype

        def launch(a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any) -> None:
            with np.errstate(all="ignore"):  # NaN and Inf are results, not events
                if c is None and alpha == 1 and work == dtype:
                    matmul(a, b, out=out)
                    return
                # a new array even if k = 0, where matmul gives the zeros that the contract asks for
                result = matmul(a.astype(work, copy=False), b.astype(work, copy=False))
                _scale(result, alpha)
                if c is not None:
                    addend = np.array(c, work, order="C")
                    _scale(addend, beta)
                    result += addend
                out[...] = result  # rounds narrower ones

        return launch


def _blas() -> str:
    """Name and version."""
    built = getattr(getattr(np, "__config__", None), "CONFIG", {})
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', '')} {blas.get('version', '')}".strip()


def _scale(array: np.ndarray, factor: Any) -> None:
    """array *= factor, in place, for a C-ordered array. A real factor scales real and imaginary parts apart: as a
    complex number, its zero would turn an infinity beside it into NaN."""
    if factor == 1:
        return
    if array.dtype.kind == "c" and factor.imag == 0:
        array, factor = array.view(array.real.dtype), factor.real
    array *= array.dtype.type(factor)
