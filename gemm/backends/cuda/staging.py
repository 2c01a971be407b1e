"""Products of host operands on a GPU: copies in and out through page-locked memory, overlapped with the arithmetic.

Small operands are sent together: one copy in, one launch, one copy out. Large operands are sent panel by panel
(gemm.backends.cuda.panels). gemm computes each rectangle of out when its panels are on the device, and fetches the
rectangle when it is computed. If a product does not fit into the device's memory, gemm halves it and computes the
halves as products of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, cycle
from typing import Any

import numpy as np

from gemm.backends.cuda.driver import LEGACY_STREAM, cuda, follow
from gemm.backends.cuda.panels import LINE, Shape, Step, steps
from gemm.backends.cuda.pinned import SMALL, Channel, channels, copy
from gemm.backends.cuda.transfer import ALIGN, Transfers, block
from gemm.core.errors import KernelFailed
from gemm.core.operands import Cut, Range, Work, part
from gemm.core.problem import Device, DeviceView

_LEAST = 32 << 20  # bytes; a smaller product is not halved: if it does not fit, other users fill the device
_GRAIN = 256  # elements; an axis longer than 2 * _GRAIN is halved at a multiple of _GRAIN
_SENT = "a", "b", "c", "bias", "out"  # operands, in the order of their addresses on the device


Enqueue = Callable[[Work, int], None]
"""enqueue(work, stream) launches `work` on `stream` without waiting. c may be out itself. bias has out's shape, with
stride 0 along all axes except one."""


def stage(gpu: Any, enqueue: Enqueue, work: Work, *, cuts_k: bool) -> None:
    """Compute `work`, whose operands follow the rules of gemm.core.backend.Launch. a and b may be on the device.

    Args:
        gpu: the GPU. Its context must be current.
        enqueue: launches products of whole operands or of parts of them, with any strides.
        cuts_k: whether k may be cut if the device has too little memory. The sums of each part of k are then rounded
            to out's type. Set it only if nothing except c is added to the product.

    Raises:
        KernelFailed: out is undefined. If out is also c and was already written, the error's `spoilt` is set. Other
            inputs are unchanged.
    """
    out = work.out
    in_place = work.c is not None and np.may_share_memory(work.c, out)
    try:
        with channels(gpu).one() as channel:
            _Product(gpu, channel, enqueue, work.part({}), in_place).run()
        return
    except KernelFailed as error:
        channels(gpu).trim()
        axis = _halved(work, cuts_k) if error.memory and not error.spoilt else None
        if axis is None:
            raise
    if axis == out.ndim:
        _stage_along_k(gpu, enqueue, work, in_place)
        return
    for of in _halves(out.shape[axis]):
        try:
            stage(gpu, enqueue, work.part({axis: of}), cuts_k=cuts_k)
        except (KernelFailed, MemoryError) as error:
            if in_place and of[0] > 0:
                raise KernelFailed.of(error, spoilt=True) from error.__cause__
            raise


def _stage_along_k(gpu: Any, enqueue: Enqueue, work: Work, in_place: bool) -> None:
    """Compute the product of the first half of k, then add the product of the second half."""
    out, last = work.out, work.out.ndim - 1
    total = np.empty(out.shape, out.dtype) if in_place else out
    try:
        for of in _halves(work.a.shape[-1]):
            x, y = part(work.a, {last: of}), part(work.b, {last - 1: of})
            stage(gpu, enqueue, work._replace(a=x, b=y, out=total), cuts_k=True)
            work = work._replace(c=total, beta=1)
    except KernelFailed as error:
        error.spoilt = False  # only gemm's own temporary array was written
        raise
    if total is not out:
        np.copyto(out, total)


def _halves(length: int) -> tuple[Range, Range]:
    grain = _GRAIN if length > 2 * _GRAIN else 1
    middle = -(-length // (2 * grain)) * grain
    return (0, middle), (middle, length)


def _halved(work: Work, cuts_k: bool) -> int | None:
    """Return the axis of out to halve, or out.ndim for k.

    Returns None if the product cannot be cut, or if the product is so small that something else must have filled the
    device's memory.
    """
    a, b, out = work.a, work.b, work.out
    axes = int(out.ndim)
    if sum(block(x).nbytes for x in (a, b, out) if isinstance(x, np.ndarray) and x.size) < _LEAST:
        return None
    if axes > 2 and max(out.shape[:-2]) > 1:
        return int(np.argmax(out.shape[:-2]))
    (m, n), k = out.shape[-2:], a.shape[-1]
    if not _bound(b):
        if cuts_k and k > max(m, n):
            return axes
        if n > m:
            return axes - 1
    return axes - 2 if m > 1 else None


def _bound(x: Any) -> bool:
    """Return whether `x` is prepacked on the device and split into planes. Such an operand cannot be cut."""
    return bool(getattr(getattr(x, "owner", None), "planes", 0))


class _Product:
    """One product, with a Channel (streams, staging memory and copy thread) of its own."""

    def __init__(self, gpu: Any, channel: Channel, enqueue: Enqueue, work: Work, in_place: bool) -> None:
        self._gpu, self._channel, self._enqueue, self._work, self._in_place = gpu, channel, enqueue, work, in_place
        given = ((name, getattr(work, name)) for name in _SENT)
        self._host = {name: x for name, x in given if isinstance(x, np.ndarray) and x.size}
        self._blocks = {name: block(x, padded=name != "out") for name, x in self._host.items()}
        sizes = {name: of.nbytes for name, of in self._blocks.items()}
        if "c" in sizes and all(work.c.strides[axis] for axis in self._blocks["out"].axes):
            # c shares out's memory on the device. (If c repeats along an axis, it has its own memory and is sent once.)
            self._blocks["c"] = self._blocks["out"]
            del sizes["c"]
        *starts, self._bytes = accumulate((-(-size // ALIGN) * ALIGN for size in sizes.values()), initial=0)
        self._at: dict[str, int] = dict(zip(sizes, starts, strict=True))

    def run(self) -> None:
        """Compute the product; see `stage`."""
        if self._bytes <= SMALL:
            self._in_one_copy()
        else:
            self._panel_by_panel()

    def _place(self, name: str) -> int:
        """Return the offset of an operand's block in the product's device memory."""
        return self._at.get(name, self._at["out"])

    def _views(self, base: int) -> Work:
        """Return the operands as views of device memory that begins at `base`."""
        device = Device("cuda", f"cuda:{self._gpu.ordinal}", "", handle=self._gpu)
        views = {}
        for name in _SENT:
            x = getattr(self._work, name)
            if isinstance(x, np.ndarray):
                strides = self._blocks[name].whole if x.size else (0,) * x.ndim  # a and b have no elements if k = 0
                address = base + self._place(name) if x.size else 0
                views[name] = DeviceView(None, address, 0, x.shape, strides, x.dtype, device)
        return self._work._replace(**views)

    def _await(self, stream: int) -> None:
        """Make `stream` wait for unfinished work on operands that are already on the device."""
        for x in self._work:
            if isinstance(x, DeviceView):
                follow(stream, LEGACY_STREAM if x.queue is None else x.queue)

    def _in_one_copy(self) -> None:
        channel, stream = self._channel, self._channel.runs[0]
        slot = channel.small.take()
        try:
            staged = {}
            for name, of in self._blocks.items():
                host = of.on_host(self._host[name])
                staged[name] = slot.array(host.shape, of.strides, host.dtype, self._place(name)), host
            for name in staged.keys() - {"out"}:
                copy(*staged[name])
            last = self._at["out"]  # the operands to send are before out; c may share out's memory
            sent = self._bytes if "c" in staged and "c" not in self._at else last
            base = self._gpu.allocate(self._bytes, stream)
            try:
                self._await(stream)
                if sent:
                    cuda().cuMemcpyHtoDAsync(base, slot.address, sent, stream)
                self._enqueue(self._views(base), stream)
                cuda().cuMemcpyDtoHAsync(slot.address + last, base + last, self._blocks["out"].nbytes, stream)
            finally:
                self._gpu.free(base, stream)
            cuda().cuStreamSynchronize(stream)
            result, out = staged["out"]
            copy(out, result)
        finally:
            channel.small.give(slot)

    def _panel_by_panel(self) -> None:
        channel, transfers = self._channel, Transfers(self._channel)
        base = self._gpu.allocate(self._bytes, channel.up)
        try:
            self._await(channel.up)
            self._send_and_compute(transfers, base)
            transfers.catch_up()
            if self._in_place:  # copies to out overwrite c: first compute everything, so that a failure can be retried
                for stream in channel.runs:
                    cuda().cuStreamSynchronize(stream)
            transfers.advance(wait=True)
        except (KernelFailed, MemoryError) as error:
            if self._in_place and transfers.wrote:
                raise KernelFailed.of(error, spoilt=True) from error.__cause__
            raise
        finally:
            channel.settle()
            self._gpu.free(base, channel.up)

    def _send_and_compute(self, transfers: Transfers, base: int) -> None:
        """Send each panel, then launch the parts of out whose panels are all sent. Queue the copies of the results."""
        channel, views = self._channel, self._views(base)
        sent: set[tuple[str, tuple[Range, ...]]] = set()

        def send(name: str, cut: Cut) -> None:
            if name not in self._host or any(start == stop for start, stop in cut.values()):
                return
            of = self._blocks[name]
            if name == "bias" or (name == "c" and name in self._at):
                cut = {}  # send the whole operand: several parts of out share its elements
            if (key := (name, of.ranges(cut))) not in sent:
                sent.add(key)
                transfers.send(self._host[name], of, cut, base + self._place(name), advance=not self._in_place)

        def compute(job: Cut, stream: int) -> None:
            follow(stream, channel.up)
            self._enqueue(views.part(job), stream)
            transfers.fetch(self._host["out"], self._blocks["out"], job, base + self._at["out"], stream)

        runs = cycle(channel.runs)
        for step in self._steps():
            send("a", step.a)
            send("b", step.b)
            for job in step.jobs:
                send("c", job)
                send("bias", job)
                transfers.then(partial(compute, job, next(runs)))

    def _steps(self) -> list[Step]:
        out, a = self._work.out, self._work.a
        size = {name: x.dtype.itemsize for name, x in self._host.items()}
        m, n = out.shape[-2:]
        lines = {
            name: LINE // size[name] if name in size and self._blocks[name].axes[-1:] == (axis,) else 1
            for name, axis in (("a", out.ndim - 2), ("b", out.ndim - 1))
        }
        shape = Shape(
            m, n, a.shape[-1], size.get("a", 0), size.get("b", 0), size["out"], "c" in self._host,
            rate=_speed(self._gpu, a.dtype.kind, a.dtype.itemsize), units=self._gpu.units, fixed=_bound(self._work.b),
            rows=lines["a"], columns=lines["b"],
        )  # fmt: skip
        return steps(shape, out.shape[:-2])


def _speed(gpu: Any, kind: str, itemsize: int) -> float:
    """Return approximately how many multiply-adds `gpu` computes per second, for the model of panels.

    The rates of floats are those of an H200 in large products, scaled by multiprocessors and clock.
    """
    rates = {"f": {1: 4096, 2: 1024, 4: 99, 8: 112}, "c": {8: 32, 16: 16}, "V": {1: 4096, 2: 1024}}
    each_cycle = rates.get(kind, {1: 1024}).get(itemsize, 64)
    return float(gpu.units * each_cycle * gpu.facts["clock_khz"] * 1e3)
