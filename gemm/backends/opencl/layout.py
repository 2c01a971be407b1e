"""Operand layouts: which layouts OpenCL kernels require, which device operands they can read in place, and how to cut
a product so that it fits a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gemm.core.problem import DeviceView, Ints, Operand


@dataclass(frozen=True)
class Layout:
    """The layout that a kernel requires of an operand.

    Attributes:
        rows, cols: each matrix is padded to multiples of `rows` and `cols`.
        channels: the number of channels of an image's texel, 1 or 4; 0 for a buffer.
        bits: whether the image's texels are integers with the bits of the floats. A device may flush or change floats,
            but not integers.
        panel: the number of columns of a panel. The matrix is stored as panels, one after the other, each row-major. 0
            means that the whole matrix is row-major.
        depth: in a panel, `depth` successive elements of a column are adjacent, and form a word.
        blocks: whether messages read blocks of rows. Matrices then begin at multiples of 64 bytes, and rows at
            multiples of 16 bytes.
        turned: whether memory contains the transpose of each matrix. All other attributes describe the transpose.
        strided: whether the kernel reads buffers with any strides. If so, device operands are used in place.
        pad: the value of the padding, -0.0 for A and +0.0 for B. Along k, their product is -0.0, which leaves every
            sum unchanged. Adding +0.0 would change a sum of -0.0 (from a product that underflowed) to +0.0.
    """

    rows: int = 1
    cols: int = 1
    channels: int = 0
    bits: bool = False
    panel: int = 0
    depth: int = 1
    blocks: bool = False
    turned: bool = False
    strided: bool = False
    pad: float = 0.0

    def padded(self, rows: int, cols: int) -> tuple[int, int]:
        return -(-rows // self.rows) * self.rows, -(-cols // self.cols) * self.cols


_PITCH = 1 << 22
"""The maximum row stride, in elements. Kernels use 32-bit byte offsets within the rows of a tile."""
MOST = 1 << 31
"""The limit on an operand's extent in elements, gaps between rows included. It does not apply to operands that a kernel
reads with any strides (Layout.strided)."""

PACKED = Layout()
STRIDED = Layout(strided=True)

ALIGNED = 64
"""The greatest alignment, in bytes, that a kernel requires of an operand in place: see `fits`."""

_GROUPS = 65535  # every driver supports this number of work-groups along the second and the third axis


def layouts(params: Mapping[str, int], ordered: bool) -> tuple[Layout, Layout]:
    """Return the layouts of A and B that the lower-case parameters of a kernel (Kernel.params) describe.

    Without such parameters, the kernel reads strided buffers. Images contain integers (see Layout.bits) if accumulation
    is `ordered` or if the kernel has the parameter bits=1.
    """

    def layout(name: str, pad: float) -> Layout:
        rows, cols, channels = (params.get(f"{name}_{what}", 0) for what in ("rows", "cols", "channels"))
        bits = bool(channels) and bool(ordered or params.get("bits"))
        panel, depth = params.get(f"{name}_panel", 0), params.get(f"{name}_depth", 1)
        blocks, turned = (bool(params.get(f"{name}_{what}")) for what in ("blocks", "turned"))
        return Layout(rows or 1, cols or panel or 1, channels, bits, panel, depth, blocks, turned, not rows, pad)

    return layout("a", -0.0), layout("b", 0.0)


def stacked(operand: Operand, lengths: Ints, steps: Ints) -> Operand:
    """Return `operand` as a stack with batch axes of the given lengths and byte strides (`steps`).

    The batch axes are the operand's own, possibly merged.
    """
    if len(lengths) == operand.ndim - 2 and steps == operand.strides[:-2]:
        return operand
    shape, strides = (*lengths, *operand.shape[-2:]), (*steps, *operand.strides[-2:])
    if isinstance(operand, DeviceView):
        return replace(operand, shape=shape, strides=strides)
    first = operand[(0,) * (operand.ndim - 2)]
    return np.lib.stride_tricks.as_strided(first, shape, strides)


def part(operand: Operand, index: Ints, batch: slice, rows: slice, cols: slice) -> Operand:
    """Return a part of a stack as an operand with the axes (batch, rows, cols).

    `index` selects along all batch axes but the last, and `batch` is the slice of the last batch axis. Each selected
    matrix is cut to `rows` and `cols`. If the stride of the last batch axis is 0, its matrices are the same, and the
    result has only one of them.
    """
    if operand.strides[len(index)] == 0:
        batch = slice(0, 1)
    if not isinstance(operand, DeviceView):
        key: tuple[int | slice, ...] = (*index, batch, rows, cols)
        return operand[key]
    starts = (*index, batch.start, rows.start, cols.start)
    offset = operand.offset + sum(at * step for at, step in zip(starts, operand.strides, strict=True))
    shape = tuple(cut.stop - cut.start for cut in (batch, rows, cols))
    return replace(operand, offset=offset, shape=shape, strides=operand.strides[len(index) :])


@dataclass(frozen=True)
class Staged:
    """An operand in the memory from which the product's kernel reads it: a buffer or an image (`data`).

    `offset` and `strides` (batch, row, column) are in elements. For an image, only the batch stride counts: the number
    of image rows from one matrix to the next, or 0 if all products use the same matrix.
    """

    data: Any
    image: bool
    offset: int
    strides: tuple[int, int, int]

    @property
    def args(self) -> tuple[Any, ...]:
        batch, row, col = self.strides
        if self.image:
            return self.data, np.int32(batch)
        return self.data, np.array((self.offset, row, col, batch), np.int64)


@dataclass(frozen=True)
class Tile:
    """The part of a product that one launch computes."""

    m: int
    n: int
    k: int
    batch: int

    def corners(self, batch: int, m: int, n: int) -> Iterator[tuple[slice, slice, slice]]:
        """Yield the tiles of `batch` results of m x n: (matrices, rows, columns) of each tile."""
        for z, i, j in product(range(0, batch, self.batch), range(0, m, self.m), range(0, n, self.n)):
            yield slice(z, min(z + self.batch, batch)), slice(i, min(i + self.m, m)), slice(j, min(j + self.n, n))


@lru_cache(256)
def tile(
    whole: tuple[int, int, int], slabs: tuple[tuple[Layout, str, str], ...], itemsize: int, image: tuple[int, int],
    nbytes: int,
) -> Tile:  # fmt: skip
    """Return the largest tile whose staged operands stay within the device's limits.

    Args:
        whole: (m, n, k) of the product.
        slabs: (layout, rows, cols) of each operand that is staged. rows and cols are "m", "n" or "k".
        itemsize: bytes of an element.
        image: the greatest width and height of an image, in texels.
        nbytes: the maximum size of one staged operand, in bytes.
    """
    m, n, k = whole
    size = {"m": m, "n": min(n, _PITCH), "k": min(k, _PITCH)}
    grain = {"m": 1, "n": 1, "k": 1}
    for layout, rows, cols in slabs:
        grain[rows], grain[cols] = max(grain[rows], layout.rows), max(grain[cols], layout.cols)

    def cap(axis: str, most: int) -> None:
        size[axis] = min(size[axis], max(grain[axis], most // grain[axis] * grain[axis]))

    cap("m", _GROUPS)
    for layout, rows, cols in slabs:
        if layout.channels:
            cap(rows, image[1])
            cap(cols, image[0] * layout.channels)
        while prod(layout.padded(size[rows], size[cols])) * itemsize > nbytes:
            longer = max((rows, cols), key=lambda axis: size[axis] / grain[axis])
            if size[longer] <= grain[longer]:
                break
            cap(longer, -(-size[longer] // 2))
    batch = _GROUPS
    for layout, rows, cols in slabs:
        high, wide = layout.padded(size[rows], size[cols])
        if layout.channels:
            batch = min(batch, image[1] // max(1, high))
        batch = min(batch, nbytes // max(1, high * wide * itemsize))
    return Tile(size["m"], size["n"], size["k"], max(1, batch))


@dataclass(frozen=True, eq=False)
class HostMemory:
    """The owner of views of host memory that a device may access during one call; see the module `mapped`.

    Attributes:
        rows, cols: rows and columns of each matrix in that memory, or 0 if they are not known.
        tall, wide: rows and columns with padding. The padding is -0.0 to the right of a matrix and +0.0 below it.
            Layout.pad requires these values along k, whether the matrix is read as A or as B.
        events: always empty. The call's queue runs in order, and the call waits until all its commands have ended.
    """

    rows: int = 0
    cols: int = 0
    tall: int = 0
    wide: int = 0
    events: tuple[()] = ()

    def add_event(self, event: Any) -> None:
        return

    def covers(self, view: DeviceView, tall: int, wide: int) -> bool:
        """Return whether there is enough padding around the matrices of `view` to read them as `tall` x `wide`."""
        itemsize = view.dtype.itemsize
        pitch = self.wide * itemsize
        if not pitch or view.strides[-2] != pitch:
            return False
        row, within = divmod(view.offset % (self.tall * pitch), pitch)
        ends = (row + view.shape[-2], self.rows, self.tall, tall - view.shape[-2]), (
            within // itemsize + view.shape[-1], self.cols, self.wide, wide - view.shape[-1])  # fmt: skip
        return all(not missing or (end == last and missing <= total - last) for end, last, total, missing in ends)


def fits(view: DeviceView, layout: Layout) -> bool:
    """Return whether the matrices of `view`, with the padding around them in memory, have the required `layout`."""
    shape, itemsize = view.shape[-2:], view.dtype.itemsize
    padded = layout.padded(*shape)
    # If memory contains the transpose (`turned`), k is the other axis. The zeros in the padding of HostMemory then have
    # the wrong sign.
    padding_fits = isinstance(view.owner, HostMemory) and not layout.turned and view.owner.covers(view, *padded)
    if padded != shape and not padding_fits:
        return False
    if layout.strided:
        return True
    count, batch = (view.shape[0], view.strides[-3] // itemsize) if view.ndim > 2 else (1, 0)
    offset, row, col = (nbytes // itemsize for nbytes in (view.offset, *view.strides[-2:]))
    if layout.panel or col != 1 or row < 1:
        return False
    if layout.blocks:
        base, step = max(1, ALIGNED // itemsize), max(1, 16 // itemsize)
        if row < padded[1]:  # rows that overlap
            return False
    else:
        base = step = min(layout.cols, 4)  # elements that a kernel loads at a time
    last = offset + (count - 1) * abs(batch) + (padded[0] - 1) * row + padded[1] - 1
    return not (offset % base or row % step or batch % base) and row <= _PITCH and last < MOST


def in_place(handle: Any, view: DeviceView, layout: Layout) -> Staged | None:
    """Return the buffer, or an image over it, from which a kernel with `layout` can read `view` without a copy.

    `view` has the axes (batch, rows, cols). Returns None if a copy is necessary.
    """
    import pyopencl as cl

    if not view.size or not fits(view, layout):
        return None
    if not layout.channels:
        offset, batch, row, col = (nbytes // view.dtype.itemsize for nbytes in (view.offset, *view.strides))
        return Staged(view.data, False, offset, (batch, row, col))
    pitch, base = handle.image_alignment
    batch, row, _ = view.strides
    texel = layout.channels * view.dtype.itemsize
    tall, wide = layout.padded(*view.shape[1:])
    rows, rest = divmod(batch, row) if view.shape[0] > 1 and row > 0 else (0, 0)
    if not pitch or not isinstance(view.data, cl.Buffer) or row < wide * view.dtype.itemsize or row % (pitch * texel):
        return None
    if rest or rows < 0 or 0 < rows < tall:
        return None
    height = (view.shape[0] - 1) * rows + tall
    if view.offset % base or view.offset + height * row > view.data.size:
        return None
    try:
        memory = view.data.get_sub_region(view.offset, height * row) if view.offset else view.data
        kind = layout.channels, view.dtype.itemsize, layout.bits
        image = handle.image(kind, wide // layout.channels, height, memory, row)
    except cl.Error:  # for example, the caller's buffer is itself a sub-buffer
        return None
    return Staged(image, True, 0, (rows, 0, 0))
