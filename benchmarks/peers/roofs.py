"""What the machine's cores and memory can do at most, measured: for the columns of percents."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np

from gemm.cli.peak import peak
from gemm.dispatch import registry


def fma_peak(dtype: str) -> dict[str, Any] | None:
    """{gflops: of one core, basis}; None where it is not known."""
    (device,) = registry.backend("cpu").devices()
    known = peak(device, dtype)
    if known is None:
        return None
    return {**asdict(known), "gflops": known.gflops / device.limits.get("threads", 1)}


def read_rate(threads: int, size: int = 1 << 28, rounds: int = 7) -> float:
    """GB/s at which `threads` threads read `size` bytes from memory: the best of several loops and rounds.

    Loops of NumPy's own, not of a BLAS: maxima of integers of each width, which compile to little more than loads.
    """
    parts = np.array_split(np.ones(size // 8, np.int64), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for dtype in (np.int8, np.int32, np.int64):
            views = [part.view(dtype) for part in parts]
            for _ in range(rounds):
                start = time.perf_counter()
                for done in [pool.submit(view.max) for view in views]:
                    done.result()
                best = max(best, size / (time.perf_counter() - start) / 1e9)
    return best
