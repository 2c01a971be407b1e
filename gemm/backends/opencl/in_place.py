"""Which device operands a kernel can read where they lie, and images over buffers for kernels that read images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.layout import Layout
from gemm.core.problem import DeviceView


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


def in_place(handle: Handle, view: DeviceView, layout: Layout) -> tuple[Any, int] | None:
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
