"""The limits of a device: its arithmetic peak and its memory bandwidth, measured if possible, else by a formula.

A peak never comes from a matrix product that is itself reported. If the peak of a device can be neither measured nor
computed, the device has no peak and no percentage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.bench.contest import timed
from gemm.catalog import KERNELS, Kernel
from gemm.core import operands
from gemm.core.engine import engine, features
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.core.threads import granted

FMA_UNITS = {
    (128, 4): (50, 52, 53, 61, 62), (64, 32): (60, 70, 72, 80), (64, 2): (75,), (128, 2): (86, 87, 89, 120),
    (128, 64): (90, 100), (128, 0): (103,),
}  # fmt: skip
"""{(float32, float64): compute capabilities}. The keys are fused multiply-adds per clock of one multiprocessor, without
tensor cores; 0 means unknown."""
_ROUNDS, _CALLS = 30, 400  # rounds, and calls of a CPU micro-kernel in each; the fastest round counts
_L1_BYTES = 20 << 10  # bytes of both operand panels: they stay in an L1 cache of 32 KiB, the smallest of any CPU
_COPIED, _COPIES = 128 << 20, 5  # bytes of an array that no cache holds, and how often it is copied; the fastest counts


@dataclass(frozen=True)
class Peak:
    """The peak in GFLOP/s, and a text that says how it was determined."""

    gflops: float
    basis: str


def roofs(devices: Iterable[Device], dtype: str) -> dict[str, dict[str, Any]]:
    """{device key: {gflops, gflops_basis, memory_gbs, memory_basis}}. Unknown values are null.

    Peers on the CPU compute on "cpu:0". Therefore the result has "cpu:0" if any device is the CPU; all devices on the
    CPU have the same limits.
    """
    found: dict[str, dict[str, Any]] = {}
    for device in devices:
        known, (rate, basis) = peak(device, dtype), _memory(device)
        found[device.key] = {
            "gflops": known.gflops if known else None, "gflops_basis": known.basis if known else "not known",
            "memory_gbs": rate, "memory_basis": basis,
        }  # fmt: skip
        if device.kind == "cpu":
            found.setdefault("cpu:0", found[device.key])
    return found


def peak(device: Device, dtype: str) -> Peak | None:
    """The peak of `device` in `dtype` ("float32" or "float64"), or None if it is unknown."""
    if device.kind == "cpu":
        return _cpu(dtype)
    limits = device.limits
    clock = limits.get("clock_mhz", 0) / 1000
    capability = limits.get("compute_capability")
    single, double = next((units for units, own in FMA_UNITS.items() if capability in own), (0, 0))
    units = single if dtype == "float32" else double
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
    from L1. The times of the call, of loading the tile before the loop and of storing it after the loop cancel.
    """
    try:
        (device,) = registry.backend("cpu").devices()
    except BackendUnavailable:
        return None
    lib, has = engine().lib, features()
    able = [row for row in KERNELS if row.backend == "cpu" and row.dtype == dtype and has.issuperset(row.needs)]
    rate, name = max(((_loop_rate(row), row.name) for row in able if hasattr(lib, row.name)), default=(0.0, ""))
    threads = device.limits["threads"]
    basis = f"measured: the inner loop of {name} in the L1 cache, {rate:.1f} GFLOP/s a core, × {threads}"
    return Peak(rate * threads, basis) if rate else None


def _loop_rate(row: Kernel) -> float:
    """GFLOP/s of the micro-kernel of `row` on one core, or 0 if the machine was too busy for a measurement."""
    ffi, run = engine().ffi, getattr(engine().lib, row.name).compute
    mr, nr, size = row.params["MR"], row.params["NR"], np.dtype(row.dtype).itemsize
    long = _L1_BYTES // (size * (mr + nr)) // 8 * 8
    short = long // 4
    a, b = (operands.aligned(long * width * size).view(row.dtype) for width in (mr, nr))
    a[:] = b[:] = 1
    out, scalar = np.zeros((mr, nr), row.dtype), ffi.new("gemm_scalar *", {"re": 1.0})
    pointers = {name: ffi.cast("void *", x.ctypes.data) for name, x in (("a", a), ("b", b), ("to", out))}
    block = ffi.new("gemm_block *", {
        "m": mr, "n": nr, "a_rs": 1, "a_ps": mr, "b_ps": nr, "b_cs": 1, "panels": 1, "to_rs": nr, "alpha": scalar,
        "beta": scalar, **pointers,
    })  # fmt: skip
    best = {short: math.inf, long: math.inf}
    for _ in range(_ROUNDS):
        for k in best:
            block.k, block.a_ts, block.b_ts = k, mr * k, nr * k
            best[k] = min(best[k], timed(partial(run, block), _CALLS))
    gained = best[long] - best[short]
    return 2.0 * mr * nr * (long - short) / gained / 1e9 if gained > 0 else 0.0


def _memory(device: Device) -> tuple[float | None, str]:
    """The bandwidth in GB/s, and a text that says how it was determined."""
    if device.kind == "cpu":
        threads = granted()
        return _copy_rate(threads), f"measured: copies of {_COPIED >> 20} MiB by {threads} threads, read and written"
    if rate := device.limits.get("memory_gbs"):
        return float(rate), "by formula: clock and width of the memory, as reported by the driver"
    return None, "not known"


@cache
def _copy_rate(threads: int) -> float:
    source = np.ones(_COPIED // 8)
    to, parts = (np.array_split(array, threads) for array in (np.empty_like(source), source))
    with ThreadPoolExecutor(threads) as pool:  # NumPy releases the GIL while it copies
        return max(2 * _COPIED / timed(lambda: list(pool.map(np.copyto, to, parts))) / 1e9 for _ in range(_COPIES))
