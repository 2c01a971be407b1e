"""Host arrays that a device works on without copies (`gemm.empty`), and what products have copied (`gemm.copied`)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm import execute
from gemm.backends import registry
from gemm.catalog import HOLDING
from gemm.core import operands
from gemm.core.errors import delivering
from gemm.core.problem import Device, Problem

_LARGE = 4096


def empty(shape: int | Sequence[int], dtype: DTypeLike = float, device: str | None = None) -> np.ndarray:
    """A new array, not initialised, where products on `device` need not copy it; a NumPy array like any other.

    Where the device shares memory with the host, as integrated GPUs and CPU runtimes of OpenCL do, the array lies in
    mapped memory of the driver; its rows may be padded, so that it need not be contiguous. Elsewhere, and with fewer
    than two axes, it is plain memory, aligned to a page, and products copy it. While a product that it is an operand of
    runs, its memory belongs to the device: other threads must not touch it then; products of other threads wait.

    Args:
        shape, dtype: as for np.empty; dtype a number's.
        device: a device such as "opencl:0", a backend or a target; None: the device that large products would go to.

    Raises:
        ValueError, TypeError: an argument is wrong. BackendUnavailable: the device that was named is not there.
        MemoryError: it has no room.
    """
    sizes = tuple(map(operator.index, shape)) if isinstance(shape, Sequence) else (operator.index(shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {sizes} has a negative axis")
    kind: np.dtype[Any] = np.dtype(dtype)
    if not operands.is_number(kind) or not kind.isnative:
        raise TypeError(f"dtype {kind} must be boolean, integer, real or complex, in the machine's byte order")
    place = _device(device, kind)
    with delivering(place.key):
        found = registry.backend(place.backend).shared(sizes, kind, place)
    return operands.aligned(math.prod(sizes) * kind.itemsize).view(kind).reshape(sizes) if found is None else found


def _device(name: str | None, kind: np.dtype[Any]) -> Device:
    wanted = "auto" if name is None else name
    execute.check_names(wanted, None)
    backend, colon, _ = wanted.partition(":")
    if colon:
        for device in registry.backend(backend).devices():
            if device.key == wanted:
                return device
        raise registry.absent(wanted)
    return execute.choose(Problem(kind.name, _LARGE, _LARGE, _LARGE), wanted).device


def copied() -> dict[str, dict[str, int]]:
    """Bytes of operands that products on OpenCL devices, which alone count them, have copied: {device: {how: bytes}}.

    "filled": written by the host to where a kernel reads; "packed": copied on the device into the layout that a kernel
    asks for; "fetched": results that were copied to the host. Operands that were used where they lie do not count.
    """
    return {key: how for name in HOLDING for key, how in registry.backend(name).copied().items()}
