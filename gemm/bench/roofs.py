"""What bounds a device: its arithmetic (gemm.bench) and the rate of its memory, measured or as its driver tells."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from gemm.bench.peak import peak
from gemm.core.problem import Device
from gemm.core.threads import granted

_BYTES = 128 << 20
"""Of the array that is copied: more than caches hold."""
_TIMES = 5


def roofs(devices: Iterable[Device], dtype: str) -> dict[str, dict[str, Any]]:
    """{device key: {gflops, gflops_basis, memory_gbs, memory_basis}}, null where it is not known.

    Peers compute on "cpu:0", which therefore is there if any device is the CPU: all of these have the same roofs.
    """
    found = {}
    for device in devices:
        known = peak(device, dtype)
        arithmetic = asdict(known) if known else {"gflops": None, "basis": "not known"}
        rate, basis = _memory(device)
        found[device.key] = {"gflops": arithmetic["gflops"], "gflops_basis": arithmetic["basis"],
                             "memory_gbs": rate, "memory_basis": basis}  # fmt: skip
        if device.kind == "cpu":
            found.setdefault("cpu:0", found[device.key])
    return found


def _memory(device: Device) -> tuple[float | None, str]:
    """GB/s and how they are known."""
    if device.kind == "cpu":
        threads = granted()
        return _copy_rate(threads), f"measured: copies of {_BYTES >> 20} MiB by {threads} threads, read and written"
    if rate := device.limits.get("memory_gbs"):
        return float(rate), "by formula: clock and width of the memory, as the driver tells them"
    return None, "not known"


@cache
def _copy_rate(threads: int) -> float:
    source = np.ones(_BYTES // 8)
    parts = list(zip(np.array_split(source, threads), np.array_split(np.empty_like(source), threads), strict=True))
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_TIMES):
            start = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))  # NumPy copies without its lock
            best = max(best, 2 * _BYTES / (time.perf_counter() - start) / 1e9)
    return best
