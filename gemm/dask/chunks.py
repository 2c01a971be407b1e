"""How products are cut into blocks: the rule, in pure functions. docs/scale.md derives it.

A task multiplies blocks of m × k and k × n elements. A block is large enough that the engine's cost of a task is small
beside its arithmetic, small enough that every thread has several, and never larger than the limit of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

TILE = 384
"""Sides are multiples of this, where they are longer: no kernel for float32 or float64 has then tiles at an edge of a
block that are not whole."""

TASK_SECONDS = {"distributed": 1.5e-3, "local": 6e-5}
"""What an engine needs for a task, one after another: its scheduler's time. Measured by `benchmarks/scale.py`."""
RATE = 2.4e11
"""FLOP/s of a thread, float32 with AVX-512: a slower one only makes the engine's share smaller."""
SHARE = 0.1
"""The part of the time that the engine may need."""
BLOCKS = 4
"""Blocks of the result for each thread, so that none waits long for the last."""


class Cut(NamedTuple):
    """Lengths of blocks along m, k, n, and how many products of a stack are in one."""

    m: int
    k: int
    n: int
    batch: int

    def most_cells(self) -> int:
        """Elements of the largest of the three blocks of a product."""
        return max(self.m * self.k, self.k * self.n, self.m * self.n) * self.batch


def least_side(work: int, threads: int, engine: str) -> int:
    """The side s of cubic blocks below which tasks cost `engine` too much, of `work` = m·n·k·batch multiply-adds.

    work/s³ tasks take TASK_SECONDS = t each, the arithmetic 2·work / (threads · RATE): the former is SHARE of the
    latter at s³ = threads · t · RATE / (2·SHARE). A product that had then fewer tasks than threads is cut into as many
    as there are threads, as long as a task computes for longer than it takes to schedule: s³ ≥ t · RATE / 2.
    """
    alone = TASK_SECONDS[engine] * RATE / 2
    return round(math.exp(math.log(max(alone, min(threads * alone / SHARE, work / threads))) / 3))


def choose(m: int, k: int, n: int, batch: int, *, cells: int, threads: int, least: int, fused: bool) -> Cut:
    """The blocks for `batch` products of m × k by k × n.

    Args:
        cells: elements that a block may have. threads: that share the work. least: `least_side`.
        fused: k stays whole.
    """
    if not m * k * n * batch:
        return Cut(max(m, 1), max(k, 1), max(n, 1), max(batch, 1))
    most = _whole(math.isqrt(cells))
    shared = math.isqrt(m * n * batch // (BLOCKS * threads))
    side = min(most, _whole(max(least, shared)))
    lengths = (m, k, n)
    sides = [max(pieces(length, side)) for length in lengths]
    if fused:
        sides[1] = k
        sides[0], sides[2] = (max(pieces(length, min(side, _whole(max(1, cells // k))))) for length in (m, n))
    for axis in (1, 0, 2):  # where others are short, this one may be longer: the work of a task is what counts
        others = [sides[other] for other in range(3) if other != axis]
        longer = min(_whole(side**3 // math.prod(others)), _whole(max(1, cells // max(others))))
        if sides[axis] < min(longer, lengths[axis]):
            sides[axis] = max(pieces(lengths[axis], longer))
    one = Cut(sides[0], sides[1], sides[2], 1)
    return one._replace(batch=min(batch, max(1, min(side**3 // math.prod(one), cells // one.most_cells()))))


def suits(mean: Cut, largest: Cut, *, whole: Cut, cells: int, least: int) -> bool:
    """Whether products that lie in blocks of these lengths may stay so: none is too large, and in the mean a task does
    half of the work of the least one, or all there is."""
    return largest.most_cells() <= cells and (mean == whole or 2 * math.prod(mean) >= least**3)


def fuses(m: int, k: int, n: int, blocks: Cut, cells: int, *, ordered: bool = False) -> bool:
    """Whether k is better whole: the panels are no larger than a block may be, and to merge them moves no more
    elements, k·(m + n), than there are in the partial sums, m·n for each block of k. `ordered`: the latter does not
    matter, since parts cannot be computed side by side."""
    parts = -(-k // max(1, blocks.k))
    panel = max(blocks.m, blocks.n) * k * blocks.batch
    return parts <= 1 or (panel <= cells and (ordered or k * (m + n) <= parts * m * n))


def stacks(shape: Sequence[int], items: int) -> tuple[int, ...]:
    """Lengths of chunks along the axes of a stack, about `items` products in all, innermost axes first."""
    lengths = []
    for length in reversed(shape):
        lengths.append(max(1, min(length, items)))
        items //= lengths[-1]
    return tuple(reversed(lengths))


def pieces(length: int, side: int) -> tuple[int, ...]:
    """`length` in chunks that are no longer than `side` and as equal as whole tiles allow; one if there is nothing."""
    unit = TILE if side >= 4 * TILE else 1
    count = max(1, -(-length // side))
    units, more = divmod(-(-length // unit), count)
    sides = [(units + (piece < more)) * unit for piece in range(count)]
    sides[-1] += length - sum(sides)
    return tuple(sides)


def _whole(side: int) -> int:
    """`side` down to a multiple of TILE, if it has one."""
    return side // TILE * TILE or side
