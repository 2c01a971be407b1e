"""The time that a GPU's thread blocks take for a product, and the number of parts into which they split k.

Dispatch and launches use the same arithmetic. A group is MULTICAST thread blocks that share operands; it is one
block in kernels without MULTICAST. The times are in seconds on an H200, because `gflops` and `startup` in the catalog
are those of an H200; gemm.select.gpu_model scales the times to other GPUs.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from .kernel import Kernel

UNITS = 132
"""Multiprocessors of an H200."""
OVERLAPPING = "sm_90"
"""The feature of devices on which a launch may start before the previous launch has ended."""
CLUSTER = 8
"""Number of blocks of the largest cluster that all GPUs with clusters support."""

_CLUSTERS = (
    (132, 66, 39, 30, 22, 17, 15, 15), (264, 132, 79, 62, 47, 39, 32, 30),
    (396, 198, 124, 92, 69, 62, 47, 45), (528, 264, 163, 124, 94, 79, 69, 62),
)  # fmt: skip
"""How many clusters an H200 runs at once: _CLUSTERS[blocks per multiprocessor - 1][blocks of a cluster - 1].

The numbers are those of cuOccupancyMaxActiveClusters on one H200.
"""

# These four numbers were measured on an H200, 2026-11-22 and 23.
_JOIN = 0.8e-6  # seconds that the blocks of a cluster wait for each other
_NEXT = 0.5  # microseconds from a block's tile to its next tile, for each block that a multiprocessor holds
_BESIDE = 0.4  # each persistent block of a multiprocessor except the first adds this fraction of the startup
_EXCHANGE = 1.5e11  # bytes per second that a block receives from the other blocks of its cluster


@cache
def resident(kernel: Kernel) -> int:
    """Blocks per multiprocessor: as the kernel's parameters say, else as many as registers and shared memory allow.

    Registers are assumed to suffice for 512 threads.
    """
    p = kernel.params
    if "blocks" in p or "RESIDENT" in p:
        return max(1, p.get("blocks") or p["RESIDENT"])
    by_memory = (227 << 10) // (p.get("shared", 0) + 1024)
    return max(1, min(512 // p.get("THREADS", 256), by_memory))


def groups(kernel: Kernel, m: int, n: int, batch: int) -> int:
    """Number of groups for `batch` results of m by n if k is not split. Each modulus counts as a result."""
    p = kernel.params
    tiles = -(-m // (p["BM"] * p.get("MULTICAST", 1))) * -(-n // p["BN"])
    return tiles * -(-batch // p.get("STACK", 1)) * (p.get("MODULI") or 1)


@lru_cache(4096)
def parts(kernel: Kernel, count: int, k: int, units: int) -> int:
    """The number of parts of k that takes the least time, for `count` groups on a GPU with `units` multiprocessors."""
    grid = _grid(kernel, units)
    steps = -(-k // grid.step) or 1
    most = min(grid.cuts, steps)
    whole = seconds(kernel, count, k, units) if most > 1 else 0.0
    if whole <= grid.startup + count * steps * grid.busy + grid.join:
        return 1
    best = min(range(1, most + 1), key=lambda cut: seconds(kernel, count, k, units, cut) if cut > 1 else whole)
    return -(-steps // -(-steps // best))  # no part is empty


def least(kernel: Kernel, count: int, k: int, units: int) -> float:
    """A lower bound of `seconds` of `count` groups, for any number of parts of k.

    Units are multiprocessors. The bound is the startup plus the larger of two times: the time if all units are busy all
    the time, and the time of a single group, alone on its units, for the shortest possible part of k. If all units may
    share a tile, only the first time counts.
    """
    grid = _grid(kernel, units)
    steps = -(-k // grid.step) or 1
    all_busy = count * steps * grid.busy
    if grid.shares:  # all units may compute one tile
        return grid.startup + all_busy / grid.most
    alone = steps * grid.column * grid.most**0.5
    if grid.cuts > 1:
        alone = min(alone, alone / grid.cuts + grid.join)
    return grid.startup + (all_busy if all_busy > alone else alone)


def room(units: int, most: int, blocks: int) -> int:
    """Number of clusters of `blocks` blocks that run at once if a multiprocessor holds `most` blocks.

    A cluster runs within one graphics processing cluster (GPC) of the GPU. GPCs differ in size, also from chip to chip,
    and the multiprocessors of a GPC that do not form a whole cluster stay idle. A grid with one cluster more than the
    returned number takes twice as long.
    """
    known = _CLUSTERS[min(most, len(_CLUSTERS)) - 1]
    return max(1, known[blocks - 1] * units * most // (UNITS * min(most, len(_CLUSTERS))))


def each_alone(kernel: Kernel, count: int, units: int, blocks: int) -> bool:
    """Whether each block of `count` clusters of `blocks` blocks has a multiprocessor for itself."""
    return bool(kernel.params.get("alone")) or resident(kernel) == 1 or spread(kernel, count, units, blocks)


def spread(kernel: Kernel, count: int, units: int, blocks: int) -> bool:
    """Whether there are so few clusters of `blocks` blocks that each block can have its own multiprocessor.

    The launch then requests so much shared memory that no multiprocessor holds two blocks. Only kernels with dynamic
    shared memory can request more.
    """
    return bool(kernel.params.get("shared")) and count <= room(units, 1, blocks)


def shared(kernel: Kernel, count: int, k: int, units: int) -> int:
    """Number of blocks that share the tiles of the last round; 0 if blocks share no tiles.

    `count` tiles are computed in rounds. In each round, every block that runs computes one tile. If the last round has
    fewer tiles than blocks, all blocks can share these tiles: each block computes a part of k. They do so if that takes
    less time. Sharing costs time: before a tile can be finished, its blocks wait until all of them have written their
    partial sums to memory.
    """
    p, at_once = kernel.params, room(units, resident(kernel), 1)
    rest = count % at_once
    if not p.get("shares") or not rest or rest * -(-k // p["BK"]) < at_once:  # less than one step per block
        return 0
    alone = 2.0 * p["BM"] * p["BN"] * k / (kernel.gflops * 1e9 / UNITS)
    return at_once if alone > _together(kernel, rest, alone, at_once) else 0


def _together(kernel: Kernel, rest: int, alone: float, blocks: int) -> float:
    """Seconds in which `blocks` blocks together compute `rest` tiles. `alone`: seconds of one block for one tile."""
    return alone * rest / blocks + 1e-6 * _NEXT + -(-blocks // rest) * joined(kernel)


def joined(kernel: Kernel) -> float:
    """Seconds of one join: the blocks that share a tile wait for each other, and exchange one tile of partial sums."""
    return _JOIN + 4.0 * kernel.params["BM"] * kernel.params["BN"] / _EXCHANGE


class _Grid(NamedTuple):
    """The data about a kernel and a number of units that `seconds` needs for any product.

    Attributes:
        most: blocks per multiprocessor.
        step: elements of k per step of the kernel's loop.
        column: seconds that a block alone on a multiprocessor takes for one step.
        busy: seconds that a group would take for one step if its work were spread over all units.
        startup: seconds to start a product.
        join: seconds to add up the sums of the blocks that share a tile.
        rooms: number of clusters that run at once, for each number of parts of k.
        cuts: the largest number of parts of k.
        persistent, waits, shares: from the kernel's params.
    """

    most: int
    step: int
    column: float
    busy: float
    startup: float
    join: float
    rooms: tuple[int, ...]
    cuts: int
    persistent: bool
    waits: bool
    shares: bool


@lru_cache(1024)
def _grid(kernel: Kernel, units: int) -> _Grid:
    p, most = kernel.params, resident(kernel)
    step, members = p.get("BK", 1), p.get("MULTICAST", 1)
    column = 2.0 * p["BM"] * p["BN"] * step * p.get("STACK", 1) / (kernel.gflops * 1e9 / UNITS) / (p.get("MODULI") or 1)
    rooms = tuple(room(units, most, members * cut) for cut in range(1, CLUSTER // members + 1))
    cuts = min(p.get("parts", 0) or 1, len(rooms))
    return _Grid(most, step, column, column * members / units, 1e-6 * kernel.startup, joined(kernel), rooms, cuts,
                 "blocks" in p, bool(p.get("waits")), bool(p.get("shares")))  # fmt: skip


def seconds(kernel: Kernel, count: int, k: int, units: int, cut: int = 1, ordered: bool = False) -> float:
    """Seconds of `count` groups, startup included, with k split into `cut` parts, if no group waits for memory.

    Groups run in rounds; a round is as many groups as can run at once. If a multiprocessor holds fewer blocks than it
    could, the blocks hide less of each other's latency, and the multiprocessor computes more slowly. If it holds
    several blocks, running blocks hide the startup of other blocks. With `ordered` (reproducible=True), each sum is one
    chain of multiply-adds, and blocks share no tile.
    """
    most, step, column, _, _, join, rooms, _, persistent, waits, shares = _grid(kernel, units)
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
    # A persistent block loads the next tile's operands early. With split-K it cannot: the join uses the same memory.
    hidden = (persistent or most > 1) and cut == 1
    startup = startup * (1 if hidden else started) + _NEXT * most * (started - 1)
    time += startup * 1e-6
    return time + started * join if cut > 1 else time  # a block multiplies nothing while it joins
