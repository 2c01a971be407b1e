"""How a product of host operands is cut so that its copies and its arithmetic overlap: a model, no driver.

Panels of a (rows) and of b (columns) are sent in turn. When the i-th of each is there, so are the operands of a
rectangle of out that is larger by an L: its rows and its columns are computed and fetched while the next panels
travel. What can be computed grows with the square of what was sent, so that narrow first panels cost little; cuts
that are too narrow leave multiprocessors idle. `panels` simulates the five lanes (copies between arrays and slots, the
thread that calls the driver, link in, multiprocessors, link out) for some ways of cutting, and of those about as quick
as the quickest takes the one of the fewest launches. Neighbouring rectangles run on streams of their own, so that the
next one begins on the multiprocessors that the one before no longer needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from gemm.core.operands import Cut, Range

LINK = 55e9
"""Bytes a second each way between page-locked memory and a device (PCIe 5 x16)."""
HOST = 50e9
"""Bytes a second between arrays and page-locked memory, in and out together: 16 threads, one copy after the other."""
_COPY, _LAUNCH, _ABOUT = 2e-5, 5e-5, 1.02
"""Seconds of the thread that calls the driver, for a panel and for a launch; times that are about the same."""
_TILE = 128  # rows and columns of out that a multiprocessor computes at a time, about
_GRAIN = 256  # cuts are multiples of it: whole tiles, aligned rows
_NARROWEST = 512  # a panel
LINE = 4096
"""Bytes of memory that are read at the full rate one by one; of half as many it is little more than half."""

_GROUP, _GROUPS = 16 << 20, 32  # bytes of a stack that are sent before the next launch; launches at most
_LARGE = 64 << 20  # bytes of a product of a stack that is itself cut


@dataclass(frozen=True)
class Shape:
    """A product as the model sees it.

    Attributes:
        m, n, k: as everywhere. c: it is sent, too.
        a, b, out: bytes of an element, 0 of what lies on the device already.
        rate: multiply-adds a second, all multiprocessors together. units: multiprocessors.
        fixed: b is not to be cut.
        rows, columns: what their cuts are best multiples of, where a's or b's memory runs along them.
    """

    m: int
    n: int
    k: int
    a: int
    b: int
    out: int
    c: bool
    rate: float
    units: int
    fixed: bool = False
    rows: int = 1
    columns: int = 1

    @property
    def nbytes(self) -> int:
        """Of one product's operands."""
        return (self.m * self.a + self.n * self.b) * self.k + self.m * self.n * self.out * (1 + self.c)


class Step(NamedTuple):
    """Parts of a and b that are sent, as cuts of out, and the parts of out that can be computed then."""

    a: Cut
    b: Cut
    jobs: tuple[Cut, ...]


def steps(shape: Shape, batch: tuple[int, ...]) -> list[Step]:
    """How to go through a stack of products: whole ones in groups, or, if they are few and large, each in panels."""
    axis = max(range(len(batch)), key=batch.__getitem__, default=0)
    count = batch[axis] if batch else 1
    if prod(batch) == count and (count == 1 or shape.nbytes >= _LARGE):
        return [
            step for index in range(count) for step in _one(shape, {axis: (index, index + 1)} if batch else {}, batch)
        ]
    each = shape.nbytes * prod(batch) // count
    groups = min(count, _GROUPS, max(1, count * each // _GROUP))
    cuts: list[Cut] = [{axis: (count * i // groups, count * (i + 1) // groups)} for i in range(groups)]
    return [Step(cut, cut, (cut,)) for cut in cuts]


def _one(shape: Shape, at: Cut, batch: tuple[int, ...]) -> list[Step]:
    """The panels of one product of a stack."""
    down, across = len(batch), len(batch) + 1
    rows, columns = panels(shape)
    found = []
    for step in range(len(rows) - 1):
        sent = at | {down: rows[step : step + 2]}, at | {across: columns[step : step + 2]}
        jobs = [at | {down: r, across: c} for r, c in rectangles(rows, columns, step)]
        found.append(Step(*sent, tuple(jobs)))  # type: ignore[arg-type]
    return found


Cuts = tuple[int, ...]
"""0 and the ends of panels."""


@lru_cache(maxsize=1024)
def panels(shape: Shape) -> tuple[Cuts, Cuts]:
    """(cuts of the rows, cuts of the columns), of one length: with equal cuts the next panel of that axis is empty."""
    found = {cuts: seconds(shape, *cuts) for cuts in _candidates(shape)}
    most = _ABOUT * min(found.values())
    able = [cuts for cuts, time in found.items() if time <= most]
    return min(able, key=lambda cuts: (_launches(*cuts), found[cuts]))


def _launches(rows: Cuts, columns: Cuts) -> int:
    return sum(len(rectangles(rows, columns, step)) for step in range(len(rows) - 1))


def rectangles(rows: Cuts, columns: Cuts, step: int) -> list[tuple[Range, Range]]:
    """What can be computed once panels 0 to `step` are there, but could not before: ranges of rows and columns."""
    (r0, r1), (c0, c1) = rows[step : step + 2], columns[step : step + 2]
    all_new = step == 0 or r0 == r1  # no rows are
    found = [((0, r1), (c0, c1))] if all_new else [((r0, r1), (0, c1)), ((0, r0), (c0, c1))]
    return [(r, c) for r, c in found if r[0] < r[1] and c[0] < c[1]]


def seconds(shape: Shape, rows: Cuts, columns: Cuts) -> float:
    """The model's time of a product cut so."""
    one = _TILE * _TILE * shape.k * shape.units / shape.rate  # seconds of a tile
    copied = called = sent = computed = fetched = 0.0
    coming: deque[tuple[float, int]] = deque()  # results: when they have come, bytes
    for step in range(len(rows) - 1):
        height, width = rows[step + 1] - rows[step], columns[step + 1] - columns[step]
        jobs = rectangles(rows, columns, step)
        sizes = [(r1 - r0) * (c1 - c0) * shape.out for (r0, r1), (c0, c1) in jobs]
        while coming and coming[0][0] <= copied:
            copied += coming.popleft()[1] / HOST
        size = (height * shape.a + width * shape.b) * shape.k + (sum(sizes) if shape.c else 0)
        copied += size / HOST
        called = max(called, copied) + _COPY
        sent = max(sent + size / LINK, called)
        for ((r0, r1), (c0, c1)), size in zip(jobs, sizes, strict=True):
            called += _LAUNCH
            ready, tiles = max(sent, called), -(-(r1 - r0) // _TILE) * -(-(c1 - c0) // _TILE)
            computed = max(max(ready, computed) + tiles / shape.units * one, ready + one)
            fetched = max(fetched, computed) + size / LINK + _COPY
            coming.append((fetched, size))
    for at, size in coming:
        copied = max(copied, at) + size / HOST
    return copied


def _candidates(shape: Shape) -> Iterator[tuple[Cuts, Cuts]]:
    m, n = shape.m, shape.n
    yield (0, m), (0, n)
    longest = max(m, n)
    for first in (_NARROWEST, 2 * _NARROWEST, 3 * _NARROWEST, 4 * _NARROWEST):
        for most in (first, 2 * first, 4 * first, 8 * first):
            if most < longest:
                shares = _shares(shape, first / longest, most / longest)
                ends = len(shares) - 1
                tall, wide = _cuts(m, shares, shape.rows), _cuts(n, shares, shape.columns)
                yield tall, (0, *[n] * ends)
                if not shape.fixed:
                    yield from ((tall, wide), ((0, *[m] * ends), wide))


def _shares(shape: Shape, first: float, most: float) -> list[float]:
    """Cuts as shares of the axes: each panel as wide as what arrives while the step before is computed."""
    link = max(1, shape.m * shape.a + shape.n * shape.b) * shape.k / LINK
    compute = shape.m * shape.n * shape.k / shape.rate
    shares = [0.0, first]
    while shares[-1] < 1:
        width = compute * (shares[-1] ** 2 - shares[-2] ** 2) / link
        shares.append(shares[-1] + min(max(width, first), most))
    return [*shares[:-1], 1.0]


def _cuts(length: int, shares: list[float], best: int) -> Cuts:
    if length < 2 * _NARROWEST:
        return (0, *[length] * (len(shares) - 1))
    grain = max(_GRAIN, best)
    inner = [min(length, -(-round(share * length) // grain) * grain) for share in shares[1:-1]]
    return (0, *inner, length)
