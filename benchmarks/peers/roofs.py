"""What the machine's cores and memory can do at most, measured: for the columns of percents."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from threading import Barrier
from typing import Any

import numpy as np

from gemm.bench.peers.base import Absent
from gemm.bench.peers.native import address, native

_VECTORS = {64: "AVX-512", 32: "AVX2", 16: "NEON"}
_BURST = 1e-3
"""Seconds: some bursts fall between the interruptions by others."""
_STREAMS, _AHEAD = (1, 2, 4, 8, 16), (0, 8, 16)


def fma_peak(dtype: str, threads: int, bursts: int = 40) -> dict[str, Any] | None:
    """{gflops: of all threads together, basis}; None where it cannot be measured. dtype: float32 or float64.

    Chains of fused multiply-adds in registers, without a load or store, on all threads at once: the sum of each
    thread's best burst, with the best of the vectors that the CPU has. No product is involved, of whomever.
    """
    try:
        lib = native().lib
    except Absent:
        return None
    double, best = dtype == "float64", (0.0, "")
    for size, name in _VECTORS.items():
        passes = 1000
        if not lib.fma_burst(size, double, passes):
            continue
        passes = int(passes * _BURST / min(_together([partial(lib.fma_burst, size, double, passes)], 9)[0]))
        burst = partial(lib.fma_burst, size, double, passes)
        best = max(best, (sum(burst() / min(seconds) / 1e9 for seconds in _together([burst] * threads, bursts)), name))
    return {"gflops": best[0], "basis": f"measured: {best[1]} FMAs in registers"} if best[1] else None


def read_rate(threads: int, size: int = 1 << 28, passes: int = 16) -> float | None:
    """GB/s at which `threads` threads read the same `size` bytes again and again, each a part of its own: the best of
    numbers of streams a thread and of prefetches. None where it cannot be measured.

    Threads share the memory, so what counts is the middle one of the passes that they make side by side.
    """
    try:
        compiled = native()
    except Absent:
        return None
    lines = size // 64 // threads // 64 * 64
    data = np.ones(lines * 8 * threads, np.int64)
    starts = [compiled.ffi.cast("char *", address(data)) + 64 * lines * part for part in range(threads)]
    best = 0.0
    for how in product(_STREAMS, _AHEAD):
        taken = _together([partial(compiled.lib.read_lines, start, lines, *how) for start in starts], passes)
        best = max(best, sum(64 * lines / statistics.median(seconds) / 1e9 for seconds in taken))
    return best


def _together(works: Sequence[Callable[[], int]], times: int) -> list[list[float]]:
    """Seconds of each of `times` calls of each of `works`, a thread each from a common start."""
    ready = Barrier(len(works))

    def timed(work: Callable[[], int]) -> list[float]:
        ready.wait()
        marks = [time.perf_counter()]
        for _ in range(times):
            work()
            marks.append(time.perf_counter())
        return [end - start for start, end in pairwise(marks)]

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(timed, works))
