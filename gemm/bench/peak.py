"""The arithmetic peak of a device, for "percent of peak": measured where that is possible, else by a known formula.

A peak is never taken from a matrix product that is itself reported. Where neither a measurement nor a formula is
known there is none, and no percentage.
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
"""Fused multiply-adds a clock of one multiprocessor, by compute capability; tensor cores apart."""
_ROUNDS, _CALLS = 30, 400  # of a CPU kernel, of which the quickest round counts

_L1_BYTES = 20 << 10  # of operands: below the 32 KiB that CPUs have at least, so that both panels stay there


@dataclass(frozen=True)
class Peak:
    """GFLOP/s, and how they are known."""

    gflops: float
    basis: str


def peak(device: Device, dtype: str) -> Peak | None:
    """The peak of `device` in `dtype` ("float32" or "float64"), or None where it is not known."""
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
    """The CPU's peak, whatever runs on its cores: its best kernel's inner loop, timed in the L1 cache.

    The difference of two lengths of that loop holds nothing but its arithmetic and loads from L1: neither the call
    nor the tile's first loads and last stores.
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
    """GFLOP/s of one core in `row`'s micro-kernel, or 0 if the machine was too busy to tell."""
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
