"""Products of host operands on a GPU: copies in and out through page-locked memory, overlapped with the arithmetic.

Small operands travel together: one copy in, one launch, one copy out. Large ones are sent panel by panel
(gemm.backends.cuda.panels); each rectangle of out is computed as soon as its panels are there, and fetched as soon as
it is computed. What does not fit into the device's memory is halved, and the halves are products of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, cycle
from typing import Any

import numpy as np

from gemm.backends.cuda.api import LEGACY_STREAM, cuda
from gemm.backends.cuda.host_blocks import ALIGN, block
from gemm.backends.cuda.panels import LINE, Shape, Step, steps
from gemm.backends.cuda.pinned import Lane, copy, lanes
from gemm.backends.cuda.transfer import Travel
from gemm.core.errors import KernelFailed
from gemm.core.operands import Cut, Range, Work, part
from gemm.core.problem import Device, DeviceView

TOGETHER = 4 << 20
"""Bytes of operands, all in all, up to which they travel together: panels hide half of the copies at best, some 0.05 ms
at 40 GB/s, and cost as much for threads and driver."""
_LEAST = 32 << 20  # bytes of a product that is not worth halving: whatever has the memory is larger
_GRAIN = 256  # halves begin at multiples of it
_SENT = "a", "b", "c", "bias", "out"  # in the order of their places on the device


Enqueue = Callable[[Work, int], None]
"""enqueue(work, stream) launches `work` without waiting. c may be out itself; bias has out's shape, and repeats along
all of its axes except one."""


def stage(gpu: Any, enqueue: Enqueue, work: Work, *, cuts_k: bool) -> None:
    """Compute `work`, whose operands are as Launch has them; a and b may lie on the device already.

    Args:
        gpu: its context is current. enqueue: gets whole operands or parts of them, of any strides.
        cuts_k: where there is no room, sums may be cut along k, with their parts rounded to out's type: nothing else
            than c is added to them.

    Raises:
        KernelFailed: out is undefined, and `spoilt` if it is c too and was written already. Inputs are untouched.
    """
    out = work.out
    in_place = work.c is not None and np.may_share_memory(work.c, out)
    try:
        with lanes(gpu).one() as lane:
            _Product(gpu, lane, enqueue, work.part({}), in_place).run()
        return
    except KernelFailed as error:
        lanes(gpu).trim()
        axis = _halved(work, cuts_k) if error.memory and not error.spoilt else None
        if axis is None:
            raise
    if axis == out.ndim:
        _stage_along_k(gpu, enqueue, work, in_place)
        return
    for of in _halves(out.shape[axis]):
        try:
            stage(gpu, enqueue, work.part({axis: of}), cuts_k=cuts_k)
        except KernelFailed as error:
            error.spoilt |= in_place and of[0] > 0
            raise


def _stage_along_k(gpu: Any, enqueue: Enqueue, work: Work, in_place: bool) -> None:
    """The products of both halves of k, the second added to the first."""
    out, last = work.out, work.out.ndim - 1
    total = np.empty(out.shape, out.dtype) if in_place else out
    try:
        for of in _halves(work.a.shape[-1]):
            x, y = part(work.a, {last: of}), part(work.b, {last - 1: of})
            stage(gpu, enqueue, work._replace(a=x, b=y, out=total), cuts_k=True)
            work = work._replace(c=total, beta=1)
    except KernelFailed as error:
        error.spoilt = False  # what is, are sums of our own
        raise
    if total is not out:
        np.copyto(out, total)


def _halves(length: int) -> tuple[Range, Range]:
    grain = _GRAIN if length > 2 * _GRAIN else 1
    middle = -(-length // (2 * grain)) * grain
    return (0, middle), (middle, length)


def _halved(work: Work, cuts_k: bool) -> int | None:
    """The axis of out to halve, out.ndim for k; None for a product so small that others must have the memory."""
    a, b, out = work.a, work.b, work.out
    axes = int(out.ndim)
    if sum(block(x).nbytes for x in (a, b, out) if isinstance(x, np.ndarray) and x.size) < _LEAST:
        return None
    if axes > 2 and max(out.shape[:-2]) > 1:
        return int(np.argmax(out.shape[:-2]))
    (m, n), k = out.shape[-2:], a.shape[-1]
    if not _bound(b) and not _bound(a):
        if cuts_k and k > max(m, n):
            return axes
        if n > m:
            return axes - 1
    return axes - 2 if m > 1 and not _bound(a) else None


def _bound(x: Any) -> bool:
    """Whether it lies on the device in a form of its own, which is not to be cut."""
    return bool(getattr(getattr(x, "owner", None), "planes", 0))


class _Product:
    """One product on a lane of its own."""

    def __init__(self, gpu: Any, lane: Lane, enqueue: Enqueue, work: Work, in_place: bool) -> None:
        self._gpu, self._lane, self._enqueue, self._work, self._in_place = gpu, lane, enqueue, work, in_place
        given = ((name, getattr(work, name)) for name in _SENT)
        self._host = {name: x for name, x in given if isinstance(x, np.ndarray) and x.size}
        self._blocks = {name: block(x, padded=name != "out") for name, x in self._host.items()}
        apart = {name: of.nbytes for name, of in self._blocks.items()}
        if "c" in apart and all(work.c.strides[axis] for axis in self._blocks["out"].axes):
            self._blocks["c"] = self._blocks["out"]  # where out will be; else c repeats, and is sent once
            del apart["c"]
        *starts, self._bytes = accumulate((-(-size // ALIGN) * ALIGN for size in apart.values()), initial=0)
        self._at: dict[str, int] = dict(zip(apart, starts, strict=True))

    def run(self) -> None:
        """See `stage`."""
        if self._bytes <= TOGETHER:
            self._together()
        else:
            self._panel_by_panel()

    def _place(self, name: str) -> int:
        """Where an operand's block begins."""
        return self._at.get(name, self._at["out"])

    def _views(self, base: int) -> Work:
        """The operands as they lie in memory at `base`."""
        device = Device("cuda", f"cuda:{self._gpu.ordinal}", "", handle=self._gpu)
        views = {}
        for name in _SENT:
            x = getattr(self._work, name)
            if isinstance(x, np.ndarray):
                strides = self._blocks[name].whole if x.size else (0,) * x.ndim  # of no elements: k = 0
                address = base + self._place(name) if x.size else 0
                views[name] = DeviceView(None, address, 0, x.shape, strides, x.dtype, device)
        return self._work._replace(**views)

    def _await(self, stream: int) -> None:
        """Let `stream` wait for operands that lie on the device."""
        for x in self._work:
            if isinstance(x, DeviceView):
                self._lane.follow(stream, LEGACY_STREAM if x.queue is None else x.queue)

    def _together(self) -> None:
        stream, (memory, address) = self._lane.runs[0], self._lane.small(TOGETHER)
        held = {}
        for name, of in self._blocks.items():
            host = of.on_host(self._host[name])
            held[name] = np.ndarray(host.shape, host.dtype, memory, self._place(name), of.strides), host
        for name in held.keys() - {"out"}:
            copy(*held[name])
        last = self._at["out"]  # what is sent lies before it, unless c is in its place
        sent = self._bytes if "c" in held and "c" not in self._at else last
        base = self._gpu.allocate(self._bytes, stream)
        try:
            self._await(stream)
            if sent:
                cuda().cuMemcpyHtoDAsync(base, address, sent, stream)
            self._enqueue(self._views(base), stream)
            cuda().cuMemcpyDtoHAsync(address + last, base + last, self._blocks["out"].nbytes, stream)
        finally:
            self._gpu.free(base, stream)
        cuda().cuStreamSynchronize(stream)
        self._lane.rest()
        staged, host = held["out"]
        copy(host, staged)

    def _panel_by_panel(self) -> None:
        lane, travel = self._lane, Travel(self._lane)
        base = self._gpu.allocate(self._bytes, lane.up)
        try:
            self._await(lane.up)
            self._send_and_compute(travel, base)
            travel.catch_up()
            if self._in_place:  # what is written is lost for another try: first all must have been computed
                for stream in lane.runs:
                    cuda().cuStreamSynchronize(stream)
            travel.advance(wait=True)
        except KernelFailed as error:
            error.spoilt |= self._in_place and travel.wrote
            raise
        finally:
            lane.settle()
            self._gpu.free(base, lane.up)

    def _send_and_compute(self, travel: Travel, base: int) -> None:
        """Have `travel` send each panel, and compute what can be then; results are fetched as they come."""
        lane, views = self._lane, self._views(base)
        sent: set[tuple[str, tuple[Range, ...]]] = set()

        def send(name: str, cut: Cut) -> None:
            if name not in self._host or any(start == stop for start, stop in cut.values()):
                return
            of = self._blocks[name]
            if name == "bias" or (name == "c" and name in self._at):
                cut = {}  # it repeats: several parts of out share its elements
            if (key := (name, of.ranges(cut))) not in sent:
                sent.add(key)
                travel.send(self._host[name], of, cut, base + self._place(name), advance=not self._in_place)

        def compute(job: Cut, stream: int) -> None:
            lane.follow(stream, lane.up)
            self._enqueue(views.part(job), stream)
            travel.fetch(self._host["out"], self._blocks["out"], job, base + self._at["out"], stream)

        runs = cycle(lane.runs)
        for step in self._steps():
            send("a", step.a)
            send("b", step.b)
            for job in step.jobs:
                send("c", job)
                send("bias", job)
                travel.then(partial(compute, job, next(runs)))

    def _steps(self) -> list[Step]:
        out, a = self._work.out, self._work.a
        size = {name: x.dtype.itemsize for name, x in self._host.items()}
        rate, units = _speed(self._gpu, a.dtype.kind, a.dtype.itemsize)
        m, n = out.shape[-2:]
        lines = {
            name: LINE // size[name] if name in size and self._blocks[name].axes[-1:] == (axis,) else 1
            for name, axis in (("a", out.ndim - 2), ("b", out.ndim - 1))
        }
        shape = Shape(
            m, n, a.shape[-1], size.get("a", 0), size.get("b", 0), size["out"], "c" in self._host, rate, units,
            _bound(self._work.b), lines["a"], lines["b"],
        )  # fmt: skip
        return steps(shape, out.shape[:-2])


@cache
def _speed(gpu: Any, kind: str, itemsize: int) -> tuple[float, int]:
    """Multiply-adds a second, about, and multiprocessors: how much arithmetic there is to hide copies behind.

    Of floats it is what an H200 does in large products.
    """
    a_cycle = {"f": {1: 4096, 2: 1024, 4: 99, 8: 112}, "c": {8: 32, 16: 16}, "V": {1: 4096, 2: 1024}}
    lanes_a_unit = a_cycle.get(kind, {1: 1024}).get(itemsize, 64)
    return gpu.units * lanes_a_unit * gpu.facts["clock_khz"] * 1e3, gpu.units
