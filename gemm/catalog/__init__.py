"""The ONLY hand-edited lists of the package: its backends and its kernels, a module a backend.

A kernel is one source file and one row here. build.py compiles the rows of the machine's architecture,
dispatch chooses among the legal ones, the tests run the conformance suite over each, and the kernel
table of the docs is generated from them. This package imports nothing of the one around it, and its own modules by
relative names, so that build.py and others can import it alone, from the folder gemm, without any dependency.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .cpu import CPU
from .cuda import CUDA
from .kernel import BUSY, Kernel
from .opencl import OPENCL

__all__ = [
    "BACKENDS", "BUSY", "BY_NAME", "HOLDING", "HOST_BACKENDS", "INPUTS", "KERNELS", "SPREADING", "TARGETS", "Kernel",
    "Signs", "simplest",
]  # fmt: skip

BACKENDS: dict[str, str] = {
    "cpu": "gemm.backends.cpu:CpuBackend",
    "opencl": "gemm.backends.opencl.backend:OpenCLBackend",
    "cuda": "gemm.backends.cuda.backend:CudaBackend",
    "numpy": "gemm.backends.numpy:NumpyBackend",
}
"""name → module:class. Ties in predicted time go to the first."""
HOST_BACKENDS = ("cpu", "numpy")
"""Backends that compute in host memory, load no driver, and cost nothing to look for."""


class Signs(NamedTuple):
    """By what arrays are known that a backend may hold in its memory; no library is loaded for it.

    Attributes:
        dlpack: DLDeviceTypes that `__dlpack_device__` tells.
        attributes: arrays that tell none have one of these.
    """

    dlpack: tuple[int, ...]
    attributes: tuple[str, ...]


HOLDING: dict[str, Signs] = {
    "opencl": Signs((4,), ("base_data", "int_ptr")),  # kDLOpenCL; pyopencl's arrays, and whatever it has on a device
    "cuda": Signs((2, 13), ("__cuda_array_interface__",)),  # kDLCUDA, kDLCUDAManaged
}
"""Backends with memory of their own, whose Backend.view is asked of arrays with such signs, and of no others."""
SPREADING = ("cuda",)
"""Backends that compute one product on several of their devices, as backend="cuda:all" asks."""

KERNELS: tuple[Kernel, ...] = (
    *CPU,
    *OPENCL,
    *CUDA,
    Kernel("gemm_numpy_reference", "numpy", "reference", "*", "gemm/backends/numpy.py", ordered=False,
           gflops=20, about="numpy.matmul and the epilogue; every dtype"),
)  # fmt: skip

INPUTS: frozenset[tuple[str, ...]] = frozenset(row.inputs for row in KERNELS if row.inputs)
"""Pairs of operand types that some kernel takes though the result's is wider."""
BY_NAME: dict[str, Kernel] = {row.name: row for row in KERNELS}


@cache
def simplest(backend: str, dtype: str, inputs: tuple[str, ...] = ()) -> Kernel | None:
    """A backend's simplest kernel of these types, the last one: it takes any sizes and strides. None: it has none."""
    rows = [row for row in KERNELS if (row.backend, row.dtype, row.inputs) == (backend, dtype, inputs)]
    return rows[-1] if rows else None


TARGETS: frozenset[str] = frozenset(row.target for row in KERNELS)
