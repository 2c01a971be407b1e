"""Host arrays that a device uses without copies (`gemm.empty`), and counts of copied bytes (`gemm.copied`)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from gemm import execute
from gemm.backends import registry
from gemm.catalog import HOLDING
from gemm.core import operands
from gemm.core.errors import delivering
from gemm.core.problem import Device, DType, Problem
from gemm.select import candidates

_LARGE = 4096


def empty(shape: int | Sequence[int], dtype: DTypeLike = float, device: str | None = None) -> np.ndarray:
    """A new uninitialised NumPy array that products on `device` can use without copying it.

    If the device shares memory with the host, as integrated GPUs and OpenCL's CPU runtimes do, the array is in memory
    that the driver has mapped. While a product with such an array runs, the array's memory belongs to the device:
    other threads must not access the array, and their products with the array wait. The rows of such an array may be
    padded; the array is then not contiguous. On other devices, and with fewer than two axes, the array is in normal
    page-aligned memory, and products copy it.

    Args:
        shape, dtype: as for np.empty; dtype must be a dtype of numbers.
        device: a device such as "opencl:0", a backend or a target. None: the device that gemm would choose for a large
            product.

    Raises:
        ValueError, TypeError: an argument is wrong.
        BackendUnavailable: the device that was named is not available.
        MemoryError: the device does not have enough memory.
    """
    sizes = tuple(map(operator.index, shape)) if isinstance(shape, Sequence) else (operator.index(shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {sizes} has a negative axis")
    kind: DType = np.dtype(dtype)
    if not operands.is_number(kind) or not kind.isnative:
        raise TypeError(f"dtype {kind} must be boolean, integer, real or complex, in the machine's byte order")
    place = _device(device, kind)
    with delivering(place.key):
        found = registry.backend(place.backend).shared(sizes, kind, place)
    return operands.aligned(math.prod(sizes) * kind.itemsize).view(kind).reshape(sizes) if found is None else found


def _device(name: str | None, kind: DType) -> Device:
    wanted = "auto" if name is None else name
    candidates.check_names(wanted, None)
    backend, colon, _ = wanted.partition(":")
    if colon:
        for device in registry.backend(backend).devices():
            if device.key == wanted:
                return device
        raise registry.absent(wanted)
    return execute.choose(Problem(kind.name, _LARGE, _LARGE, _LARGE), wanted).device


def copied() -> dict[str, dict[str, int]]:
    """{device: {kind of copy: bytes}}: the bytes of operands that products on OpenCL devices have copied.

    Only OpenCL devices are counted. The kinds are "filled": written by the host to memory that a kernel reads;
    "packed": copied on the device into the layout that a kernel requires; "fetched": results copied to the host.
    Operands that are used in place do not count.
    """
    return {key: how for name in HOLDING for key, how in registry.backend(name).copied().items()}
