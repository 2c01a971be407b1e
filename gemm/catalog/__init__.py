"""The lists of backends and kernels, one module per backend: the only hand-written lists of the package.

A kernel has a source file and one row in these lists. build.py compiles the kernels of the machine's architecture.
Dispatch chooses among the kernels that can compute the product. The tests run the conformance suite over each kernel,
and the kernel table of the documentation is generated from the rows. The package gemm.catalog imports nothing from
other modules of gemm, and its own modules import each other by relative names. build.py and other scripts can therefore
import the package alone, from the folder gemm, without any dependency.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from .cpu import CPU
from .cuda import CUDA
from .kernel import BUSY, Kernel, typed_row
from .opencl import OPENCL

__all__ = [
    "BACKENDS", "BUSY", "BY_NAME", "HOLDING", "HOST_BACKENDS", "INPUTS", "KERNELS", "SPREADING", "TARGETS", "Backend",
    "Kernel", "Signs", "simplest",
]  # fmt: skip

BACKENDS: dict[str, str] = {
    "cpu": "gemm.backends.cpu:CpuBackend",
    "opencl": "gemm.backends.opencl.backend:OpenCLBackend",
    "cuda": "gemm.backends.cuda.backend:CudaBackend",
    "numpy": "gemm.backends.numpy:NumpyBackend",
}
"""{name of a backend: module:class}. Of backends with the same predicted time, dispatch chooses the first."""
Backend = Literal["auto", "cpu", "opencl", "cuda", "numpy", "hybrid", "cuda:all"] | str
"""The type of the option `backend`. Any str is legal: a target ("neon") or a device ("opencl:1") may be named. The
other names are in the type only because editors then complete them.
"""
HOST_BACKENDS = ("cpu", "numpy")
"""Backends that compute in host memory. They load no driver, so looking for them costs nothing."""


class Signs(NamedTuple):
    """How to recognise arrays that a backend may hold in its memory, without loading any library.

    Attributes:
        dlpack: the DLDeviceTypes that `__dlpack_device__` returns for such arrays.
        attributes: attributes of such arrays; at least one is present if an array has no `__dlpack_device__`.
    """

    dlpack: tuple[int, ...]
    attributes: tuple[str, ...]


HOLDING: dict[str, Signs] = {
    "opencl": Signs((4,), ("base_data", "int_ptr")),  # kDLOpenCL; pyopencl's arrays and memory objects
    "cuda": Signs((2, 13), ("__cuda_array_interface__",)),  # kDLCUDA, kDLCUDAManaged
}
"""{backend with its own memory: the Signs of its arrays}. Backend.view is called only for arrays with these Signs."""
SPREADING = ("cuda",)
"""Backends that can compute one product on several of their devices, as backend="cuda:all" requests."""

PLAIN = "batch == 1 and alpha == '1' and beta == '0' and out == 'N' and 'S' not in a + b and not fused and not limited"
"""The expression Kernel.suits of the kernels that call NumPy's BLAS. It is true for products that a single BLAS call
computes.

If gemm's threads are limited, the expression is false, because NumPy's BLAS has threads of its own. Only float32 and
float64 have such a kernel: complex products of OpenBLAS have NaN where the contract requires infinities.
"""
KERNELS: tuple[Kernel, ...] = (
    *CPU,
    *OPENCL,
    *CUDA,
    *(typed_row(f"{letter}gemm_numpy_blas", "numpy", "gemm/backends/numpy.py", "numpy.matmul, by NumPy's BLAS",
                ordered=False, gflops=20, startup=10, suits=PLAIN, third_party=True) for letter in "sd"),
    Kernel("gemm_numpy_reference", "numpy", "reference", "*", "gemm/backends/numpy.py", ordered=False,
           gflops=20, about="numpy.matmul and the epilogue; every dtype"),
)  # fmt: skip

INPUTS: frozenset[tuple[str, ...]] = frozenset(row.inputs for row in KERNELS if row.inputs)
"""The pairs of operand types that some kernel takes with a wider result type."""
BY_NAME: dict[str, Kernel] = {row.name: row for row in KERNELS}


@cache
def simplest(backend: str, dtype: str, inputs: tuple[str, ...] = ()) -> Kernel | None:
    """Return a backend's simplest kernel for `dtype` and `inputs`: the catalog's last row of these types. It takes any
    sizes and strides. Return None if there is no such row.
    """
    rows = [row for row in KERNELS if (row.backend, row.dtype, row.inputs) == (backend, dtype, inputs)]
    return rows[-1] if rows else None


TARGETS: frozenset[str] = frozenset(row.target for row in KERNELS)
