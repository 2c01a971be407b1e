"""Cuts a product of host operands into panels, so that copies overlap with arithmetic. This module calls no driver.

gemm sends panels of a (rows) and of b (columns) in turn. After i panels of each, the GPU has the operands of the
top-left rectangle of out with these rows and columns. Panel i of a and panel i of b extend the previous rectangle by an
L-shaped region. gemm computes the region, and fetches the results, while it sends the next panels.

The computable part of out grows with the square of the data sent, so the first panels can be narrow at little cost.
Panels that are too narrow leave multiprocessors idle.

`panels` simulates several ways of cutting. The simulation has five resources: the thread that copies between arrays and
staging slots, the thread that calls the driver, the link to the device, the multiprocessors, and the link from the
device. Among the ways whose time is within 2 % of the shortest time, `panels` takes the way with the fewest launches.
Consecutive rectangles run on different streams, so that the next rectangle can begin on multiprocessors that the
previous one no longer needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from gemm.core.operands import Cut, Range
from gemm.core.problem import Ints

LINK = 55e9
"""Bytes per second in each direction between page-locked memory and a device (PCIe 5 x16)."""
HOST = 50e9
"""Bytes per second between arrays and page-locked memory, both directions together. Measured with 16 threads for each
copy, one copy after the other."""
_COPY, _LAUNCH, _ABOUT = 2e-5, 5e-5, 1.02
"""_COPY and _LAUNCH are the seconds that the thread that calls the driver needs to send a panel and to launch a kernel.
Two times count as equal if their ratio is at most _ABOUT."""
_TILE = 128  # rows and columns of out that a multiprocessor computes at a time, approximately
_GRAIN = 256  # cuts are at multiples of _GRAIN, so that tiles are whole and rows are aligned
_NARROWEST = 512  # the least width of a panel
LINE = 4096
"""The minimum length, in bytes, of contiguous lines that the copy engine transfers at its full rate. With lines half as
long, the copy engine reaches little more than half of the rate."""

_GROUP, _GROUPS = 16 << 20, 32
"""A stack of small products is sent in groups, and one launch computes each group. _GROUP is the minimum bytes of a
group, _GROUPS the maximum number of groups."""
_LARGE = 64 << 20  # bytes; the products of a stack are cut into panels if the operands of each have at least this size


@dataclass(frozen=True)
class Shape:
    """The properties of a product that the model uses.

    Attributes:
        m, n, k: the sizes.
        c: whether c is sent, too.
        a, b, out: bytes of an element; 0 if the operand is already on the device.
        rate: multiply-adds per second of all multiprocessors together.
        units: the number of multiprocessors.
        fixed: whether b must not be cut.
        rows: cuts of m should be multiples of `rows`. It is more than 1 if a is contiguous along m, because a cut then
            shortens the contiguous lines.
        columns: cuts of n should be multiples of `columns`. It is more than 1 if b is contiguous along n.
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
        """The bytes of the operands of one product."""
        return (self.m * self.a + self.n * self.b) * self.k + self.m * self.n * self.out * (1 + self.c)


class Step(NamedTuple):
    """The parts of a and b to send, as cuts of out's axes, and the parts of out that gemm can then compute (`jobs`)."""

    a: Cut
    b: Cut
    jobs: tuple[Cut, ...]


def steps(shape: Shape, batch: Ints) -> list[Step]:
    """Return the steps for a stack of products: groups of small products, or the panels of each large one."""
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


def _one(shape: Shape, at: Cut, batch: Ints) -> list[Step]:
    """Return the steps for one product of a stack, cut into panels."""
    down, across = len(batch), len(batch) + 1
    rows, columns = panels(shape)
    found = []
    for step in range(len(rows) - 1):
        sent = at | {down: rows[step : step + 2]}, at | {across: columns[step : step + 2]}
        jobs = [at | {down: r, across: c} for r, c in rectangles(rows, columns, step)]
        found.append(Step(*sent, tuple(jobs)))  # type: ignore[arg-type]
    return found


Cuts = Ints
"""The boundaries of panels: 0, then the end of each panel."""


@lru_cache(1024)
def panels(shape: Shape) -> tuple[Cuts, Cuts]:
    """Return (cuts of the rows, cuts of the columns), two tuples of equal length.

    Two equal consecutive cuts mean an empty panel: that step sends nothing along this axis.
    """
    found = {cuts: seconds(shape, *cuts) for cuts in _candidates(shape)}
    most = _ABOUT * min(found.values())
    able = [cuts for cuts, time in found.items() if time <= most]
    return min(able, key=lambda cuts: (_launches(*cuts), found[cuts]))


def _launches(rows: Cuts, columns: Cuts) -> int:
    return sum(len(rectangles(rows, columns, step)) for step in range(len(rows) - 1))


def rectangles(rows: Cuts, columns: Cuts, step: int) -> list[tuple[Range, Range]]:
    """Return the parts of out that the panels of `step` make computable, as (range of rows, range of columns)."""
    (r0, r1), (c0, c1) = rows[step : step + 2], columns[step : step + 2]
    all_new = step == 0 or r0 == r1  # r0 == r1: this step sends only columns
    found = [((0, r1), (c0, c1))] if all_new else [((r0, r1), (0, c1)), ((0, r0), (c0, c1))]
    return [(r, c) for r, c in found if r[0] < r[1] and c[0] < c[1]]


def seconds(shape: Shape, rows: Cuts, columns: Cuts) -> float:
    """Return the time that the model predicts for a product with these cuts."""
    one = _TILE * _TILE * shape.k * shape.units / shape.rate  # seconds in which a multiprocessor computes a tile
    copied = called = sent = computed = fetched = 0.0
    coming: deque[tuple[float, int]] = deque()  # results: (time of arrival, bytes)
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
    """Return the cuts of both axes of out as fractions from 0 to 1.

    gemm sends a panel while the GPU computes the region that the previous panels added. A panel is as wide as the link
    can send in this time, but at least `first` and at most `most`. Only the last panel may be narrower.
    """
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
