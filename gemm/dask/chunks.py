"""The rule that cuts products into blocks, and `rechunked`, which applies it to operands. docs/scale.md derives it.

A task multiplies a block of m × k elements by a block of k × n elements. Three conditions determine the size of a
block. It must be so large that scheduling a task takes little time compared with the task's arithmetic. It must be so
small that each thread gets several blocks. It must not exceed the memory limit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from gemm.core.problem import NARROW, DType, Ints
from gemm.dask.tasks import COLUMN, DEPTH, ROW, Operand

TILE = 384
"""Long sides of blocks are multiples of TILE, so float32 and float64 kernels have no partial tiles at block edges."""

TASK_SECONDS = {"distributed": 1.5e-3, "local": 6e-5}
"""Scheduler time per task in seconds, measured by `benchmarks/scale.py`. A scheduler handles one task at a time."""
RATE = 2.4e11
"""FLOP/s of one thread for float32 with AVX-512. On a slower thread the scheduler's share of the time is smaller."""
SHARE = 0.1
"""The largest permitted ratio of the scheduler's time to the time of the arithmetic."""
BLOCKS = 4
"""Blocks of the result for each thread, so that threads do not wait long for the last block."""


class Cut(NamedTuple):
    """The lengths of a block along m, k and n, and the number of products of a stack that it contains."""

    m: int
    k: int
    n: int
    batch: int

    def most_cells(self) -> int:
        """The number of elements of the largest of the three blocks: of a, of b and of the result."""
        return max(self.m * self.k, self.k * self.n, self.m * self.n) * self.batch


def least_side(work: int, threads: int, engine: str) -> int:
    """The smallest s for which tasks with m = n = k = s are worth the cost of scheduling.

    The scheduler needs t = TASK_SECONDS for each of work/s³ tasks. The arithmetic takes 2·work / (threads · RATE)
    seconds. The scheduler's time is SHARE of the arithmetic's time if s³ = threads · t · RATE / (2·SHARE).

    If this s gives fewer tasks than threads, the product is cut into one task per thread instead. Each task must still
    compute for longer than its scheduling takes: s³ ≥ t · RATE / 2.

    Args:
        work: m·n·k·batch, the number of multiply-adds.
        threads: the number of threads that compute.
        engine: the kind of scheduler, a key of TASK_SECONDS.
    """
    alone = TASK_SECONDS[engine] * RATE / 2
    return round(math.exp(math.log(max(alone, min(threads * alone / SHARE, work / threads))) / 3))


class Limits(NamedTuple):
    """The limits on the blocks of a product.

    Attributes:
        cells: the largest number of elements of a block.
        threads: the number of threads that share the work.
        least: the result of `least_side`.
    """

    cells: int
    threads: int
    least: int


def choose(whole: Cut, limits: Limits, *, fused: bool) -> Cut:
    """The lengths of the blocks into which to cut a product with the lengths `whole`. With `fused`, k is not cut."""
    m, k, n, batch = whole
    cells = limits.cells
    if not math.prod(whole):
        return Cut(*(max(length, 1) for length in whole))
    most = _whole(math.isqrt(cells))
    shared = math.isqrt(m * n * batch // (BLOCKS * limits.threads))
    side = min(most, _whole(max(limits.least, shared)))
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


def fuses(whole: Cut, blocks: Cut, cells: int, *, ordered: bool = False) -> bool:
    """Whether summing over all of k in one task is better than adding the results of one task for each block of k.

    One task then needs a panel of a and a panel of b: blocks that are merged along all of k. Two conditions must hold.
    First, a panel has at most `cells` elements. Second, the k·(m + n) elements that merging moves are no more than the
    elements of the partial sums: m·n for each block of k. With `ordered` the second condition is dropped, because the
    parts of an ordered sum cannot be computed in parallel anyway.
    """
    m, k, n, _ = whole
    parts = -(-k // max(1, blocks.k))
    panel = max(blocks.m, blocks.n) * k * blocks.batch
    return parts <= 1 or (panel <= cells and (ordered or k * (m + n) <= parts * m * n))


def stacks(shape: Sequence[int], items: int) -> Ints:
    """Chunk lengths along the axes `shape` of a stack, so that a chunk has about `items` products but never more.

    A chunk first extends along the innermost axis.
    """
    lengths = []
    for length in reversed(shape):
        lengths.append(max(1, min(length, items)))
        items //= lengths[-1]
    return tuple(reversed(lengths))


def pieces(length: int, side: int) -> Ints:
    """`length` cut into chunks of at most `side`, as equal as multiples of TILE allow. Length 0 gives one chunk."""
    unit = TILE if side >= 4 * TILE else 1
    count = max(1, -(-length // side))
    units, more = divmod(-(-length // unit), count)
    sides = [(units + (piece < more)) * unit for piece in range(count)]
    sides[-1] += length - sum(sides)
    return tuple(sides)


def _whole(side: int) -> int:
    """`side` rounded down to a multiple of TILE, or `side` itself if it is shorter than TILE."""
    return side // TILE * TILE or side


def most_cells(limit: Any, *itemsizes: int) -> int:
    """The number of elements that a block of `limit` bytes can contain, if an element has max(itemsizes) bytes.

    limit: a number or a text such as "32 MiB"; "auto" or None: dask's limit for a chunk.
    """
    size = dask.config.get("array.chunk-size") if limit in ("auto", None) else limit
    return max(1, int(parse_bytes(size)) // max(itemsizes))


def rechunked(x: Operand, y: Operand, kind: DType, chunks: Any, contraction: str) -> tuple[Operand, Operand]:
    """The operands, rechunked for the product; see `gemm.dask.gemm`.

    contraction: as for `gemm.dask.gemm`, or "ordered". "ordered" means "fused" if the blocks that are merged along k
    are small enough (see `fuses`), and "chain" otherwise.
    """
    own: dict[str, Ints] = {}  # {label: chunks}
    for label, blocks in (*y.chunks.items(), *x.chunks.items()):  # a label of both operands takes the chunks of x
        if sum(blocks) != 1 or label not in own:
            own[label] = blocks
    stack = [label for label in max(x.labels, y.labels, key=len) if label not in (ROW, DEPTH, COLUMN)]
    lengths = {label: sum(blocks) for label, blocks in own.items()}
    whole = _cut(lengths, stack)
    mean = _cut({label: -(-sum(blocks) // len(blocks)) for label, blocks in own.items()}, stack)
    largest = _cut({label: max(blocks) for label, blocks in own.items()}, stack)
    sums = 4 if kind.name in NARROW else kind.itemsize
    cells = most_cells(chunks, sums, *(o.array.dtype.itemsize for o in (x, y)))
    threads, engine = _threads()
    limits = Limits(cells, threads, least_side(math.prod(whole), threads, engine))

    def fused(blocks: Cut) -> bool:
        if contraction in ("auto", "ordered"):
            return fuses(whole, blocks, cells, ordered=contraction == "ordered")
        return contraction == "fused"

    merges = fused(largest)
    # The operands keep their blocks if these agree along k, no block is too large, and the tasks are not too small: one
    # task does the whole product, or an average task does at least half the work of the smallest worthwhile task.
    fits = largest._replace(k=whole.k if merges else largest.k).most_cells() <= cells
    agree = x.chunks[DEPTH] == y.chunks[DEPTH]
    if chunks is None or (agree and fits and (mean == whole or 2 * math.prod(mean) >= limits.least**3)):
        wanted = {DEPTH: (whole.k,) if merges else own[DEPTH]}
    else:
        cut = choose(whole, limits, fused=contraction == "fused")
        if contraction != "fused" and fused(cut):
            cut = choose(whole, limits, fused=True)
        sides = dict(zip((ROW, DEPTH, COLUMN), cut, strict=False))
        sides |= dict(zip(stack, stacks([lengths[label] for label in stack], cut.batch), strict=True))
        wanted = {label: pieces(length, sides[label]) for label, length in lengths.items()}
    return x.chunked(wanted), y.chunked(wanted)


def _cut(lengths: dict[str, int], stack: Sequence[str]) -> Cut:
    """The size of a block as a Cut. `lengths` is {label of an axis: length}.

    If the label of rows or columns is missing, because an operand is a vector, its length is 1. The Cut's batch is the
    product of the lengths of the labels `stack`.
    """
    m, k, n = (lengths.get(label, 1) for label in (ROW, DEPTH, COLUMN))
    return Cut(m, k, n, math.prod(lengths[label] for label in stack))


def _threads() -> tuple[int, str]:
    """The number of threads that will compute, and the scheduler: "distributed" if dask has a client, else "local"."""
    if distributed := sys.modules.get("distributed"):
        try:
            client = distributed.default_client()
        except ValueError:
            pass
        else:
            if not client.asynchronous:  # an asynchronous client returns an awaitable instead of the numbers
                return max(1, sum(client.nthreads().values())), "distributed"
    return dask.config.get("num_workers", None) or CPU_COUNT, "local"
