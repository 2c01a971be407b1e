"""The time of a product on a GPU whose multiprocessors and memory are known: the cost model for rows of blocks.

What a row reaches on an H200, which the catalog says, is scaled by multiprocessors and clock. No row is timed for this:
there are more of them than a user would wait for.
"""

from __future__ import annotations

import math

from gemm.catalog import Kernel, blocks
from gemm.dispatch.plan import Candidate, Rates
from gemm.problem import Device, Problem

CALL = 5e-6
"""Seconds of a product too small to matter."""
LAUNCH = 6e-6
"""Seconds of one more kernel behind another, for products of some µs, which wait for the host to launch them."""
APART = 1.2e-6
"""Seconds that a launch and its startup take longer where they cannot begin while the launch ahead ends, as those of
blocks that would share a multiprocessor do not (see cuda_sequence). Of products of 7 µs on an H200."""
ALONE = 0.1e-9
"""Seconds that a multiprocessor takes for an element (or for 4 bytes of a larger one) which it copies by itself, as it
does where rows are not aligned. Of all products of benchmarks/auto_regret.py's runs on an H200 that do."""
WIDE = 16
"""Bytes of the widest access, that rows are aligned to or not."""
CLOCK = 1980
"""MHz at which an H200 reaches what the rows say."""
MEMORY = 4800
"""GB/s of an H200's memory, for drivers that do not tell theirs."""
STREAMED, SHARED = 0.88, 0.66
"""Of the memory's rate: what kernels reach that read an operand once from end to end, and others."""
FEW = 8
"""Rows or columns of a tile of kernels that stream."""
_SLOW_DOUBLES = 2  # float32's rate over float64's on an H200
TURNED = {"N": "T", "T": "N", "S": "S"}
"""How an operand lies for the transposed product, by how it lies: the letters of Problem.layout."""
_ALONG_K, _ACROSS, _NEITHER = 1, 2, 4


def predict(kernel: Kernel, device: Device, problem: Problem, link: Rates | None, origin: str = "") -> Candidate:
    """The time of `problem` on a kernel of blocks; `link`: what was measured between host and device."""
    m, n, sizes = problem.m, problem.n, problem.itemsizes
    a, b, out = tuple(problem.layout)
    if kernel.swaps(m, n, problem.layout) if kernel.swap else out == "T":
        m, n, a, b, out, sizes = n, m, TURNED[b], TURNED[a], TURNED[out], sizes[::-1]
    k, limits, p = problem.k, device.limits, kernel.params
    rate, units = _memory(device), limits["sm_count"]
    operands = (
        ("a", sizes[0], m, -(-n // p["BN"]), _ALONG_K if a == "N" else _ACROSS if a == "T" else _NEITHER),
        ("b", sizes[1], n, -(-m // p["BM"]), _ALONG_K if b == "T" else _ACROSS if b == "N" else _NEITHER),
    )
    launch, packing, alone = link.launch if link else CALL, 0.0, 0.0
    for which, size, extent, passes, lies in operands:
        aligned = size * (k if lies == _ALONG_K else extent)  # dense rows, as far as a problem tells
        elements = extent * k * problem.batch
        moved = _moved(kernel, which, size, lies, aligned)
        if moved:
            launch += LAUNCH
            singly = (aligned % WIDE > 0) + (not p.get(f"{which}_lies", 3) & lies)  # turned: once more
            packing += max(elements * moved / (rate * STREAMED), elements * ALONE / units * singly)
        elif _singly(kernel, which, size, lies, aligned):
            alone += passes * elements * max(1.0, size / 4)
    groups = blocks.groups(kernel, m, n, problem.batch)
    cut = 1 if problem.reproducible else blocks.parts(kernel, groups, k, units)
    compute = blocks.seconds(kernel, groups, k, units, cut, problem.reproducible)
    cluster, most = cut * p.get("MULTICAST", 1), blocks.resident(kernel)
    if "sm_90" in device.features and not _early(kernel, groups, cluster, units):
        launch += APART
    count = groups * cluster
    share, beside = 1 / min(count, units), min(-(-count // units), most)  # of a multiprocessor
    compute += ALONE * alone * share / beside**0.5  # blocks hide some of it behind each other's arithmetic
    # Kernels with tensor maps turn what they store on the way, others store a turned result by elements.
    if out == "S" or (m if out == "T" else n) * problem.itemsize % WIDE or (out == "T" and not p.get("maps")):
        storing = 1e-9 * kernel.scattered * m * n * problem.batch * share
        # A tile's end stands in the way of the multiprocessor's next one, unless other blocks go on meanwhile.
        compute = compute + storing if most == 1 or "blocks" in p else overlapped(compute, storing)
    compute *= CLOCK / limits["clock_mhz"]
    if kernel.dtype == "float64":
        compute *= max(1.0, limits.get("fp64_ratio", _SLOW_DOUBLES) / _SLOW_DOUBLES)
    bytes_in, bytes_out = problem.moved
    memory = (bytes_in + bytes_out) / (rate * _share(kernel))
    busy = overlapped(compute, memory) + packing
    transfer = moving(link, bytes_in, bytes_out, busy) if link and problem.device == "host" else 0.0
    return Candidate(kernel, device, launch + transfer + busy, launch, transfer, busy, "modelled", origin=origin)


def _early(kernel: Kernel, groups: int, cluster: int, units: int) -> bool:
    """Whether each block of so many `groups`, in clusters of so many, has a multiprocessor for itself."""
    alone = kernel.params.get("alone") or blocks.resident(kernel) == 1
    return bool(alone) or blocks.spread(kernel, groups, units, cluster)


def overlapped(compute: float, memory: float) -> float:
    """Time of both at once: the shorter of the two hides behind the other, but not wholly."""
    return max(compute, memory) + 0.1 * min(compute, memory)


def moving(link: Rates, bytes_in: int, bytes_out: int, busy: float) -> float:
    """Seconds that host operands and a result add to a product that keeps a device busy for so long."""
    if not (link.upload and link.download and (bytes_in or bytes_out)):
        return 0.0
    up, down = bytes_in / link.upload, bytes_out / link.download
    if bytes_in + bytes_out < (link.overlaps or math.inf):
        return link.start + up + down
    return link.start + overlapped(overlapped(up, down), busy) - busy


def soonest(kernel: Kernel, device: Device, link: Rates | None) -> tuple[float, float, float, float]:
    """Seconds that `predict` never goes below: of a launch, of what is before and after the arithmetic, of a
    multiplication or addition, and of a byte."""
    limits = device.limits
    flops = kernel.gflops * 1e9 * limits["sm_count"] / blocks.UNITS * limits["clock_mhz"] / CLOCK
    if kernel.params.get("shares"):
        flops *= blocks.resident(kernel)
    startup = 1e-6 * kernel.startup * CLOCK / limits["clock_mhz"]
    return link.launch if link else CALL, startup, 1 / flops, 1 / (_memory(device) * _share(kernel))


def _memory(device: Device) -> float:
    """Bytes/s of the device's memory."""
    return (device.limits.get("memory_gbs") or MEMORY) * 1e9


def _share(kernel: Kernel) -> float:
    """How much of the memory's rate it reaches."""
    few = kernel.params.get("streams") or min(kernel.params["BM"], kernel.params["BN"]) <= FEW
    return STREAMED if few else SHARED


def _singly(kernel: Kernel, which: str, size: int, lies: int, aligned: int) -> bool:
    """Whether `kernel` copies elements of an operand that lies so one by one, where its `gflops` was not found so."""
    p = kernel.params
    if p.get("gathers") and lies == _ALONG_K:
        return which == "b"
    return aligned % (p.get(f"{which}_vector") or p.get("vector") or size) > 0


def _moved(kernel: Kernel, which: str, size: int, lies: int, aligned: int) -> int:
    """Bytes an element that are read and written before `kernel` can read an operand that lies so; 0: it can."""
    p = kernel.params
    if p.get("planes"):
        return size + 2 * p["planes"]
    if p.get("widen"):
        return size + 2
    by_map = p.get("maps", 0) & (1 if which == "a" else 2)
    fits = p.get(f"{which}_lies", 3) & lies
    return 0 if fits and not (by_map and aligned % WIDE) else 2 * size
