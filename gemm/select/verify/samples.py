"""Operands for checks, and the functions that compute and compare their products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemm.catalog import Kernel
from gemm.core import operands
from gemm.core.backend import Backend
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, DeviceView, Problem

FAR = 1 << 31
"""The least offset in elements that does not fit into a signed 32-bit integer."""
SPARSE = 96
"""Greatest number of elements other than 0 in a row of a. A sum of this many ones fits into int8 and is exact in every
type."""


def types_of(kernel: Kernel) -> tuple[np.dtype[Any], list[np.dtype[Any]]]:
    """Return the type of a kernel's results and the types of a and b; float32 if the kernel takes any type."""
    names = "float32" if kernel.dtype == "*" else kernel.dtype, *kernel.inputs
    dtype, *types = (operands.named(name, kernel.name) for name in names)
    return dtype, types or [dtype, dtype]


def random_matrix(random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers. Integers take any value of their type; other numbers, and complex parts, are -1 … 1."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = random.uniform(-1, 1, shape)
    return (values + 1j * random.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def ones(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], letter: str = "N") -> np.ndarray:
    """Return an array of random elements: 1 or -1; 1 or 0 for unsigned types. Complex elements have two such parts.

    Args:
        letter: the layout: "N" for unit stride along the last axis, "T" along the second-last axis.
    """
    if letter == "T":
        return np.swapaxes(ones(dice, dtype, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.stack([ones(dice, part, shape) for _ in range(2)], -1).view(dtype)[..., 0]
    count = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(dice.bytes(-(-count // 8)), np.uint8), count=count)
    # Compute bit patterns, which is faster than conversions: start from the first number's pattern, and add the
    # difference to the second number's pattern where the random bit is 1.
    number = np.dtype(f"u{dtype.itemsize}")
    pair = np.array([0 if dtype.kind == "u" else -1, 1], np.int8).astype(dtype).view(number)
    drawn = bits.astype(number)
    drawn *= pair[1:] - pair[:1]
    drawn += pair[:1]
    return drawn.view(dtype).reshape(shape)


def few_ones(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], most: int = SPARSE) -> np.ndarray:
    """Return an array with the elements of `ones` in at most `most` random places of each row, and 0 elsewhere."""
    found = np.zeros(shape, dtype)
    some = (*shape[:-1], min(most, shape[-1]))
    np.put_along_axis(found, dice.integers(0, shape[-1], some), ones(dice, dtype, some), -1)
    return found


def poisoned(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return an array for results, filled with a value that no product has: NaN, or bytes of 0xA5 in integers."""
    poison = np.uint8(0xA5 if dtype.kind in "iu" else 0xFF)
    return np.full((*shape[:-1], shape[-1] * dtype.itemsize), poison).view(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x·y with sums in float64 or complex128. To save memory, only some rows of x are widened at a time."""
    some = max(1, (1 << 18) // max(1, x.shape[-1]))
    parts = [matmul(wide(x[..., row : row + some, :]), y) for row in range(0, max(1, x.shape[-2]), some)]
    return np.concatenate(parts, -2)


def on_device(backend: Backend, device: Device, x: np.ndarray, letter: str = "N") -> Any:
    """Return a copy of `x` in the memory where the backend computes: a DeviceView, or an ndarray for host memory.

    Args:
        letter: the layout of the copy: "N" for unit stride along the last axis, "T" along the second-last axis.
    """
    if letter == "T":
        copy = on_device(backend, device, np.swapaxes(x, -1, -2))
        return copy.mT if isinstance(copy, DeviceView) else np.swapaxes(copy, -1, -2)
    try:
        return backend.to_device(x, device)
    except TypeError:  # the backend has no device memory
        return np.array(x, order="C")


def brief(problem: Problem) -> str:
    batch = f"{problem.batch}x " if problem.batch > 1 else ""
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {problem.layout[:2]}"
