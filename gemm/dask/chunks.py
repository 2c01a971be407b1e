"""The rule that cuts products into blocks, in pure functions. docs/scale.md derives the rule.

A task multiplies a block of m × k elements by a block of k × n elements. Three conditions size a block. It is large
enough for the scheduler's cost of a task to be small compared with the task's arithmetic. It is small enough for each
thread to get several blocks. It never exceeds the memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

TILE = 384
"""Longer sides are multiples of this, so that no kernel for float32 or float64 has partial tiles at a block's edge."""

TASK_SECONDS = {"distributed": 1.5e-3, "local": 6e-5}
"""Scheduler time per task in seconds, measured by `benchmarks/scale.py`. A scheduler handles one task at a time."""
RATE = 2.4e11
"""FLOP/s of one thread for float32 with AVX-512. On a slower thread the scheduler's share of the time is smaller."""
SHARE = 0.1
"""The largest share of the total time that the scheduler may need."""
BLOCKS = 4
"""Blocks of the result for each thread, so that threads do not wait long for the last block."""


class Cut(NamedTuple):
    """Lengths of a block along m, k and n, and the number of a stack's products in one block."""

    m: int
    k: int
    n: int
    batch: int

    def most_cells(self) -> int:
        """The number of elements of the largest of a product's three blocks."""
        return max(self.m * self.k, self.k * self.n, self.m * self.n) * self.batch


def least_side(work: int, threads: int, engine: str) -> int:
    """The smallest side s of cubic blocks whose tasks are worth the cost of scheduling.

    The scheduler needs t = TASK_SECONDS for each of work/s³ tasks. The arithmetic takes 2·work / (threads · RATE)
    seconds. The scheduler's time is SHARE of the arithmetic's time at s³ = threads · t · RATE / (2·SHARE).

    If this s gives fewer tasks than threads, the product is cut into one task per thread instead. Each task must still
    compute for longer than its scheduling takes: s³ ≥ t · RATE / 2.

    Args:
        work: m·n·k·batch, the number of multiply-adds.
    """
    alone = TASK_SECONDS[engine] * RATE / 2
    return round(math.exp(math.log(max(alone, min(threads * alone / SHARE, work / threads))) / 3))


def choose(m: int, k: int, n: int, batch: int, *, cells: int, threads: int, least: int, fused: bool) -> Cut:
    """The blocks for `batch` products of m × k by k × n.

    Args:
        cells: the largest number of elements of a block.
        threads: the number of threads that share the work.
        least: the result of `least_side`.
        fused: keep k whole.
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
    for axis in (1, 0, 2):  # lengthen this side if the other sides are short: the work of a task counts, not its shape
        others = [sides[other] for other in range(3) if other != axis]
        longer = min(_whole(side**3 // math.prod(others)), _whole(max(1, cells // max(others))))
        if sides[axis] < min(longer, lengths[axis]):
            sides[axis] = max(pieces(lengths[axis], longer))
    one = Cut(sides[0], sides[1], sides[2], 1)
    return one._replace(batch=min(batch, max(1, min(side**3 // math.prod(one), cells // one.most_cells()))))


def suits(mean: Cut, largest: Cut, *, whole: Cut, cells: int, least: int) -> bool:
    """Whether the operands can keep their blocks, which have these lengths.

    No block may be too large. On average a task must do half the work of the smallest worthwhile task, or all the work.
    """
    return largest.most_cells() <= cells and (mean == whole or 2 * math.prod(mean) >= least**3)


def fuses(m: int, k: int, n: int, blocks: Cut, cells: int, *, ordered: bool = False) -> bool:
    """Whether contracting all of k in one task is better than summing blocks of k.

    Two conditions must hold. First, the merged panels are no larger than a block may be. Second, merging moves no more
    elements, k·(m + n), than the partial sums have, m·n for each block of k. With `ordered` the second condition is
    dropped, because the parts of an ordered sum cannot be computed in parallel anyway.
    """
    parts = -(-k // max(1, blocks.k))
    panel = max(blocks.m, blocks.n) * k * blocks.batch
    return parts <= 1 or (panel <= cells and (ordered or k * (m + n) <= parts * m * n))


def stacks(shape: Sequence[int], items: int) -> tuple[int, ...]:
    """Chunk lengths along the axes of a stack, for about `items` products per chunk, filled from the innermost axis."""
    lengths = []
    for length in reversed(shape):
        lengths.append(max(1, min(length, items)))
        items //= lengths[-1]
    return tuple(reversed(lengths))


def pieces(length: int, side: int) -> tuple[int, ...]:
    """`length` cut into chunks of at most `side`, as equal as whole tiles allow. A length of 0 gives one chunk."""
    unit = TILE if side >= 4 * TILE else 1
    count = max(1, -(-length // side))
    units, more = divmod(-(-length // unit), count)
    sides = [(units + (piece < more)) * unit for piece in range(count)]
    sides[-1] += length - sum(sides)
    return tuple(sides)


def _whole(side: int) -> int:
    """`side` rounded down to a multiple of TILE, or `side` itself if it is shorter than TILE."""
    return side // TILE * TILE or side
