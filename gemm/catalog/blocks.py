"""How long the blocks of a GPU take for a product, and into how many parts they cut k: for dispatch and for launches.

Seconds are an H200's, whose `gflops` and `startup` the rows tell; what they are on another GPU is gemm.dispatch.cost's.
"""

from __future__ import annotations

from functools import lru_cache

from .kernel import Kernel

UNITS = 132
"""Multiprocessors of an H200."""
CLUSTER = 8
"""Blocks of the largest cluster that every GPU with clusters takes."""

_NEIGHBOURS = (18, 18, 18, 18, 16, 16, 14, 14)  # multiprocessors of an H200 that a cluster lies within
_JOIN = 2e-6  # seconds of two barriers of a cluster and of what its blocks wait for each other
_NEXT = 0.3  # microseconds from a block's tile to its next, of which little is hidden
_EXCHANGE = 1e11  # bytes a second that a block takes from the others of its cluster


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
    best = min(range(1, max(1, most) + 1), key=lambda cut: seconds(kernel, count, k, units, cut))
    return -(-steps // -(-steps // best))  # no part is empty


def room(units: int, most: int, blocks: int) -> int:
    """Clusters of so many blocks that run at once where a multiprocessor holds `most` of any.

    A cluster lies within one cluster of processors (GPC). How many multiprocessors each of these has differs from chip
    to chip, and what is left of them beside whole clusters stays idle: too large a grid runs twice as long.
    """
    if blocks == 1:
        return units * most
    whole, rest = divmod(units, sum(_NEIGHBOURS))
    near = [*_NEIGHBOURS * whole, *([16] * (rest // 16)), rest % 16]
    return max(1, sum(size * most // blocks for size in near))


def seconds(kernel: Kernel, count: int, k: int, units: int, cut: int = 1) -> float:
    """Time of `count` groups whose k is `cut` into parts, where nothing waits for memory; with their startup.

    Groups run in rounds of as many as there is room for. Where a multiprocessor holds fewer blocks than it could, they
    hide less of each other's waits, and it computes slower.
    """
    p, most = kernel.params, resident(kernel)
    blocks = p.get("MULTICAST", 1) * cut  # of a cluster
    at_once = room(units, most, blocks)
    deep = -(-max(1, -(-k // p.get("BK", 1))) // cut) * p.get("BK", 1)
    work = 2.0 * p["BM"] * p["BN"] * deep * p.get("STACK", 1) / (kernel.gflops * 1e9 / UNITS)
    rounds, rest = divmod(count, at_once)
    time = rounds * most * work
    if rest:
        held = max(1.0, most * rest / at_once)
        time += held * work / (held / most) ** 0.5
    started = rounds + (rest > 0)
    # A persistent block loads the next tile's operands early, but not into the memory that a join needs meanwhile.
    startup = kernel.startup * (1 if "blocks" in p and cut == 1 else started) + _NEXT * (started - 1)
    joined = _JOIN + 4.0 * p["BM"] * p["BN"] / _EXCHANGE if cut > 1 else 0.0
    return time + startup * 1e-6 + started * joined  # nothing multiplies while a block joins
