"""Parts of operands in blocks on several GPUs, fetched to the one that needs them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from gemm.backends.cuda_blocks import lay
from gemm.backends.cuda_peers import connect, copy
from gemm.errors import KernelFailed
from gemm.operands import Cut, Spread, part
from gemm.problem import Device, DeviceView


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
