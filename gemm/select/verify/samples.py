"""Operands of checks, and how their products are summed up to be compared."""

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
"""Elements whose number does not fit into 32 bits."""
SPARSE = 96
"""Numbers other than 0 in a row of a: what fits into int8, and every sum of so many ones is exact in every type."""


def types_of(kernel: Kernel) -> tuple[np.dtype[Any], list[np.dtype[Any]]]:
    """The types of a kernel's results, and of a and b; float32 where any will do."""
    names = "float32" if kernel.dtype == "*" else kernel.dtype, *kernel.inputs
    dtype, *types = (operands.named(name, kernel.name) for name in names)
    return dtype, types or [dtype, dtype]


def random_matrix(random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of -1 … 1, both parts of complex ones; integers of the whole range."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = random.uniform(-1, 1, shape)
    return (values + 1j * random.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def ones(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], letter: str = "N") -> np.ndarray:
    """1 and -1, or 0 where there is no such number; both parts of complex ones.

    Args:
        letter: of a layout: "T" is contiguous along its last axis but one.
    """
    if letter == "T":
        return np.swapaxes(ones(dice, dtype, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.stack([ones(dice, part, shape) for _ in range(2)], -1).view(dtype)[..., 0]
    count = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(dice.bytes(-(-count // 8)), np.uint8), count=count)
    # The bits of the first number plus, where a bit is drawn, the difference to the other's: faster than conversions.
    number = np.dtype(f"u{dtype.itemsize}")
    pair = np.array([0 if dtype.kind == "u" else -1, 1], np.int8).astype(dtype).view(number)
    drawn = bits.astype(number)
    drawn *= pair[1:] - pair[:1]
    drawn += pair[:1]
    return drawn.view(dtype).reshape(shape)


def few_ones(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], most: int = SPARSE) -> np.ndarray:
    """The same in at most so many places of a row, and 0 elsewhere."""
    found = np.zeros(shape, dtype)
    some = (*shape[:-1], min(most, shape[-1]))
    np.put_along_axis(found, dice.integers(0, shape[-1], some), ones(dice, dtype, some), -1)
    return found


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x·y, summed in float64, or in complex128; some rows of x at a time, so that few of them are widened at once."""
    some = max(1, (1 << 18) // max(1, x.shape[-1]))
    parts = [matmul(wide(x[..., row : row + some, :]), y) for row in range(0, max(1, x.shape[-2]), some)]
    return np.concatenate(parts, -2)


def lying(backend: Backend, device: Device, x: np.ndarray, letter: str) -> DeviceView:
    """`x` in device memory, contiguous along its last axis; along the other one for the letter T."""
    return backend.to_device(np.swapaxes(x, -1, -2), device).mT if letter == "T" else backend.to_device(x, device)


def brief(problem: Problem) -> str:
    batch = f"{problem.batch}x " if problem.batch > 1 else ""
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {problem.layout[:2]}"
