"""The layout of host operands in device memory, and the pieces in which gemm transfers them. No driver calls.

A host array of any strides becomes a `Block` in device memory. A Block keeps the array's own order of axes in memory,
so that copying reads host memory sequentially. Axes that repeat (stride 0) are transferred once. Rows are padded to
multiples of 16 bytes, because the copy engine TMA requires this.
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
"""The alignment of operands on the device, in bytes. cuMemAlloc has the same alignment."""
_ROW = 16  # rows are padded to a multiple of this many bytes
_PADDED_FROM = 16 * _ROW  # bytes; shorter rows get no padding, which could be most of their memory


@dataclass(frozen=True)
class Block:
    """The layout of an array in device memory. Offsets start at 0.

    Attributes:
        axes: the array's axes in memory order, outermost first, without axes that repeat or have length 1.
        shape: the lengths of `axes`.
        strides: the byte strides of `axes`. The innermost stride is the element size.
        whole: byte strides of all axes of the array: 0 for an axis that repeats, the block's size (rounded up to 16
            bytes) for an axis of length 1.
        nbytes: the size in bytes, padding included.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    nbytes: int

    def on_host(self, array: np.ndarray) -> np.ndarray:
        """Return a view of `array` with the block's axes. `array` must have the shape for which the block was made."""
        left_out = [axis for axis in range(array.ndim) if axis not in self.axes]
        turned = array.transpose(*left_out, *self.axes)
        found: np.ndarray = turned[(0,) * len(left_out) + (Ellipsis,)]
        return found

    def ranges(self, cut: Cut) -> tuple[Range, ...]:
        """Return the index range of each of the block's axes for the part `cut` of the array."""
        return tuple(cut.get(axis, (0, n)) for axis, n in zip(self.axes, self.shape, strict=True))


def block(array: np.ndarray, *, padded: bool = True) -> Block:
    """Return the Block of `array`, which must have at least one element.

    A Block for results must not be `padded`: the copy to the host would read the padding, which is uninitialised.
    """
    return _lay(array.shape, array.strides, array.dtype.itemsize, padded)


@lru_cache(maxsize=1024)
def _lay(sizes: tuple[int, ...], along: tuple[int, ...], itemsize: int, padded: bool) -> Block:
    """Return the Block of an array with the shape `sizes` and the strides `along`."""
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
    """A part of a block that one copy transfers, through `width * rows` bytes of staging memory.

    Attributes:
        place: the index that selects the piece in the array returned by Block.on_host.
        strides: byte strides of the piece's elements in staging memory.
        offset: bytes from the beginning of the block to the piece.
        width: bytes of a row.
        rows: the number of rows.
        pitch: bytes from one row to the next on the device. In staging memory, rows follow each other without gaps.
    """

    place: tuple[Any, ...]
    strides: tuple[int, ...]
    offset: int
    width: int
    rows: int
    pitch: int


def pieces(of: Block, ranges: Sequence[Range], limit: int) -> Iterator[Piece]:
    """Yield the part `ranges` of a block in pieces of at most `limit` bytes.

    Only one axis is cut into several ranges. The axis is chosen so that there are as few pieces as possible.
    """
    if not of.shape:
        yield Piece((Ellipsis,), (), 0, of.nbytes, 1, of.nbytes)
        return
    lengths = [stop - start for start, stop in ranges]
    whole = [n == length for n, length in zip(of.shape, lengths, strict=True)]
    run = len(whole) - 1  # the outermost axis along which the part is contiguous
    while run > 0 and whole[run]:
        run -= 1
    cut, below = run, of.strides[run]  # the axis to cut; bytes in staging memory of one index along the axis
    while cut < len(whole) - 1 and below > limit:
        cut += 1
        below = of.strides[cut]
    while 0 < cut <= run and (cut == run or whole[cut]) and lengths[cut] * below <= limit:
        below *= lengths[cut]
        cut -= 1
    most = max(1, limit // below)
    inner = [slice(start, stop) for start, stop in ranges[cut + 1 :]]
    strides = list(of.strides[cut:])
    for axis in range(min(run, len(whole)) - 1, cut - 1, -1):  # no gaps between rows in staging memory
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
