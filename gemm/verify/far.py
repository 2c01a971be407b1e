"""Offsets that do not fit into 32 bits: which memory they take, and products on the host that have them."""

from __future__ import annotations

import mmap
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gemm import operands
from gemm.backends.base import Backend
from gemm.catalog import Kernel
from gemm.plain import matmul
from gemm.problem import Device, Problem
from gemm.verify.samples import ones, types_of, wide
from gemm.verify.single import Mismatch

FAR = 1 << 31
BEYOND = "beyond 2**31 elements"
"""The check of offsets that do not fit into 32 bits."""


def far_bytes(kernel: Kernel, device: Device) -> int:
    """Memory that a chain takes whose c lies far apart; 0 where it does not fit a device (`too_far`)."""
    return 0 if too_far(kernel, device) else _far_size(kernel)


def too_far(kernel: Kernel, device: Device) -> str:
    """Why c cannot reach beyond 2**31 elements on `device`, or "". It is to have four times the memory."""
    needed, limits = _far_size(kernel), device.limits
    there = limits.get("memory_bytes") or limits.get("global_memory", 0)
    if needed > limits.get("max_alloc", needed):
        return f"it takes {needed / 1e9:.1f} GB at once, and the device gives {limits['max_alloc'] / 1e9:.1f} GB"
    if 4 * needed > there:
        has = f"has {there / 1e9:.1f} GB" if there else "does not say what it has"
        return f"it takes {needed / 1e9:.1f} GB, and a device is to have four times that; this one {has}"
    return ""


def _far_size(kernel: Kernel) -> int:
    return int(1.1 * FAR) * types_of(kernel)[0].itemsize


def promised(kernel: Kernel) -> np.ndarray | None:
    """Bytes for an operand that reaches beyond 2**31 elements. They take no memory until they are touched; None where
    the system does not promise so many."""
    size = int(1.1 * FAR) * max(x.itemsize for x in (types_of(kernel)[0], *types_of(kernel)[1]))
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8)
    except (AttributeError, OSError, OverflowError):  # Windows; little memory; 32-bit addresses
        return None


def check_far(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Raise Mismatch unless `kernel` is right where rows, or columns, of a, b or out span 2**31 elements."""
    dtype, types = types_of(kernel)
    dice, sizes = np.random.default_rng(6), {"a": (9, 13), "b": (13, 21), "out": (9, 21)}
    memory = promised(kernel)
    assert memory is not None
    for place, axis in product(sizes, (0, 1)):
        given = {"a": ones(dice, types[0], sizes["a"]), "b": ones(dice, types[1], sizes["b"]),
                 "out": np.zeros(sizes["out"], dtype)}  # fmt: skip
        near = given[place]
        strides = [near.itemsize * near.shape[1], near.itemsize]
        strides[axis] = near.itemsize * (FAR // (near.shape[axis] - 1) + 3)
        far = as_strided(memory[: strides[axis] * near.shape[axis]].view(near.dtype), near.shape, strides)
        far[...] = near
        given[place] = far
        a, b, out = given.values()
        problem = Problem(dtype.name, 9, 21, 13, 1, "".join(map(operands.layout, (a, b, out))), inputs=kernel.inputs)
        backend.launcher(kernel, device, problem)(a, b, None, out, 1, 0)
        if not np.array_equal(wide(out), matmul(wide(a), wide(b))):
            axes = ("rows", "columns")[axis]
            raise Mismatch(f"{kernel.label} on {device.name}: {axes} of {place} {BEYOND}: the product is wrong")
