"""Operands as backends take them: views, what is so of their memory, and parts of them. Arithmetic, no device."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gemm.core.problem import EXTRA, DeviceView, Operand

PAGE = 4096  # bytes; no fewer than drivers and caches align anything to
LINE = 64  # bytes of a cache line
WRAPPED_FROM = 1 << 18
"""Bytes from which a user's array is wrapped: making a buffer takes longer than copying a few pages does."""

Range = tuple[int, int]
"""(start, stop) along an axis."""
Cut = dict[int, Range]
"""A part of an array or of a product: {axis: range}; other axes are whole."""


def extra(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type for `name` of EXTRA. `why` begins the message of the TypeError without ml_dtypes."""
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError) as error:
        raise TypeError(f"{why}, which NumPy knows by the package ml_dtypes; pip install ml_dtypes") from error
    return found


def bfloat16(why: str) -> np.dtype[Any]:
    """`extra` of bfloat16."""
    return extra("bfloat16", why)


def named(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type called `name`, also of EXTRA."""
    return extra(name, why) if name in EXTRA else np.dtype(name)


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which NumPy spells anew each time."""
    return str(dtype.name)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether elements of `dtype` can be multiplied: booleans, integers, real and complex numbers, those of EXTRA."""
    return name_of(dtype) in EXTRA or (dtype.kind in "biufc" and not name_of(dtype).startswith("float8"))


def overlap(x: Operand, y: Operand) -> bool:
    """Whether the two may share an element: by the bounds of their memory, so True is not certain."""
    if isinstance(x, DeviceView) and isinstance(y, DeviceView):
        if not x.size or not y.size:
            return False
        (space, x_start), (other, y_start) = _place(x), _place(y)
        x_low, x_high = _extent(x)
        y_low, y_high = _extent(y)
        return bool(space == other) and x_start + x_low < y_start + y_high and y_start + y_low < x_start + x_high
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)


def _place(x: DeviceView) -> tuple[Any, int]:
    """Where x's first element lies: a space of addresses and one of them.

    CUDA's views and those of shared virtual memory lie in one space; an OpenCL buffer is a space of its own.
    """
    start = x.data if isinstance(x.data, int) else getattr(x.data, "svm_ptr", None)
    return (x.data, x.offset) if start is None else (None, start + x.offset)


def _extent(view: DeviceView) -> tuple[int, int]:
    """Bytes from the first element to the lowest one's beginning and to the highest one's end."""
    if view.size == 0:
        return 0, 0
    spans = [(length - 1) * step for length, step in zip(view.shape, view.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    return low, sum(span for span in spans if span > 0) + view.dtype.itemsize


def identical(x: Operand, y: Operand) -> bool:
    """Whether the two are the very same elements in the same order."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    here, there = (_place(o) if isinstance(o, DeviceView) else (None, o.__array_interface__["data"][0]) for o in (x, y))
    steps = all(p == q or length == 1 for p, q, length in zip(x.strides, y.strides, x.shape, strict=True))
    return bool(here == there) and steps


def distinct(x: Operand) -> bool:
    """Whether no two elements of `x` share memory, as far as its strides prove it."""
    if x.size == 0:
        return True
    reach = x.dtype.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < reach:
            return False
        reach = step * (length - 1) + reach
    return True


def kernel_ready(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """`array` in native, aligned `dtype` with strides of whole elements; itself when it is so already."""
    if array.dtype != dtype or not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype)
    elif any(stride % dtype.itemsize for stride in array.strides):
        array = array.copy()
    return array


def transposed(x: Operand) -> Operand:
    """`x` with its last two axes exchanged, as a view."""
    return x.mT if isinstance(x, DeviceView) else x.swapaxes(-1, -2)


def expanded(x: Operand, axis: int) -> Operand:
    """`x` with a new axis of length 1 at `axis` (0, or counted from the end), as a view."""
    return x.insert_axis(axis) if isinstance(x, DeviceView) else np.expand_dims(x, axis)


def broadcast(x: Operand, shape: Sequence[int]) -> Operand:
    """`x` with zero strides where it repeats, as a view."""
    if x.shape == tuple(shape):
        return x
    return x.broadcast_to(shape) if isinstance(x, DeviceView) else np.broadcast_to(x, shape)


def layout(x: Operand) -> str:
    """ "N" for unit stride along rows, "T" along columns, "S" for neither."""
    rows, columns = x.shape[-2:]
    row_step, column_step = x.strides[-2:]
    if column_step == x.dtype.itemsize or columns == 1:
        return "N"
    return "T" if row_step == x.dtype.itemsize or rows == 1 else "S"


def place(x: Operand | None) -> str:
    """Where host memory lies, as Problem.places has it: "" too for what is small or in no matrix's order."""
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
    """A stand-in of `shape`, of no elements, for operands that a k = 0 launch does not read."""
    return replace(x, shape=shape, strides=(0,) * len(shape))


def item(column: Any, number: int) -> Any:
    """A product's operand in a column: a list or tuple of them, or what stands for all."""
    return column[number] if isinstance(column, list | tuple) else column


def aligned(nbytes: int) -> np.ndarray:
    """Host memory that begins at a page, as bytes; not initialised."""
    block = np.empty(nbytes + PAGE, np.uint8)
    start = -block.__array_interface__["data"][0] % PAGE
    return block[start : start + nbytes]


def part(x: Any, cut: Cut) -> Any:
    """The part `cut` of an ndarray or a DeviceView, as a view."""
    if isinstance(x, np.ndarray):
        return x[tuple(slice(*cut.get(axis, (0, n))) for axis, n in enumerate(x.shape))]
    start = sum(first * x.strides[axis] for axis, (first, _) in cut.items())
    shape = tuple(cut[axis][1] - cut[axis][0] if axis in cut else n for axis, n in enumerate(x.shape))
    return replace(x, offset=x.offset + start, shape=shape)


def parts(a: Any, b: Any, c: Any, out: Any, cut: Cut) -> tuple[Any, Any, Any, Any]:
    """The operands of the part `cut` of out."""
    rows, columns = out.ndim - 2, out.ndim - 1
    left = part(a, {axis: r for axis, r in cut.items() if axis != columns})
    right = part(b, {axis: r for axis, r in cut.items() if axis != rows})
    return left, right, None if c is None else part(c, cut), part(out, cut)
