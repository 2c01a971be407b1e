"""The terms of the cost model for a GPU whose multiprocessors and memory are known, and rows that compute by blocks.

What a row reaches on an H200, which the catalog says, is scaled by multiprocessors and clock. No row is timed for this:
there are more of them than a user would wait for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gemm.catalog import Kernel, launch_arithmetic
from gemm.core.problem import Device, Problem

CALL = 5e-6
"""Seconds of a product too small to matter, until it was measured."""
LAUNCH = 6e-6
"""Seconds of one more kernel behind another, for products of some µs, which wait for the host to launch them. On an
H200, 2026-11-24."""
APART = 1.2e-6
"""Seconds that a launch and its startup take longer where they cannot begin while the launch ahead ends, as those of
blocks that would share a multiprocessor do not (see cuda_sequence). Of products of 7 µs on an H200, 2026-11-24."""
ALONE = 0.1e-9
"""Seconds that a multiprocessor takes for an element (or for 4 bytes of a larger one) which it copies by itself, as it
does where rows are not aligned. Of all products of benchmarks/auto_regret.py's runs on an H200 that do, 2026-11-24."""
WIDE = 16
"""Bytes of the widest access, that rows are aligned to or not."""
CLOCK = 1980
"""MHz at which an H200 reaches what the rows say."""
MEMORY = 4800
"""GB/s of an H200's memory, for drivers that do not tell theirs."""
STREAMED, SHARED = 0.88, 0.66
"""Of the memory's rate: what kernels reach that read an operand once from end to end, and others. On
an H200, 2026-11-22."""
FEW = 8
"""Rows or columns of a tile of kernels that stream."""
_SLOW_DOUBLES = 2  # float32's rate over float64's on an H200
TURNED = {"N": "T", "T": "N", "S": "S"}
"""How an operand lies for the transposed product, by how it lies: the letters of Problem.layout."""
_ALONG_K, _ACROSS, _NEITHER = 1, 2, 4


class Terms(NamedTuple):
    """What a product takes on a kernel, in seconds; gemm.select.cost makes one time of it.

    Attributes:
        compute: arithmetic. memory: reading operands and writing the result, at the same time as that. packing: of
            operands, before that. launch: beyond what each product on the kernel takes.
    """

    compute: float
    memory: float
    packing: float = 0.0
    launch: float = 0.0


def terms(kernel: Kernel, device: Device, problem: Problem, traffic: float, *, least: bool = False) -> Terms:
    """Those of `problem` on a kernel of blocks.

    Args:
        traffic: bytes of all operands and the result.
        least: without what only adds: how operands and rows lie, multiprocessors that have nothing to do.
    """
    m, n, sizes = problem.m, problem.n, problem.itemsizes
    a, b, out = tuple(problem.layout)
    if kernel.swaps(m, n, problem.layout) if kernel.swap else out == "T":
        m, n, a, b, out, sizes = n, m, TURNED[b], TURNED[a], TURNED[out], sizes[::-1]
    k, p, units = problem.k, kernel.params, device.limits["sm_count"]
    rate, reached, slower = _scales(kernel, device)
    groups = launch_arithmetic.groups(kernel, m, n, problem.batch)
    if least:
        return Terms(launch_arithmetic.least(kernel, groups, k, units) * slower, traffic / reached)
    cut = 1 if problem.reproducible else launch_arithmetic.parts(kernel, groups, k, units)
    compute = launch_arithmetic.seconds(kernel, groups, k, units, cut, problem.reproducible)
    launch, packing, alone = _brought(kernel, (m, n, k, problem.batch), (a, b, *sizes), rate, units)
    cluster, most = cut * p.get("MULTICAST", 1), launch_arithmetic.resident(kernel)
    if launch_arithmetic.OVERLAPPING in device.features and not launch_arithmetic.each_alone(
        kernel, groups, units, cluster
    ):
        launch += APART
    count = groups * cluster
    share, together = 1 / min(count, units), min(-(-count // units), most)  # of a multiprocessor
    compute += ALONE * alone * share / together**0.5  # blocks hide some of it behind each other's arithmetic
    # Kernels with tensor maps turn what they store on the way, others store a turned result by elements.
    if out == "S" or (m if out == "T" else n) * problem.itemsize % WIDE or (out == "T" and not p.get("maps")):
        storing = 1e-9 * kernel.scattered * m * n * problem.batch * share
        # A tile's end stands in the way of the multiprocessor's next one, unless other blocks go on meanwhile.
        compute = compute + storing if most == 1 or "blocks" in p else overlapped(compute, storing)
    return Terms(compute * slower, traffic / reached, packing, launch)


def _brought(
    kernel: Kernel, shape: tuple[int, int, int, int], lie: tuple[str, str, int, int], rate: float, units: int
) -> tuple[float, float, float]:  # fmt: skip
    """Seconds of launches and of packing before the kernel can read its operands, and elements that it loads singly.

    Args:
        shape: m, n, k, batch. lie: how a and b do, and the bytes of their elements.
    """
    (m, n, k, batch), p = shape, kernel.params
    launch, packing, alone = 0.0, 0.0, 0.0
    ways = _ways(kernel, *lie)
    for (size, along_k, moved, unaligned, turned, vector), extent, other, block in (
        (ways[0], m, n, p["BN"]), (ways[1], n, m, p["BM"]),
    ):  # fmt: skip
        aligned = size * (k if along_k else extent)  # dense rows, as far as a problem tells
        elements = extent * k * batch
        if aligned % WIDE:
            moved = unaligned
        if moved:
            launch += LAUNCH
            singly = (aligned % WIDE > 0) + turned  # which moves each element once more
            packing += max(elements * moved / (rate * STREAMED), elements * ALONE / units * singly)
        elif not vector or aligned % vector:
            alone += -(-other // block) * elements * max(1.0, size / 4)
    return launch, packing, alone


def overlapped(compute: float, memory: float) -> float:
    """Time of both at once: the shorter of the two hides behind the other, but not wholly."""
    return compute + 0.1 * memory if compute > memory else memory + 0.1 * compute


@lru_cache(maxsize=1024)
def _scales(kernel: Kernel, device: Device) -> tuple[float, float, float]:
    """Bytes/s of the device's memory, and what the kernel reaches of them; times what a multiprocessor of an H200 takes
    that one of the device does."""
    limits, p, slower = device.limits, kernel.params, CLOCK / device.limits["clock_mhz"]
    if kernel.dtype == "float64":
        slower *= max(1.0, limits.get("fp64_ratio", _SLOW_DOUBLES) / _SLOW_DOUBLES)
    rate = (limits.get("memory_gbs") or MEMORY) * 1e9
    return rate, rate * (STREAMED if p.get("streams") or min(p["BM"], p["BN"]) <= FEW else SHARED), slower


class _Way(NamedTuple):
    """How a kernel reads an operand.

    Attributes:
        size: bytes of an element. along_k: that is how its rows lie.
        moved: bytes an element that are read and written before the kernel can read it. unaligned: the same where
            rows are not aligned to `WIDE` bytes. turned: that turns it.
        vector: to how many bytes rows are aligned where it does not copy elements one by one; 0: it always does. Not
            said of what its `gflops` was found with.
    """

    size: int
    along_k: bool
    moved: int
    unaligned: int
    turned: bool
    vector: int


@lru_cache(maxsize=4096)
def _ways(kernel: Kernel, a: str, b: str, size_a: int, size_b: int) -> tuple[_Way, _Way]:
    """How it reads operands that lie so, with elements of so many bytes."""
    p = kernel.params

    def way(which: str, size: int, lies: int, mapped: int) -> _Way:
        vector = p.get(f"{which}_vector") or p.get("vector") or size
        if p.get("gathers") and lies == _ALONG_K:
            vector = 1 if which == "a" else 0
        before = size + 2 * p["planes"] if p.get("planes") else size + 2 if p.get("widen") else 0
        turned = not p.get(f"{which}_lies", 3) & lies
        moved = before or (2 * size if turned else 0)
        unaligned = before or (2 * size if p.get("maps", 0) & mapped else moved)
        return _Way(size, lies == _ALONG_K, moved, unaligned, turned, vector)

    return (
        way("a", size_a, _ALONG_K if a == "N" else _ACROSS if a == "T" else _NEITHER, 1),
        way("b", size_b, _ALONG_K if b == "T" else _ACROSS if b == "N" else _NEITHER, 2),
    )
