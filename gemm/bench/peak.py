"""The arithmetic peak of a device, for "percent of peak": measured if possible, else computed by a formula.

A peak never comes from a matrix product that is itself reported. If a device can neither be measured nor computed, it
has no peak and no percentage.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.catalog import KERNELS, Kernel
from gemm.core import operands
from gemm.core.engine import features
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device

FMA_UNITS: dict[str, dict[int, int]] = {
    "float32": {50: 128, 52: 128, 53: 128, 60: 64, 61: 128, 62: 128, 70: 64, 72: 64, 75: 64, 80: 64, 86: 128, 87: 128,
                89: 128, 90: 128, 100: 128, 103: 128, 120: 128},
    "float64": {50: 4, 52: 4, 53: 4, 60: 32, 61: 4, 62: 4, 70: 32, 72: 32, 75: 2, 80: 32, 86: 2, 87: 2, 89: 2, 90: 64,
                100: 64, 120: 2},
}  # fmt: skip
"""Fused multiply-adds per clock of one multiprocessor, by compute capability, without tensor cores."""
_ROUNDS, _CALLS = 30, 400  # of a CPU kernel; the fastest round counts

_L1_BYTES = 20 << 10  # bytes of both operand panels: they stay in an L1 cache of 32 KiB, the smallest of any CPU


@dataclass(frozen=True)
class Peak:
    """GFLOP/s, and a text that says how they were determined."""

    gflops: float
    basis: str


def peak(device: Device, dtype: str) -> Peak | None:
    """The peak of `device` in `dtype` ("float32" or "float64"), or None if it is unknown."""
    if device.kind == "cpu":
        return _cpu(dtype)
    limits = device.limits
    clock = limits.get("clock_mhz", 0) / 1000
    units = FMA_UNITS[dtype].get(limits.get("compute_capability", 0), 0)
    if device.backend == "cuda" and clock and units:
        sms = limits["sm_count"]
        return Peak(2 * sms * units * clock, f"by formula: {sms} SMs × {units} FMA units × 2 × {clock:g} GHz")
    if "intel_subgroups" in device.features and dtype == "float32" and clock and limits.get("compute_units"):
        eus = limits["compute_units"]
        return Peak(eus * 16 * clock, f"by formula: {eus} EUs × 2 FPUs × SIMD 4 × 2 × {clock:g} GHz")
    return None


@cache
def _cpu(dtype: str) -> Peak | None:
    """The CPU's peak: the rate of the inner loop of the best CPU kernel, with operands in the L1 cache.

    The loop is timed with two lengths. The difference of the times contains only the loop's arithmetic and its loads
    from L1. The call, the first loads of the tile and its last stores cancel.
    """
    try:
        (device,) = registry.backend("cpu").devices()
        engine: Any = import_module("gemm._cpu")
    except (BackendUnavailable, ImportError):
        return None
    has = features()
    able = [
        row for row in KERNELS
        if row.backend == "cpu" and row.dtype == dtype and has.issuperset(row.needs) and hasattr(engine.lib, row.name)
    ]  # fmt: skip
    if not able:
        return None
    rate, name = max((_loop_rate(engine, row), row.name) for row in able)
    threads = device.limits.get("threads", 1)
    basis = f"measured: the inner loop of {name} in the L1 cache, {rate:.1f} GFLOP/s a core, × {threads}"
    return Peak(rate * threads, basis) if rate else None


def _loop_rate(engine: Any, row: Kernel) -> float:
    """GFLOP/s of the micro-kernel of `row` on one core, or 0 if the machine was too busy for a measurement."""
    mr, nr = row.params["MR"], row.params["NR"]
    long = _L1_BYTES // (np.dtype(row.dtype).itemsize * (mr + nr)) // 8 * 8
    short = long // 4
    a, b = (operands.aligned(long * width * np.dtype(row.dtype).itemsize).view(row.dtype) for width in (mr, nr))
    a[:] = b[:] = 1
    out = np.zeros((mr, nr), row.dtype)
    address, scalar = engine.ffi.cast, engine.ffi.new("gemm_scalar *", {"re": 1.0})
    run = getattr(engine.lib, row.name).compute
    block = engine.ffi.new("gemm_block *", {
        "m": mr, "n": nr, "a": address("void *", a.ctypes.data), "b": address("void *", b.ctypes.data),
        "a_rs": 1, "a_ps": mr, "b_ps": nr, "b_cs": 1, "panels": 1,
        "to": address("void *", out.ctypes.data), "to_rs": nr, "alpha": scalar, "beta": scalar,
    })  # fmt: skip
    best = {short: math.inf, long: math.inf}
    for _ in range(_ROUNDS):
        for k in best:
            block.k, block.a_ts, block.b_ts = k, mr * k, nr * k
            start = time.perf_counter()
            for _ in range(_CALLS):
                run(block)
            best[k] = min(best[k], (time.perf_counter() - start) / _CALLS)
    gained = best[long] - best[short]
    return 2.0 * mr * nr * (long - short) / gained / 1e9 if gained > 0 else 0.0
