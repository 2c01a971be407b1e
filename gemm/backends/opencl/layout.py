"""What OpenCL kernels ask of their operands, which device operands they can read where they lie, and how a product is
cut to fit a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gemm.core.problem import DeviceView, Operand


@dataclass(frozen=True)
class Layout:
    """What a kernel asks of an operand.

    Attributes:
        rows, cols: each matrix is padded to multiples of these.
        channels: floats a texel of an image, 1 or 4; 0 for a buffer.
        bits: the image's texels are the floats' bits as integers, which nothing may flush or change.
        turned: what lies in memory, and all of the above speaks of, is the transpose of each matrix.
        panel: columns of a panel; a matrix is then its panels, each row-major, one after the other. 0: row-major.
        strided: the kernel reads any strides of a buffer, so that device operands stay where they are.
        pad: what lies outside of the matrix. Along K, A's -0.0 times B's +0.0 is -0.0, which leaves every sum as it
            is; +0.0 would turn a sum of -0.0 (a product that underflowed) into +0.0.
    """

    rows: int = 1
    cols: int = 1
    channels: int = 0
    bits: bool = False
    panel: int = 0
    turned: bool = False
    strided: bool = False
    pad: float = 0.0

    def padded(self, rows: int, cols: int) -> tuple[int, int]:
        return -(-rows // self.rows) * self.rows, -(-cols // self.cols) * self.cols

    def suits(self, shape: tuple[int, ...], offset: int, strides: tuple[int, int, int]) -> bool:
        """Whether a kernel can read a buffer's (batch, rows, cols) where they are; offset and strides in elements."""
        if self.strided:
            return True
        batch, row, col = strides
        if self.channels or self.panel or col != 1 or row < 1 or self.padded(*shape[1:]) != shape[1:]:
            return False
        vector = min(self.cols, 4)  # kernels load so many at once, and count elements by 32 bits
        last = offset + sum((length - 1) * abs(step) for length, step in zip(shape, strides, strict=True))
        return not (offset % vector or row % vector or batch % vector) and row <= _PITCH and last < MOST


_PITCH = 1 << 22
"""Elements from a row to the next: kernels count the bytes of a tile's rows by 32 bits."""
MOST = 1 << 31
"""Elements that an operand of a kernel which does not take any strides may span."""

PACKED = Layout()
STRIDED = Layout(strided=True)

_GROUPS = 65535  # as many work-groups as every driver takes along the second and third axis


def layouts(params: Mapping[str, int], ordered: bool) -> tuple[Layout, Layout]:
    """What a row's lowercase parameters say of A and B; without any, the kernel reads strided buffers.

    The images of an ORDERED kernel hold integers (see Layout.bits), as do those of a row with bits=1.
    """

    def layout(name: str, pad: float) -> Layout:
        rows, cols, channels = (params.get(f"{name}_{what}", 0) for what in ("rows", "cols", "channels"))
        bits = bool(channels) and bool(ordered or params.get("bits"))
        panel, turned = params.get(f"{name}_panel", 0), bool(params.get(f"{name}_turned"))
        return Layout(rows or 1, panel or cols or 1, channels, bits, panel, turned, strided=not rows, pad=pad)

    return layout("a", -0.0), layout("b", 0.0)


def stacked(operand: Operand, lengths: tuple[int, ...], steps: tuple[int, ...]) -> Operand:
    """`operand`'s matrices as a stack of these lengths and byte strides (its own axes, merged)."""
    if len(lengths) == operand.ndim - 2 and steps == operand.strides[:-2]:
        return operand
    shape, strides = (*lengths, *operand.shape[-2:]), (*steps, *operand.strides[-2:])
    if isinstance(operand, DeviceView):
        return replace(operand, shape=shape, strides=strides)
    first = operand[(0,) * (operand.ndim - 2)]
    return np.lib.stride_tricks.as_strided(first, shape, strides)


def part(operand: Operand, index: tuple[int, ...], batch: slice, rows: slice, cols: slice) -> Operand:
    """Matrices `batch` of the stack at `index`, cut to `rows` and `cols`: (batch, rows, cols); a repeated one once."""
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
class Tile:
    """How much of a product one launch computes."""

    m: int
    n: int
    k: int
    batch: int

    def corners(self, batch: int, m: int, n: int) -> Iterator[tuple[slice, slice, slice]]:
        """The tiles of `batch` m by n results: matrices, rows and columns of each."""
        for z, i, j in product(range(0, batch, self.batch), range(0, m, self.m), range(0, n, self.n)):
            yield slice(z, min(z + self.batch, batch)), slice(i, min(i + self.m, m)), slice(j, min(j + self.n, n))


@lru_cache(maxsize=256)
def tile(
    m: int, n: int, k: int, slabs: tuple[tuple[Layout, str, str], ...], itemsize: int,
    image: tuple[int, int], nbytes: int,
) -> Tile:  # fmt: skip
    """The largest tile whose staged operands respect the device's limits.

    Args:
        m, n, k: the whole product.
        slabs: (layout, rows, cols) of each operand that is staged, rows and cols named by "m", "n" or "k".
        itemsize: bytes an element.
        image: the most texels along a row, and rows, of an image.
        nbytes: the most that one staged operand may take.
    """
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
class Loan:
    """Owns a view of host memory that is lent to a device for one call; see opencl_mapped.

    Attributes:
        rows, cols: of each matrix in that memory. tall, wide: the same with its padding, which is -0.0 beside a matrix
            and +0.0 below it: what Layout.pad asks for along K, whether it is read as A or as B. 0: not known.
        events: none; the call's queue runs in order, and its end waits for it.
    """

    rows: int = 0
    cols: int = 0
    tall: int = 0
    wide: int = 0
    events: tuple[()] = ()

    def add_event(self, event: Any) -> None:
        return

    def covers(self, view: DeviceView, tall: int, wide: int) -> bool:
        """Whether the padding around `view`'s matrices makes them of `tall` x `wide`."""
        itemsize = view.dtype.itemsize
        pitch = self.wide * itemsize
        if not pitch or view.strides[-2] != pitch:
            return False
        row, within = divmod(view.offset % (self.tall * pitch), pitch)
        ends = (row + view.shape[-2], self.rows, self.tall, tall - view.shape[-2]), (
            within // itemsize + view.shape[-1], self.cols, self.wide, wide - view.shape[-1])  # fmt: skip
        return all(not missing or (end == last and missing <= room - last) for end, last, room, missing in ends)


def fits(view: DeviceView, layout: Layout) -> bool:
    """Whether `view`'s matrices lie as `layout` asks, be it with the padding around them."""
    shape, itemsize = view.shape[-2:], view.dtype.itemsize
    padded = layout.padded(*shape)
    # Of a turned matrix K lies the other way: what a Loan has below it is not what A asks for.
    lent = isinstance(view.owner, Loan) and not layout.turned and view.owner.covers(view, *padded)
    if padded != shape and not lent:
        return False
    batch = view.strides[-3] if view.ndim > 2 else 0
    steps = batch // itemsize, view.strides[-2] // itemsize, view.strides[-1] // itemsize
    matrices = view.shape[0] if view.ndim > 2 else 1
    return replace(layout, channels=0).suits((matrices, *padded), view.offset // itemsize, steps)


def in_place(handle: Any, view: DeviceView, layout: Layout) -> tuple[Any, int] | None:
    """The buffer, or an image over it, in which a kernel reads (batch, rows, cols) `view` in `layout` without a copy.

    With an image come the rows that a matrix has in it (0: there is one). None where a copy is needed.
    """
    import pyopencl as cl

    if not fits(view, layout):
        return None
    if not layout.channels:
        return view.data, 0
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
        return handle.image(kind, wide // layout.channels, height, memory, row), rows
    except cl.Error:  # the caller's buffer is a part of another one, say
        return None
