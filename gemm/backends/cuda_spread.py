"""Matrices in blocks on several GPUs, and parts of them fetched to the one that needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from gemm.backends.cuda_blocks import Cut, lay, part
from gemm.backends.cuda_peers import connect, copy
from gemm.errors import KernelFailed
from gemm.problem import Device, DeviceView


@dataclass(frozen=True)
class Spread:
    """A matrix in blocks, each on a GPU; or a stack that is one block.

    Attributes:
        rows, columns: 0 and the ends of the blocks along each axis. blocks: [row][column].
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    blocks: tuple[tuple[DeviceView, ...], ...]

    @classmethod
    def of(cls, view: DeviceView) -> Spread:
        """All of it in one block."""
        return cls((0, view.shape[-2]), (0, view.shape[-1]), ((view,),))

    @property
    def all(self) -> list[DeviceView]:
        """The blocks."""
        return [block for row in self.blocks for block in row]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.blocks[0][0].shape[:-2], self.rows[-1], self.columns[-1])

    @property
    def mT(self) -> Spread:
        """Transposed, in place."""
        turned = tuple(tuple(block.mT for block in column) for column in zip(*self.blocks, strict=True))
        return Spread(self.columns, self.rows, turned)

    def pieces(self, cut: Cut) -> Iterator[tuple[DeviceView, Cut]]:
        """What each block has of the part `cut`, and where that is in the part."""
        down, across = len(self.shape) - 2, len(self.shape) - 1
        of = [
            [(at, max(low, first), min(high, last)) for at, (low, high) in enumerate(pairwise(ends))]
            for ends, (first, last) in ((x, cut.get(axis, (0, x[-1])))
            for axis, x in ((down, self.rows), (across, self.columns)))
        ]  # fmt: skip
        outer = {axis: r for axis, r in cut.items() if axis < down}
        top, left = (cut.get(axis, (0, 0))[0] for axis in (down, across))
        for i, r0, r1 in of[0]:
            for j, c0, c1 in of[1]:
                if r0 < r1 and c0 < c1:
                    y, x = self.rows[i], self.columns[j]
                    own = part(self.blocks[i][j], outer | {down: (r0 - y, r1 - y), across: (c0 - x, c1 - x)})
                    yield own, {down: (r0 - top, r1 - top), across: (c0 - left, c1 - left)}

    def on(self, device: Device, cut: Cut) -> DeviceView | None:
        """The part `cut` if all of it lies in one block on `device`, else None."""
        found = [view for view, _ in self.pieces(cut)]
        return found[0] if len(found) == 1 and found[0].device.handle is device.handle else None

    def like(self, cut: Cut) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the part `cut`, and strides of some array of that shape in the blocks' order of axes."""
        shape = tuple(cut[axis][1] - cut[axis][0] if axis in cut else n for axis, n in enumerate(self.shape))
        return shape, self.blocks[0][0].strides


class Room:
    """A part of an operand on the GPU that needs it: where it lies, if it lies there, else memory for a copy.

    Attributes:
        view: the part, on `stream`. own: it is a copy.
    """

    def __init__(self, of: Spread, cut: Cut, device: Device, stream: int, *, since: int) -> None:
        """`since`: the stream that its memory is for first."""
        self._of, self._cut, self._gpu, self._base = of, cut, device.handle, 0
        found = of.on(device, cut)
        self.own = found is None
        if found is not None:
            self.view = replace(found, queue=stream)
            return
        (shape, steps), dtype = of.like(cut), of.blocks[0][0].dtype
        strides = (0,) * len(shape)
        offset = 0
        if 0 not in shape:
            lies = lay(shape, steps, dtype.itemsize, True)
            self._base = int(self._gpu.allocate(lies.nbytes, since))
            signs = [-1 if step < 0 and n > 1 else 1 for step, n in zip(steps, shape, strict=True)]
            strides = tuple(sign * step for sign, step in zip(signs, lies.whole, strict=True))
            offset = sum(-step * (n - 1) for step, n in zip(strides, shape, strict=True) if step < 0)
        self.view = DeviceView(None, self._base, offset, shape, strides, dtype, device, stream)

    def fetch(self, cut: Cut, stream: int) -> None:
        """Enqueue copies of the part `cut` of this part; those of different GPUs begin with different ones."""
        if not self.own:
            return
        beyond = {axis: (first + self._start(axis), last + self._start(axis)) for axis, (first, last) in cut.items()}
        found, mine = list(self._of.pieces(self._cut | beyond)), self._gpu.ordinal
        for view, at in sorted(found, key=lambda piece: (piece[0].device.handle.ordinal - mine) % 64):
            connect(self._gpu, view.device.handle)
            copy(part(part(self.view, cut), at), view, stream)

    def _start(self, axis: int) -> int:
        return self._cut.get(axis, (0, 0))[0]

    def give(self, to: DeviceView, cut: Cut, stream: int) -> None:
        """Enqueue a copy of the part `cut` of this part to the same one of `to`, its original."""
        connect(self._gpu, to.device.handle)
        copy(part(to, cut), part(self.view, cut), stream)

    def free(self, stream: int) -> None:
        """Give the memory back, after what `stream` holds."""
        if self._base:
            with suppress(KernelFailed):  # of a context that died
                self._gpu.free(self._base, stream)
            self._base = 0
