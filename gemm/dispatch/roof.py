"""The time of a product on a GPU whose multiprocessors and memory are known: the cost model for rows of blocks.

What a row reaches on an H200, which the catalog says, is scaled by multiprocessors and clock. No row is timed for this:
there are more of them than a user would wait for.
"""

from __future__ import annotations

import numpy as np

from gemm.catalog import Kernel, blocks
from gemm.dispatch.plan import Candidate, Rates
from gemm.problem import Device, Problem

CALL = 5e-6
"""Seconds of a product too small to matter."""
LAUNCH = 6e-6
"""Seconds of one more kernel behind another, for products of some µs, which wait for the host to launch them."""
CLOCK = 1980
"""MHz at which an H200 reaches what the rows say."""
MEMORY = 4800
"""GB/s of an H200's memory, for drivers that do not tell theirs."""
STREAMED, SHARED = 0.88, 0.66
"""Of the memory's rate: what kernels reach that read an operand once from end to end, and others."""
RAGGED_STREAMED, RAGGED = 1.4, 2.3
"""Times as long these take for a result whose rows are not aligned to 16 bytes. Those that do not stream store a lane's
neighbours one by one then: 1.8 to 2.9 times as long on an H200, the most with float32."""
FEW = 8
"""Rows or columns of a tile of kernels that stream."""
_SLOW_DOUBLES = 2  # float32's rate over float64's on an H200
_TRANSPOSED = {"N": "T", "T": "N", "S": "S"}
_ALONG_K, _ACROSS, _NEITHER = 1, 2, 4


def predict(kernel: Kernel, device: Device, problem: Problem, link: Rates | None, origin: str = "") -> Candidate:
    """The time of `problem` on a kernel of blocks; `link`: what was measured between host and device."""
    m, n, a, b = problem.m, problem.n, problem.layout[0], problem.layout[1]
    if kernel.swaps(m, n, problem.layout) if kernel.swap else problem.layout[2] == "T":
        m, n, a, b = n, m, _TRANSPOSED[b], _TRANSPOSED[a]
        inputs = problem.inputs[::-1]
    else:
        inputs = problem.inputs
    sizes = [np.dtype(name).itemsize for name in inputs or (problem.dtype, problem.dtype)]
    k, limits = problem.k, device.limits
    rate = _memory(device)
    operands = (
        ("a", sizes[0], m, _ALONG_K if a == "N" else _ACROSS if a == "T" else _NEITHER),
        ("b", sizes[1], n, _ALONG_K if b == "T" else _ACROSS if b == "N" else _NEITHER),
    )
    launch, packing, slower = link.launch if link else CALL, 0.0, 1.0
    for which, size, extent, lies in operands:
        aligned = size * (k if lies == _ALONG_K else extent)  # dense rows, as far as a problem tells
        moved = _moved(kernel, which, size, lies, aligned)
        if moved:
            launch += LAUNCH
            packing += moved * extent * k * problem.batch / (rate * STREAMED)
        elif aligned % (kernel.params.get(f"{which}_vector") or kernel.params.get("vector") or size):
            slower = kernel.unaligned
    groups = blocks.groups(kernel, m, n, problem.batch)
    cut = 1 if problem.reproducible else blocks.parts(kernel, groups, k, limits["sm_count"])
    compute = blocks.seconds(kernel, groups, k, limits["sm_count"], cut, problem.reproducible)
    compute *= slower * CLOCK / limits["clock_mhz"]
    if kernel.dtype == "float64":
        compute *= max(1.0, limits.get("fp64_ratio", _SLOW_DOUBLES) / _SLOW_DOUBLES)
    bytes_in, bytes_out = problem.moved
    memory = (bytes_in + bytes_out * _ragged(kernel, problem)) / (rate * _share(kernel))
    # The shorter of the two hides behind the other, but not wholly.
    busy = max(compute, memory) + 0.1 * min(compute, memory) + packing
    transfer = 0.0
    if link and link.upload and link.download and problem.device == "host":
        transfer = bytes_in / link.upload + bytes_out / link.download
    return Candidate(kernel, device, launch + transfer + busy, launch, transfer, busy, "modelled", origin=origin)


def soonest(kernel: Kernel, device: Device, link: Rates | None) -> tuple[float, float, float]:
    """Seconds of a launch, of a multiplication or addition, and of a byte, that `predict` never goes below."""
    limits = device.limits
    flops = kernel.gflops * 1e9 * limits["sm_count"] / blocks.UNITS * limits["clock_mhz"] / CLOCK
    if kernel.params.get("shares"):
        flops *= blocks.resident(kernel)
    return link.launch if link else CALL, 1 / flops, 1 / (_memory(device) * _share(kernel))


def _memory(device: Device) -> float:
    """Bytes/s of the device's memory."""
    return (device.limits.get("memory_gbs") or MEMORY) * 1e9


def _share(kernel: Kernel) -> float:
    """How much of the memory's rate it reaches."""
    few = kernel.params.get("streams") or min(kernel.params["BM"], kernel.params["BN"]) <= FEW
    return STREAMED if few else SHARED


def _ragged(kernel: Kernel, problem: Problem) -> float:
    """Times as long as another result takes one with rows like that of `problem`, as far as it tells."""
    length = problem.m if problem.layout[2] == "T" else problem.n
    if length * np.dtype(problem.dtype).itemsize % 16 == 0:
        return 1.0
    return RAGGED_STREAMED if kernel.params.get("streams") else RAGGED


def _moved(kernel: Kernel, which: str, size: int, lies: int, aligned: int) -> int:
    """Bytes an element that are read and written before `kernel` can read an operand that lies so; 0: it can."""
    p = kernel.params
    if p.get("planes"):
        return size + 2 * p["planes"]
    if p.get("widen"):
        return size + 2
    by_map = p.get("maps", 0) & (1 if which == "a" else 2)
    fits = p.get(f"{which}_lies", 3) & lies
    return 0 if fits and not (by_map and aligned % 16) else 2 * size
