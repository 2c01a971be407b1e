"""The limits of a device: its arithmetic peak (gemm.bench.peak) and its memory bandwidth, measured or by formula."""

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
"""Bytes of the array that is copied, more than caches hold."""
_TIMES = 5


def roofs(devices: Iterable[Device], dtype: str) -> dict[str, dict[str, Any]]:
    """{device key: {gflops, gflops_basis, memory_gbs, memory_basis}}. Unknown values are null.

    Peers on the CPU compute on "cpu:0". Therefore the result has "cpu:0" if any device is the CPU; all devices on the
    CPU have the same limits.
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
    """The bandwidth in GB/s, and a text that says how it was determined."""
    if device.kind == "cpu":
        threads = granted()
        return _copy_rate(threads), f"measured: copies of {_BYTES >> 20} MiB by {threads} threads, read and written"
    if rate := device.limits.get("memory_gbs"):
        return float(rate), "by formula: clock and width of the memory, as reported by the driver"
    return None, "not known"


@cache
def _copy_rate(threads: int) -> float:
    source = np.ones(_BYTES // 8)
    parts = list(zip(np.array_split(source, threads), np.array_split(np.empty_like(source), threads), strict=True))
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_TIMES):
            start = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))  # NumPy releases the GIL while it copies
            best = max(best, 2 * _BYTES / (time.perf_counter() - start) / 1e9)
    return best
