"""Operands: their types, the layout and overlap of their memory, and views of them or of parts of them.

The functions compute with shapes, strides and addresses. They use no device.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm.core.problem import EXTRA, PAGE, DeviceView, DType, Ints, Operand

Range = tuple[int, int]
"""(start, stop) along an axis."""
Cut = dict[int, Range]
"""A part of an array or of a product: {axis: range}. Axes without a range are whole."""


def needs_package(name: str) -> str:
    """The message that the type `name`, which is in EXTRA, needs the package ml_dtypes."""
    return f"{name} needs the package ml_dtypes: pip install ml_dtypes"


def extra(name: str, argument: str) -> DType:
    """NumPy's type for `name`, which is in EXTRA.

    Raises a TypeError that names `argument` if ml_dtypes is missing or is too old to have this type. The message says
    in both cases to install ml_dtypes.
    """
    try:
        found: DType = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError) as error:
        raise TypeError(f"{argument}: {needs_package(name)}") from error
    return found


def bfloat16(argument: str) -> DType:
    """NumPy's type for bfloat16; see `extra`, also for the TypeError."""
    return extra("bfloat16", argument)


def named(name: str, argument: str) -> DType:
    """NumPy's type called `name`, which may be in EXTRA; see `extra` for `argument` and the TypeError."""
    return extra(name, argument) if name in EXTRA else np.dtype(name)


@lru_cache(256)
def name_of(dtype: DType) -> str:
    """`dtype.name`, cached because NumPy builds the string at each access."""
    return str(dtype.name)


def is_number(dtype: DType) -> bool:
    """Whether `dtype` can be multiplied: booleans, integers, real and complex numbers, and the types of EXTRA."""
    return name_of(dtype) in EXTRA or (dtype.kind in "biufc" and not name_of(dtype).startswith("float8"))


def overlap(x: Operand, y: Operand) -> bool:
    """Whether the two operands may share an element. Compares only the bounds of their memory: False is certain,
    True is not.
    """
    if isinstance(x, DeviceView) and isinstance(y, DeviceView):
        if not x.size or not y.size:
            return False
        (space, x_start), (other, y_start) = _place(x), _place(y)
        x_low, x_high = extent(x)
        y_low, y_high = extent(y)
        return bool(space == other) and x_start + x_low < y_start + y_high and y_start + y_low < x_start + x_high
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)


def _place(x: DeviceView) -> tuple[Any, int]:
    """(address space, address of x's first element in this space).

    CUDA views and shared virtual memory are in one address space. Each OpenCL buffer is an address space of its own.
    """
    start = x.data if isinstance(x.data, int) else getattr(x.data, "svm_ptr", None)
    return (x.data, x.offset) if start is None else (None, start + x.offset)


def extent(view: DeviceView) -> tuple[int, int]:
    """(start of the lowest element, end of the highest element), in bytes from the start of the first element."""
    return span(view.shape, view.strides, view.dtype.itemsize)


def span(shape: Ints, strides: Ints, itemsize: int) -> tuple[int, int]:
    """The `extent` of an array with this shape and these byte strides. (0, 0) for an array without elements.

    Both numbers are exact. Allocators place arrays directly next to each other: if a span were too large, neighbouring
    arrays would seem to overlap.
    """
    if 0 in shape:
        return 0, 0
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


def identical(x: Operand, y: Operand) -> bool:
    """Whether the two operands are the same memory: equal address, dtype, shape and strides (except for axes of
    length 1). The values are not compared.
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    here, there = (_place(o) if isinstance(o, DeviceView) else (None, o.__array_interface__["data"][0]) for o in (x, y))
    steps = all(p == q or length == 1 for p, q, length in zip(x.strides, y.strides, x.shape, strict=True))
    return bool(here == there) and steps


def distinct(x: Operand) -> bool:
    """Whether the strides of `x` prove that no two elements share memory."""
    if x.size == 0:
        return True
    reach = x.dtype.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < reach:
            return False
        reach = step * (length - 1) + reach
    return True


def transposed(x: Operand) -> Operand:
    """`x` with its last two axes exchanged, as a view."""
    return x.mT if isinstance(x, DeviceView) else x.swapaxes(-1, -2)


def expanded(x: Operand, axis: int) -> Operand:
    """`x` with a new axis of length 1 at `axis` (0, or negative to count from the end), as a view."""
    return x.insert_axis(axis) if isinstance(x, DeviceView) else np.expand_dims(x, axis)


def broadcast(x: Operand, shape: Sequence[int]) -> Operand:
    """`x` broadcast to `shape` with zero strides, as a view."""
    if x.shape == tuple(shape):
        return x
    return x.broadcast_to(shape) if isinstance(x, DeviceView) else np.broadcast_to(x, shape)


def same_stack(shape: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, Ints]]:
    """Merge adjacent batch axes if the strides of every operand allow it. Loops over the batch then have fewer levels.

    Args:
        shape: the batch shape.
        strides: one sequence of batch strides per operand, all in the same unit.

    Returns:
        [(length, (stride of operand 0, stride of operand 1, ...)), ...], outermost first. Axes of length 1 are dropped.
        An empty list means a single product.
    """
    axes: list[tuple[int, Ints]] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        step = tuple(s[axis] for s in strides)
        if axes and all(o == s * length for o, s in zip(axes[-1][1], step, strict=True)):
            axes[-1] = (axes[-1][0] * length, step)
        else:
            axes.append((length, step))
    return axes


def nothing_of(x: DeviceView, *shape: int) -> DeviceView:
    """`x` with another shape and all strides zero: a stand-in for an operand whose elements are not read."""
    return replace(x, shape=shape, strides=(0,) * len(shape))


def item(column: Any, number: int) -> Any:
    """The operand of product `number`: an item of a list or tuple, or `column` itself if it is the same for all
    products.
    """
    return column[number] if isinstance(column, list | tuple) else column


def aligned(nbytes: int) -> np.ndarray:
    """Uninitialised, page-aligned host memory as an array of bytes."""
    block = np.empty(nbytes + PAGE, np.uint8)
    start = -block.__array_interface__["data"][0] % PAGE
    return block[start : start + nbytes]


def part(x: Any, cut: Cut) -> Any:
    """The part `cut` of an ndarray or DeviceView, as a view."""
    if isinstance(x, np.ndarray):
        return x[tuple(slice(*cut.get(axis, (0, n))) for axis, n in enumerate(x.shape))]
    start = sum(first * x.strides[axis] for axis, (first, _) in cut.items())
    shape = tuple(cut[axis][1] - cut[axis][0] if axis in cut else n for axis, n in enumerate(x.shape))
    return replace(x, offset=x.offset + start, shape=shape)


def parts(a: Any, b: Any, c: Any, out: Any, cut: Cut) -> tuple[Any, Any, Any, Any]:
    """The parts of a, b, c and out for a launch that computes the part `cut` of out. c may be None."""
    rows, columns = out.ndim - 2, out.ndim - 1
    left = part(a, {axis: r for axis, r in cut.items() if axis != columns})
    right = part(b, {axis: r for axis, r in cut.items() if axis != rows})
    return left, right, None if c is None else part(c, cut), part(out, cut)


class Work(NamedTuple):
    """The arguments of a launch, which computes out = alpha·a·b + beta·c + bias: see gemm.core.backend.Launch."""

    a: Any
    b: Any
    c: Any
    out: Any
    alpha: Any
    beta: Any
    bias: Any = None

    def part(self, cut: Cut) -> Work:
        """The arguments of a launch that computes the part `cut` of out."""
        bias = None if self.bias is None else part(broadcast(self.bias, self.out.shape), cut)
        return Work(*parts(*self[:4], cut), self.alpha, self.beta, bias)
