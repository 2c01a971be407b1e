"""Where host operands lie on the device, and in which pieces they travel: geometry only, no driver.

A host array of any strides becomes a `Block`: its elements in the array's own order of axes, so that copying it is
reading memory in order. Repeated axes (stride 0) are sent once, and rows end at multiples of 16 bytes, as the copy
engine of the tensor cores' kernels asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gemm.core.operands import Cut, Range

ALIGN = 256
"""Bytes: what operands on the device begin at multiples of, as cuMemAlloc has it."""
_ROW = 16  # bytes that rows are a multiple of
_PADDED_FROM = 16 * _ROW  # shorter rows lie without gaps: those would be most of the memory


@dataclass(frozen=True)
class Block:
    """An array's place in device memory, beginning at 0.

    Attributes:
        axes: of the array, in the order of memory, outermost first; those that repeat or have one index are left out.
        shape, strides: of `axes`; bytes, the innermost one's are an element's.
        whole: byte strides of all axes of the array: 0 where it repeats, the block's size where there is one index.
        nbytes: with the gaps.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    nbytes: int

    def on_host(self, array: np.ndarray) -> np.ndarray:
        """A view of `array`, of the shape that the block was made for, with the block's axes."""
        left_out = [axis for axis in range(array.ndim) if axis not in self.axes]
        turned = array.transpose(*left_out, *self.axes)
        found: np.ndarray = turned[(0,) * len(left_out) + (Ellipsis,)]
        return found

    def ranges(self, cut: Cut) -> tuple[Range, ...]:
        """Those of the block's axes for a part of the array."""
        return tuple(cut.get(axis, (0, n)) for axis, n in zip(self.axes, self.shape, strict=True))


def block(array: np.ndarray, *, padded: bool = True) -> Block:
    """The Block of `array`, of an element or more. Results are not `padded`: gaps in them would be read as they are."""
    return _lay(array.shape, array.strides, array.dtype.itemsize, padded)


@lru_cache(maxsize=1024)
def _lay(sizes: tuple[int, ...], along: tuple[int, ...], itemsize: int, padded: bool) -> Block:
    """`block` of an array of that shape and those strides."""
    steps = [abs(step) if n > 1 else 0 for step, n in zip(along, sizes, strict=True)]
    axes = tuple(sorted((axis for axis, step in enumerate(steps) if step), key=lambda axis: -steps[axis]))
    shape = tuple(sizes[axis] for axis in axes)
    strides: list[int] = []
    step = itemsize
    for at in range(len(axes) - 1, -1, -1):
        strides.insert(0, step)
        step *= shape[at]
        if padded and at == len(axes) - 1 and at and step >= _PADDED_FROM:
            step = -(-step // _ROW) * _ROW
    of_axis = dict(zip(axes, strides, strict=True))
    single = -(-step // _ROW) * _ROW
    whole = tuple(of_axis.get(axis, 0 if n > 1 else single) for axis, n in enumerate(sizes))
    return Block(axes, shape, tuple(strides), whole, step)


class Piece(NamedTuple):
    """Part of a block that is sent at once, through staging memory of `width * rows` bytes.

    Attributes:
        place: an index of the array as Block.on_host has it. strides: of the elements there, in staging memory.
        offset: bytes from the block's beginning. width, rows, pitch: bytes of a row, rows, and bytes between them on
            the device; in staging memory they follow each other.
    """

    place: tuple[Any, ...]
    strides: tuple[int, ...]
    offset: int
    width: int
    rows: int
    pitch: int


def pieces(of: Block, ranges: Sequence[Range], limit: int) -> Iterator[Piece]:
    """The part `ranges` of a block in pieces of at most `limit` bytes, as few as can be had by cutting one axis."""
    if not of.shape:
        yield Piece((Ellipsis,), (), 0, of.nbytes, 1, of.nbytes)
        return
    lengths = [stop - start for start, stop in ranges]
    whole = [n == length for n, length in zip(of.shape, lengths, strict=True)]
    run = len(whole) - 1  # the outermost axis along which memory is adjacent
    while run > 0 and whole[run]:
        run -= 1
    cut, below = run, of.strides[run]  # the axis that is cut; bytes of an index of it, in staging memory
    while cut < len(whole) - 1 and below > limit:
        cut += 1
        below = of.strides[cut]
    while 0 < cut <= run and (cut == run or whole[cut]) and lengths[cut] * below <= limit:
        below *= lengths[cut]
        cut -= 1
    most = max(1, limit // below)
    inner = [slice(start, stop) for start, stop in ranges[cut + 1 :]]
    strides = list(of.strides[cut:])
    for axis in range(min(run, len(whole)) - 1, cut - 1, -1):  # rows follow each other
        strides[axis - cut] = strides[axis + 1 - cut] * lengths[axis + 1]
    rows_below = prod(lengths[cut + 1 : run]) if cut < run else 1
    origin = sum(start * step for (start, _), step in zip(ranges[cut + 1 :], of.strides[cut + 1 :], strict=True))
    start, stop = ranges[cut]
    for outer in product(*(range(*r) for r in ranges[:cut])):
        base = origin + sum(i * step for i, step in zip(outer, of.strides, strict=False))
        for first in range(start, stop, most):
            count = min(most, stop - first)
            place = (*outer, slice(first, first + count), *inner, Ellipsis)
            offset = base + first * of.strides[cut]
            if cut >= run:
                width = count * below
                yield Piece(place, tuple(strides), offset, width, 1, width)
            else:
                width = lengths[run] * of.strides[run]
                yield Piece(place, tuple(strides), offset, width, count * rows_below, of.strides[run - 1])
