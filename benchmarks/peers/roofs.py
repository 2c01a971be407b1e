"""Measure the peak rates of the machine's cores and memory, for the columns of percentages."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np

from gemm.bench.peers import Absent
from gemm.bench.peers.cblas import address, native

_VECTORS = {64: "AVX-512", 32: "AVX2", 16: "NEON"}
_BURST = 1e-3
"""Seconds of a burst, short enough that some bursts are not interrupted by other processes."""
_STREAMS, _AHEAD = (1, 2, 4, 8, 16), (0, 8, 16)


def cpuinfo() -> dict[str, Any]:
    """{model name, cpu family, model, stepping, flags, caches}, as far as Linux tells them.

    flags: those of vector and matrix instructions.
    caches: a list of {level, type, size, ways_of_associativity, shared_cpu_list}, each a text; those of the first CPU.
    """
    text = _read(Path("/proc/cpuinfo"))
    facts = dict(re.findall(r"^(model name|cpu family|model|stepping|flags|Features)\s*: (.*)$", text, re.M))
    caches = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        names = "level", "type", "size", "ways_of_associativity", "shared_cpu_list"
        caches.append({name: _read(folder / name).strip() for name in names})
    flags = facts.pop("flags", facts.pop("Features", ""))
    isa = re.compile(r"sse|avx|amx|fma|f16c|vnni|bf16|fp16|asimd|sve|sme|i8mm|neon|fphp")
    return {**facts, "flags": [flag for flag in flags.split() if isa.search(flag)], "caches": caches}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def fma_peak(dtype: str, threads: int, bursts: int = 40) -> dict[str, Any] | None:
    """{gflops: of all threads together, basis}; None if it cannot be measured. dtype: float32 or float64.

    All threads run chains of fused multiply-adds in registers at the same time, without loads and stores. The peak is
    the sum of the threads' rates in their best bursts, with the fastest vector instructions of the CPU. No library
    takes part.
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
    """GB/s at which `threads` threads read the same `size` bytes repeatedly, each thread its own part.

    The result is the best over several numbers of streams per thread and of prefetch distances, or None if it cannot
    be measured. The threads share the memory bandwidth, so the median over the passes counts, not the best pass.
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
    """Seconds of each of `times` calls of each of `works`. Each work has its own thread; all threads start together."""
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
