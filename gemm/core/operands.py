"""Operands as backends take them: views, properties of their memory, and parts of them. Arithmetic only; uses no
device.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm.core.problem import EXTRA, DeviceView, Operand

PAGE = 4096  # bytes; drivers and caches require no larger alignment
LINE = 64  # bytes of a cache line
WRAPPED_FROM = 1 << 18
"""Size in bytes from which a device uses a user's array in place, wrapped in a buffer. Smaller arrays are copied,
because copying then takes less time than wrapping.
"""

Range = tuple[int, int]
"""(start, stop) along an axis."""
Cut = dict[int, Range]
"""A part of an array or of a product: {axis: range}. Axes without a range are whole."""


def extra(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type for `name`, which is in EXTRA. Without ml_dtypes, raises a TypeError whose message begins with
    `why`.
    """
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError) as error:
        raise TypeError(f"{why}, which NumPy knows by the package ml_dtypes; pip install ml_dtypes") from error
    return found


def bfloat16(why: str) -> np.dtype[Any]:
    """`extra` for bfloat16."""
    return extra("bfloat16", why)


def named(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type called `name`, which may be in EXTRA."""
    return extra(name, why) if name in EXTRA else np.dtype(name)


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, cached because NumPy builds the string at each access."""
    return str(dtype.name)


def is_number(dtype: np.dtype[Any]) -> bool:
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
    """The address of x's first element: an address space, and the address in this space.

    CUDA views and shared virtual memory are in one address space. Each OpenCL buffer is an address space of its own.
    """
    start = x.data if isinstance(x.data, int) else getattr(x.data, "svm_ptr", None)
    return (x.data, x.offset) if start is None else (None, start + x.offset)


def extent(view: DeviceView) -> tuple[int, int]:
    """The start of the lowest element and the end of the highest element, in bytes relative to the first element."""
    if view.size == 0:
        return 0, 0
    spans = [(length - 1) * step for length, step in zip(view.shape, view.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    return low, sum(span for span in spans if span > 0) + view.dtype.itemsize


def identical(x: Operand, y: Operand) -> bool:
    """Whether the two operands are exactly the same elements in the same order."""
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


def kernel_ready(array: Operand, dtype: np.dtype[Any]) -> Operand:
    """`array` as an aligned array of `dtype` in native byte order, whose strides are multiples of the element size.

    Returns `array` itself if it already has these properties, or if it is on a device.
    """
    if isinstance(array, DeviceView):
        return array
    if array.dtype != dtype or not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype)
    elif math.gcd(dtype.itemsize, *array.strides) != dtype.itemsize:
        array = array.copy()
    return array


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


def layout(x: Operand) -> str:
    """The layout: "N" for unit stride within a row, "T" for unit stride within a column, "S" for neither."""
    rows, columns = x.shape[-2:]
    row_step, column_step = x.strides[-2:]
    if column_step == x.dtype.itemsize or columns == 1:
        return "N"
    return "T" if row_step == x.dtype.itemsize or rows == 1 else "S"


def place(x: Operand | None) -> str:
    """The entry of Problem.places for `x`.

    Arrays that are not from `gemm.empty` have the entry "" if they are smaller than WRAPPED_FROM, if their size is not
    a multiple of LINE, or if they are C-contiguous neither as they are nor with their last two axes exchanged.
    """
    if not isinstance(x, np.ndarray):
        return ""
    base = x.base
    while isinstance(base, np.ndarray):
        base = base.base
    if key := getattr(base, "device_key", ""):
        return str(key)
    if (
        x.nbytes < WRAPPED_FROM
        or x.nbytes % LINE
        or not (x.flags.c_contiguous or x.swapaxes(-1, -2).flags.c_contiguous)
    ):
        return ""
    address = x.__array_interface__["data"][0]
    return next((str(step) for step in (PAGE, LINE) if address % step == 0), "")


def nothing_of(x: DeviceView, *shape: int) -> DeviceView:
    """An operand of `shape` whose strides are all zero. Replaces an operand whose elements are not read."""
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
    """The parts of a, b, c and out for a launch that computes the part `cut` of out."""
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
