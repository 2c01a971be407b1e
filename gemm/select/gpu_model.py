"""The GPU model: the terms of the cost model for kernels of thread blocks, on a GPU that reports its multiprocessors.

The catalog has the rate that each kernel reaches on an H200. The model scales this rate by the number of
multiprocessors and the clock. No kernel's arithmetic is timed on the user's machine: there are so many kernels that the
user would wait too long.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gemm.catalog import Kernel, launch_arithmetic
from gemm.core.problem import Device, Problem

CALL = 5e-6
"""Seconds of a product of negligible size; used until the probe has measured this time."""
LAUNCH = 6e-6
"""Seconds that each additional kernel, such as a packing kernel, adds to a product that takes a few µs. In such a
product, the GPU waits for the host to launch each kernel.

Measured on an H200, 2026-11-24.
"""
APART = 1.2e-6
"""Seconds that a launch takes longer if it cannot start while the previous launch ends.

Launches do not overlap unless each thread block has a multiprocessor of its own (`launch_arithmetic.each_alone`).
Measured with products of 7 µs on an H200, 2026-11-24.
"""
ALONE = 0.1e-9
"""Seconds that a multiprocessor takes to copy a single element of at most 4 bytes. Larger elements take this time for
each 4 bytes.

Kernels copy single elements where rows are not aligned. Measured on an H200, 2026-11-24, with all such products in the
runs of benchmarks/auto_regret.py.
"""
WIDE = 16
"""Bytes of the widest memory access. A row is aligned if it begins at a multiple of WIDE bytes."""
CLOCK = 1980
"""Clock in MHz at which an H200 reaches the rates in the catalog."""
MEMORY = 4800
"""GB/s of an H200's memory. The model uses it when the driver does not report the device's rate."""
STREAMED, SHARED = 0.88, 0.66
"""Shares of the memory's rate that kernels reach: STREAMED for kernels that read an operand once from end to end,
SHARED for other kernels.

Measured on an H200, 2026-11-22.
"""
FEW = 8
"""Kernels whose tiles have at most FEW rows or columns read an operand once from end to end."""
_STEPS, _DOUBLE = 4, 8
"""Launches of a product by residues; bytes of an element of its result."""
_SLOW_DOUBLES = 2  # rate of float32 ÷ rate of float64 on an H200
TRANSPOSED = {"N": "T", "T": "N", "S": "S"}
"""{layout of an operand: its layout in the transposed product}, in the letters of Problem.layout."""
_ALONG_K, _ACROSS, _NEITHER = 1, 2, 4


class Terms(NamedTuple):
    """The parts of a product's time on a kernel, in seconds. gemm.select.cost combines them into one time.

    Attributes:
        compute: arithmetic.
        memory: reading operands and writing the result; overlaps `compute`.
        packing: packing operands; precedes `compute` and `memory`.
        launch: launch time in addition to the launch time that every product on the kernel has (Rates.launch).
        storing: stores of single elements of the result; overlap `compute`.
    """

    compute: float
    memory: float
    packing: float = 0.0
    launch: float = 0.0
    storing: float = 0.0


def terms(kernel: Kernel, device: Device, problem: Problem, traffic: float, *, least: bool = False) -> Terms:
    """Return the terms of `problem` on a kernel of thread blocks.

    Args:
        traffic: bytes of all operands and the result.
        least: whether to return a lower bound, which ignores what can only add time: layouts, alignment, and idle
            multiprocessors.
    """
    m, n, sizes = problem.m, problem.n, problem.itemsizes
    a, b, out = tuple(problem.layout)
    if kernel.swaps(m, n, problem.layout) if kernel.swap else out == "T":
        m, n, a, b, out, sizes = n, m, TRANSPOSED[b], TRANSPOSED[a], TRANSPOSED[out], sizes[::-1]
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
    # One multiprocessor computes `share` of all elements, and runs `together` blocks at once.
    share, together = 1 / min(count, units), min(-(-count // units), most)
    storing = 0.0
    compute += ALONE * alone * share / together**0.5  # other blocks' arithmetic hides a part of these copies
    # Kernels with tensor maps transpose a result while they store it. Other kernels store a transposed result element
    # by element.
    if out == "S" or (m if out == "T" else n) * problem.itemsize % WIDE or (out == "T" and not p.get("maps")):
        storing = 1e-9 * kernel.scattered * m * n * problem.batch * share
        # The stores of a tile delay the next tile of the multiprocessor, unless the multiprocessor runs other blocks
        # meanwhile.
        if most == 1 or "blocks" in p:
            compute, storing = compute + storing, 0.0
    return Terms(compute * slower, traffic / reached, packing, launch, storing * slower)


def _brought(
    kernel: Kernel, shape: tuple[int, int, int, int], layouts: tuple[str, str, int, int], rate: float, units: int
) -> tuple[float, float, float]:  # fmt: skip
    """Return the costs of bringing the operands into the kernel's layout.

    Args:
        shape: (m, n, k, batch).
        layouts: the layouts of a and b, then the bytes of an element of each.
        rate: bytes/s of the device's memory.
        units: the number of multiprocessors.

    Returns:
        Seconds to launch the packing kernels, in addition to the product's own launch; seconds that packing takes; the
        number of elements that the kernel loads one by one. An element of more than 4 bytes counts once for each 4
        bytes, and an element that is loaded several times counts each time.
    """
    (m, n, k, batch), p = shape, kernel.params
    launch, packing, alone = 0.0, 0.0, 0.0
    ways = _ways(kernel, *layouts)
    for (size, along_k, moved, unaligned, transposed, vector), extent, other, block in (
        (ways[0], m, n, p["BN"]), (ways[1], n, m, p["BM"]),
    ):  # fmt: skip
        # Bytes of a contiguous line of the operand. A Problem has no strides, so gaps between lines are ignored.
        aligned = size * (k if along_k else extent)
        elements = extent * k * batch
        if aligned % WIDE:
            moved = unaligned
        if moved:
            launch += LAUNCH
            # Packing copies each element singly: once if rows are not aligned, and once more if packing transposes.
            singly = (aligned % WIDE > 0) + transposed
            packing += max(elements * moved / (rate * STREAMED), elements * ALONE / units * singly)
        elif not vector or aligned % vector:
            alone += -(-other // block) * elements * max(1.0, size / 4)
    if moduli := p.get("MODULI"):  # the residues of the product are written, and combined by a kernel of its own
        launch += LAUNCH + (batch - 1) * _STEPS * APART
        packing += (moduli + _DOUBLE) * m * n * batch / (rate * STREAMED)
    return launch, packing, alone


@lru_cache(1024)
def _scales(kernel: Kernel, device: Device) -> tuple[float, float, float]:
    """Return how the device compares with an H200.

    Returns:
        Bytes/s of the device's memory; bytes/s that the kernel reaches; time on one multiprocessor of the device ÷ time
        on one multiprocessor of an H200.
    """
    limits, p, slower = device.limits, kernel.params, CLOCK / device.limits["clock_mhz"]
    if kernel.dtype == "float64":
        slower *= max(1.0, limits.get("fp64_ratio", _SLOW_DOUBLES) / _SLOW_DOUBLES)
    rate = (limits.get("memory_gbs") or MEMORY) * 1e9
    return rate, rate * (STREAMED if p.get("streams") or min(p["BM"], p["BN"]) <= FEW else SHARED), slower


class _Way(NamedTuple):
    """How a kernel reads an operand.

    Attributes:
        size: bytes of an element.
        along_k: whether the operand has unit stride along k.
        moved: bytes that packing reads and writes for each element before the kernel can read it; 0 without packing.
        unaligned: `moved` for rows that are not aligned to `WIDE` bytes.
        transposed: whether packing transposes the operand.
        vector: the least alignment of the operand's rows, in bytes, at which the kernel does not copy elements one by
            one. 0: the kernel always copies elements one by one. 1: the kernel does the same, but the kernel's `gflops`
            in the catalog include the time of these copies.
    """

    size: int
    along_k: bool
    moved: int
    unaligned: int
    transposed: bool
    vector: int


@lru_cache(4096)
def _ways(kernel: Kernel, a: str, b: str, size_a: int, size_b: int) -> tuple[_Way, _Way]:
    """Return how `kernel` reads a and b.

    Args:
        a, b: the layouts of the operands.
        size_a, size_b: bytes of an element of each operand.
    """
    p = kernel.params

    def way(which: str, size: int, contiguous: int, mapped: int) -> _Way:
        vector = p.get(f"{which}_vector") or p.get("vector") or size
        if p.get("gathers") and contiguous == _ALONG_K:
            vector = 1 if which == "a" else 0
        before = size + 2 * p["planes"] if p.get("planes") else size + 2 if p.get("widen") else 0
        if p.get("MODULI"):  # the operand is read twice
            before = 2 * size + p["MODULI"]
        transposed = not p.get(f"{which}_lies", 3) & contiguous
        moved = before or (2 * size if transposed else 0)
        unaligned = before or (2 * size if p.get("maps", 0) & mapped else moved)
        return _Way(size, contiguous == _ALONG_K, moved, unaligned, transposed, vector)

    return (
        way("a", size_a, _ALONG_K if a == "N" else _ACROSS if a == "T" else _NEITHER, 1),
        way("b", size_b, _ALONG_K if b == "T" else _ACROSS if b == "N" else _NEITHER, 2),
    )
