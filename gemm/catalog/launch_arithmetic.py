"""How long the blocks of a GPU take for a product, and into how many parts they cut k: for dispatch and for launches.

Seconds are an H200's, whose `gflops` and `startup` the rows tell; what they are on another GPU is gemm.select.cost's.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from .kernel import Kernel

UNITS = 132
"""Multiprocessors of an H200."""
OVERLAPPING = "sm_90"
"""The feature of devices on which a launch may begin while the one ahead of it ends."""
CLUSTER = 8
"""Blocks of the largest cluster that every GPU with clusters takes."""

_CLUSTERS = (
    (132, 66, 39, 30, 22, 17, 15, 15), (264, 132, 79, 62, 47, 39, 32, 30),
    (396, 198, 124, 92, 69, 62, 47, 45), (528, 264, 163, 124, 94, 79, 69, 62),
)  # fmt: skip
"""Clusters of 1 to 8 blocks that an H200 runs at once, where a multiprocessor holds 1, 2, 3 or 4 blocks, as
cuOccupancyMaxActiveClusters tells of one such chip."""

_JOIN = 0.8e-6  # seconds that the blocks of a cluster wait for each other
_NEXT = 0.5  # microseconds from a block's tile to its next, for each block of a multiprocessor
_BESIDE = 0.4  # of its startup, what each block beside a persistent one costs more
_EXCHANGE = 1.5e11  # bytes a second that a block gets from the others of its cluster


@cache
def resident(kernel: Kernel) -> int:
    """Blocks that a multiprocessor holds: as the row says, else as registers and shared memory allow."""
    p = kernel.params
    if "blocks" in p or "RESIDENT" in p:
        return max(1, p.get("blocks") or p["RESIDENT"])
    by_memory = (227 << 10) // (p.get("shared", 0) + 1024)
    return max(1, min(512 // p.get("THREADS", 256), by_memory))


def groups(kernel: Kernel, m: int, n: int, batch: int) -> int:
    """Clusters of blocks, or blocks where none share operands, that compute so many m by n results, k uncut."""
    p = kernel.params
    tiles = -(-m // (p["BM"] * p.get("MULTICAST", 1))) * -(-n // p["BN"])
    return tiles * -(-batch // p.get("STACK", 1))


@lru_cache(maxsize=4096)
def parts(kernel: Kernel, count: int, k: int, units: int) -> int:
    """Into how many parts of k each of `count` groups is cut on a GPU of so many units: what takes the least time."""
    p = kernel.params
    steps = max(1, -(-k // p.get("BK", 1)))
    most = min(p.get("parts", 0) or 1, CLUSTER // p.get("MULTICAST", 1), steps)
    whole = seconds(kernel, count, k, units) if most > 1 else 0.0
    busy = count * p.get("MULTICAST", 1) * steps * _grid(kernel, units).column / units  # all units, all the time
    if whole <= busy + 1e-6 * kernel.startup + joined(kernel):
        return 1
    best = min(range(1, most + 1), key=lambda cut: seconds(kernel, count, k, units, cut) if cut > 1 else whole)
    return -(-steps // -(-steps // best))  # no part is empty


def room(units: int, most: int, blocks: int) -> int:
    """Clusters of so many blocks that run at once where a multiprocessor holds `most` of any.

    A cluster lies within one group of processors (GPC), whose sizes differ, also from chip to chip; what is left of
    them beside whole clusters stays idle. A grid that is too large by one cluster runs twice as long.
    """
    known = _CLUSTERS[min(most, len(_CLUSTERS)) - 1]
    return max(1, known[blocks - 1] * units * most // (UNITS * min(most, len(_CLUSTERS))))


def each_alone(kernel: Kernel, count: int, units: int, blocks: int) -> bool:
    """Whether each block of so many clusters of so many blocks has a multiprocessor for itself."""
    return bool(kernel.params.get("alone")) or resident(kernel) == 1 or spread(kernel, count, units, blocks)


def spread(kernel: Kernel, count: int, units: int, blocks: int) -> bool:
    """Whether clusters of so many blocks are so few that launches ask for shared memory that keeps each block alone on
    a multiprocessor, as only kernels do that have such memory."""
    return bool(kernel.params.get("shared")) and count <= room(units, 1, blocks)


def shared(kernel: Kernel, count: int, k: int, units: int) -> int:
    """How many blocks share, by k, the last of `count` tiles, which would be a round of fewer; 0: none do.

    They do where it takes less time: each tile's end waits for what other blocks have left of it in memory.
    """
    p, at_once = kernel.params, room(units, resident(kernel), 1)
    rest = count % at_once
    if not p.get("shares") or not rest or rest * -(-k // p["BK"]) < at_once:  # a step a block at least
        return 0
    alone = 2.0 * p["BM"] * p["BN"] * k / (kernel.gflops * 1e9 / UNITS)
    return at_once if alone > _together(kernel, rest, alone, at_once) else 0


def _together(kernel: Kernel, rest: int, alone: float, blocks: int) -> float:
    """Time of so many blocks that share `rest` tiles, each of which takes one block the time `alone`."""
    return alone * rest / blocks + 1e-6 * _NEXT + -(-blocks // rest) * joined(kernel)


def joined(kernel: Kernel) -> float:
    """Seconds that blocks which share a tile take, besides, to wait for each other and to add up their parts of it."""
    return _JOIN + 4.0 * kernel.params["BM"] * kernel.params["BN"] / _EXCHANGE


class _Grid(NamedTuple):
    """What `seconds` needs of a kernel on so many units, whatever the product.

    Attributes:
        most: blocks of a multiprocessor. step: along k. column: seconds of a step of a block that is alone there.
        rooms: clusters that run at once, by how many parts k is cut into. persistent, waits, shares: of its params.
    """

    most: int
    step: int
    column: float
    rooms: tuple[int, ...]
    persistent: bool
    waits: bool
    shares: bool


@lru_cache(maxsize=1024)
def _grid(kernel: Kernel, units: int) -> _Grid:
    p, most = kernel.params, resident(kernel)
    step, members = p.get("BK", 1), p.get("MULTICAST", 1)
    column = 2.0 * p["BM"] * p["BN"] * step * p.get("STACK", 1) / (kernel.gflops * 1e9 / UNITS)
    rooms = tuple(room(units, most, members * cut) for cut in range(1, CLUSTER // members + 1))
    return _Grid(most, step, column, rooms, "blocks" in p, bool(p.get("waits")), bool(p.get("shares")))


def seconds(kernel: Kernel, count: int, k: int, units: int, cut: int = 1, ordered: bool = False) -> float:
    """Time of `count` groups whose k is `cut` into parts, where nothing waits for memory; with their startup.

    Groups run in rounds of as many as there is room for. Where a multiprocessor holds fewer blocks than it could, they
    hide less of each other's waits, and it computes slower; where it holds several, those that go on hide that others
    start. `ordered`: each sum is one chain, and no tile shared.
    """
    most, step, column, rooms, persistent, waits, shares = _grid(kernel, units)
    at_once, steps = rooms[cut - 1], -(-k // step) or 1
    work = -(-steps // cut) * column
    rounds, rest = divmod(count, at_once)
    time = rounds * most * work
    held = float(most)
    if shares and cut == 1 and not ordered and shared(kernel, count, k, units):
        time += _together(kernel, rest, work, at_once)
    elif rest:
        held = max(1.0, most * rest / at_once)
        time += held * work / (held / most) ** 0.5
    started = rounds + (rest > 0)
    startup = kernel.startup * (steps if waits else 1)
    if persistent:
        startup *= 1 + _BESIDE * ((most if rounds else held) - 1)
    # A persistent block loads the next tile's operands early, but not into the memory that a join needs meanwhile.
    hidden = (persistent or most > 1) and cut == 1
    startup = startup * (1 if hidden else started) + _NEXT * most * (started - 1)
    time += startup * 1e-6
    return time + started * joined(kernel) if cut > 1 else time  # nothing multiplies while a block joins
