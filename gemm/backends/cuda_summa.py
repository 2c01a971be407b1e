"""A part of a product on one GPU, of operands that lie on several: panels are fetched while others are multiplied.

The part of out stays where it is computed; panels of a and b come from the GPUs that hold them, which makes SUMMA of
all parts together (van de Geijn and Watts, Concurrency: Practice and Experience 9, 1997). Where sums may be rounded
between, panels run along k: each adds its product to the part, and is given up after it. Where they may not, because
the bits must be those of one chain, or out is narrower than its sums, k stays whole: rows of a and columns of b come in
panels, and each rectangle of the part is computed as soon as its own are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

from gemm.backends.base import Launch
from gemm.backends.cuda_api import LEGACY_STREAM, cuda
from gemm.backends.cuda_panels import rectangles
from gemm.backends.cuda_peers import connect, copy
from gemm.backends.cuda_pinned import Lane, lanes
from gemm.backends.cuda_room import Room
from gemm.errors import KernelFailed
from gemm.operands import Cut, Range, Spread, part
from gemm.problem import Device, DeviceView

DEEP = 4096
"""Indices of k in a panel, at most."""
PANELS = 4
"""Panels of rows and of columns, at most."""
NARROWEST = 1024
"""Rows and columns of a panel, at least."""
_GRAIN = 256  # cuts are multiples of it: whole tiles, aligned rows
_AHEAD = 2  # panels along k that are there at a time: one that is multiplied, one that comes


@contextmanager
def in_order(of: Iterable[Spread]) -> Iterator[Enqueued]:
    """See Backend.in_order. The operands' streams wait for what was enqueued, whatever happens."""
    queues: dict[tuple[str, int], DeviceView] = {}
    for view in (view for spread in of for view in spread.all):
        queues[view.device.key, LEGACY_STREAM if view.queue is None else view.queue] = view
    enqueued = Enqueued()
    try:
        for (_, stream), view in queues.items():
            with view.device.handle:
                enqueued.after.append((view.device, _event(stream)))
        yield enqueued
    finally:
        for (_, stream), view in queues.items():
            with suppress(KernelFailed), view.device.handle:  # of a context that died: nothing comes after it there
                enqueued.precede(stream)
        for device, event in (*enqueued.after, *enqueued.done):
            with suppress(KernelFailed), device.handle:
                cuda().cuEventDestroy(event)  # takes effect once it has happened


def _event(stream: int) -> int:
    """An event that happens once that stream is through with what it holds now."""
    event = int(cuda().cuEventCreate(2))  # CU_EVENT_DISABLE_TIMING
    cuda().cuEventRecord(event, stream)
    return event


class Enqueued:
    """See gemm.backends.base.Enqueued.

    Attributes:
        after, done: events, with their devices, of what the operands' streams held and of what was enqueued.
    """

    def __init__(self) -> None:
        self.after: list[tuple[Device, int]] = []
        self.done: list[tuple[Device, int]] = []

    def fetch(self, source: Spread, to: DeviceView, cut: Cut) -> None:
        """to = the part `cut` of `source`, on to's GPU."""
        with to.device.handle as gpu, lanes(gpu).one() as lane:
            self.follow(lane.up)
            for view, at in source.pieces(cut):
                connect(gpu, view.device.handle)
                copy(part(to, at), view, lane.up)
            self.done.append((to.device, _event(lane.up)))

    def part(
        self, a: Spread, b: Spread, c: Spread | None, out: Spread, bias: Spread | None, cut: Cut, *, chained: bool
    ) -> Part:
        """A part of a product."""
        return Part(self, a, b, c, out, bias, cut, chained=chained)

    def follow(self, stream: int) -> None:
        """Let `stream` wait for what the operands' streams held."""
        for _, event in self.after:
            cuda().cuStreamWaitEvent(stream, event, 0)

    def precede(self, stream: int) -> None:
        """Let `stream` wait for what was enqueued."""
        for _, event in self.done:
            cuda().cuStreamWaitEvent(stream, event, 0)


class Part:
    """See gemm.backends.base.Part.

    Attributes:
        cut: of out. shape: its. wrote: whether an element of out may have changed.
    """

    def __init__(
        self, among: Enqueued, a: Spread, b: Spread, c: Spread | None, out: Spread, bias: Spread | None, cut: Cut,
        *, chained: bool,
    ) -> None:  # fmt: skip
        self._among = among
        self._a, self._b, self._c, self._out, self._bias = a, b, c, out, bias
        self.cut, self._chained, self.wrote = cut, chained, False
        self._down, self._across = len(out.shape) - 2, len(out.shape) - 1
        ((self._target, _),) = out.pieces(cut)
        self.shape = self._target.shape

    def enqueue(self, device: Device, launch: Launch, alpha: Any, beta: Any, *, fused: bool) -> None:
        """Have `device` compute it by `launch`."""
        with device.handle as gpu, lanes(gpu).one() as lane:
            for stream in (lane.up, lane.runs[0]):
                self._among.follow(stream)
            rooms: list[Room] = []
            try:
                self._run(device, lane, launch, alpha, beta, rooms, fused=fused)
            except KernelFailed as error:
                error.spoilt |= self.wrote and self._c is self._out
                raise
            finally:  # whatever has happened, nothing is written any more where memory was given back
                for stream in (lane.up, lane.down):
                    with suppress(KernelFailed):  # it is raised already, or shows in what waits
                        lane.follow(lane.runs[0], stream)
                for room in rooms:
                    room.free(lane.runs[0])
            self._among.done.append((device, _event(lane.runs[0])))
            lane.rest()

    def _run(
        self, device: Device, lane: Lane, launch: Launch, alpha: Any, beta: Any, rooms: list[Room], *, fused: bool
    ) -> None:  # fmt: skip
        up, run, down, across = lane.up, lane.runs[0], self._down, self._across

        def room(of: Spread, cut: Cut) -> Room:
            rooms.append(Room(of, cut, device, run, since=up))
            return rooms[-1]

        goal, added, extra = room(self._out, self.cut), None, None
        if self._c is not None:
            added = room(self._c, self.cut)
            added.fetch({}, up)
        if self._bias is not None:
            place = {axis: self.cut[axis + down] for axis in (0, 1) if axis + down in self.cut}
            extra = room(self._bias, {axis: r for axis, r in place.items() if self._bias.shape[axis] > 1})
            extra.fetch({}, up)
        (*_, m, n), done = self._target.shape, list[int]()
        for more, ks, last in self._stages(device):
            if len(done) >= _AHEAD:
                cuda().cuStreamWaitEvent(up, done[-_AHEAD], 0)
            cut = self.cut | {axis: (r[0] + self._start(axis), r[1] + self._start(axis)) for axis, r in more.items()}
            x = room(self._a, {axis: r for axis, r in cut.items() if axis != across} | {across: ks})
            y = room(self._b, {axis: r for axis, r in cut.items() if axis != down} | {down: ks})
            rows, columns = self._panels(m, n, x.own, y.own, whole=not more)
            for step in range(len(rows) - 1):
                x.fetch({down: rows[step : step + 2]}, up)  # type: ignore[dict-item]
                y.fetch({across: columns[step : step + 2]}, up)  # type: ignore[dict-item]
                lane.follow(run, up)
                for r, c in rectangles(rows, columns, step):
                    of = more | {down: r, across: c}
                    z = None if added is None else part(added.view, of)
                    into = part(goal.view, of)
                    scale, given = beta, z
                    if ks[0]:  # the panels before
                        scale, given = 1, into
                    options = (None if extra is None else _row(extra.view, r, c),) if fused else ()
                    launch(part(x.view, {down: r}), part(y.view, {across: c}), given, into, alpha, scale, *options)
                    self.wrote |= not goal.own
                    if goal.own and last:
                        self.wrote = True
                        lane.follow(lane.down, run)
                        goal.give(self._target, of, lane.down)
            for each in (x, y):
                each.free(run)
            done.append(lane.mark(run))

    def _start(self, axis: int) -> int:
        return self.cut.get(axis, (0, 0))[0]

    def _stages(self, device: Device) -> Iterator[tuple[Cut, Range, bool]]:
        """What is multiplied one after the other: a part of this part's stack, a range of k, and whether k ends."""
        k = self._a.shape[-1]
        axis = next((axis for axis in self.cut if axis < self._down), None)
        if axis is not None:
            count = self._target.shape[axis]
            ends = [count * at // PANELS for at in range(PANELS + 1)]
            yield from (({axis: (first, last)}, (0, k), True) for first, last in pairwise(ends) if first < last)
            return
        near = all(
            of.on(device, {at: r for at, r in self.cut.items() if at != left_out}) is not None
            for of, left_out in ((self._a, self._across), (self._b, self._down))
        )
        if near or not self._chained or not k:
            yield {}, (0, k), True
            return
        for first, last in pairwise(sorted({*self._a.columns, *self._b.rows})):
            for at in range(first, last, DEEP):
                stop = min(last, at + DEEP)
                yield {}, (at, stop), stop == k

    def _panels(self, m: int, n: int, a: bool, b: bool, *, whole: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Cuts of the rows and of the columns, of one length; of an operand that is not fetched there are none."""
        count = PANELS if whole and not self._chained and (a or b) else 1
        return tuple(_ends(length, count if cut else 1, count) for length, cut in ((m, a), (n, b)))  # type: ignore[return-value]


def _ends(length: int, count: int, most: int) -> tuple[int, ...]:
    """0 and the ends of up to `count` parts of `length`, filled up to `most` with empty ones."""
    count = max(1, min(count, length // NARROWEST))
    grain = min(_GRAIN, NARROWEST)
    ends = [min(length, -(-length * at // (count * grain)) * grain) for at in range(count)]
    return (*ends, *[length] * (most - count + 1))


def _row(bias: DeviceView, r: Range, c: Range) -> DeviceView:
    """The part of a bias for a rectangle."""
    found: DeviceView = part(bias, {axis: of for axis, of in ((0, r), (1, c)) if bias.shape[axis] > 1})
    return found
