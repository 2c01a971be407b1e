"""The limits of a device: its arithmetic peak, its memory bandwidth, and its link to the host. They are measured if
possible, else computed by a formula.

A peak never comes from a matrix product that is itself reported. If the peak of a device can be neither measured nor
computed, the device has no peak and no percentage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.bench.contest import timed, warm
from gemm.bench.contestants import Entry, enter
from gemm.bench.peers import Unable
from gemm.bench.products import Shape
from gemm.catalog import HOST_BACKENDS, KERNELS, Kernel, simplest
from gemm.core import operands
from gemm.core.engine import engine, features
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device
from gemm.core.threads import granted

FMA_UNITS = {
    (128, 4): (50, 52, 53, 61, 62), (64, 32): (60, 70, 72, 80), (64, 2): (75,), (128, 2): (86, 87, 89, 120),
    (128, 64): (90, 100), (128, 0): (103,),
}  # fmt: skip
"""{(float32, float64): compute capabilities}. The keys are fused multiply-adds per clock of one multiprocessor, without
tensor cores; 0 means unknown."""
LINKS = ("to_pageable_gbs", "from_pageable_gbs", "to_locked_gbs", "from_locked_gbs", "launch_s")
"""The keys of `link`: GB/s to and from the device, with pageable and page-locked host memory; seconds of a launch."""
_MOVED, _MOVES = 64 << 20, 5  # bytes of a timed transfer, and how often it is made; the fastest counts
_SPIN = """
kernel void spin(global V *out, T x) {
    V a = (V)(x), b = (V)((T)(get_global_id(0) & 3));
    for (int i = 0; i < 64; i++) {
        #pragma unroll
        for (int j = 0; j < 16; j++) { a = b * a + b; b = a * b + a; }
    }
    out[get_global_id(0)] = a + b;
}
"""
"""OpenCL kernel of multiply-adds without memory accesses, as in clpeak. V is T, or a vector of T."""
_SPINS, _ITEMS = 64 * 16 * 2, 1 << 14  # multiply-adds of a work-item for each part of V; work-items per compute unit
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
    """The peak of `device` for sums of `dtype`, without tensor cores; None if it is unknown."""
    if device.kind == "cpu":
        return _cpu(dtype) if dtype in ("float32", "float64") else None
    if device.backend == "opencl":
        return _opencl(device, dtype)
    limits = device.limits
    clock = limits.get("clock_mhz", 0) / 1000
    capability = limits.get("compute_capability")
    single, double = next((units for units, own in FMA_UNITS.items() if capability in own), (0, 0))
    units = {"float32": single, "float64": double}.get(dtype, 0)
    if clock and units:
        sms = limits["sm_count"]
        return Peak(2 * sms * units * clock, f"by formula: {sms} SMs × {units} FMA units × 2 × {clock:g} GHz")
    return None


@cache
def _opencl(device: Device, dtype: str) -> Peak | None:
    """The rate of the kernel _SPIN, with the best of several vector widths."""
    name = {"float32": "float", "float64": "double", "float16": "half"}.get(dtype)
    if name is None or device.handle is None:
        return None
    import pyopencl as cl

    context, items = device.handle.context, _ITEMS * device.limits.get("compute_units", 1)
    extension = {"double": "fp64", "half": "fp16"}.get(name)
    source = (f"#pragma OPENCL EXTENSION cl_khr_{extension} : enable\n" if extension else "") + _SPIN

    def rate(width: int) -> float:
        options = ["-cl-mad-enable", f"-DT={name}", f"-DV={name}{width if width > 1 else ''}"]
        spin = cl.Program(context, source).build(options).spin
        out = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, items * width * np.dtype(dtype).itemsize)
        one = np.ones((), dtype)[()]
        seconds = min(timed(lambda: spin(device.handle.queue, (items,), None, out, one).wait()) for _ in range(_MOVES))
        return 2.0 * items * width * _SPINS / seconds / 1e9

    try:
        best = max(map(rate, (1, 4, 16)))
    except cl.Error:  # the device lacks the type, or memory
        return None
    return Peak(best, "measured: multiply-adds of vectors without memory accesses")


def links(devices: Iterable[Device]) -> dict[str, dict[str, float]]:
    """{device key: its `link`} of the devices that have one."""
    return {device.key: found for device in devices if (found := link(device))}


@cache
def link(device: Device) -> dict[str, float] | None:
    """The rates of transfers between host and device, and the latency of a launch, by the names of LINKS.

    The latency is the time from the launch of a product of 16 × 16 × 16 until the device has finished it. The result is
    None if the device computes in host memory or a measurement fails.
    """
    if device.backend in HOST_BACKENDS or device.handle is None:
        return None
    small, kernel = Shape(16, 16, 16), simplest(device.backend, "float32")
    try:  # naming a kernel avoids the search for devices
        with _reported(device, "transfers"):
            launch = enter(Entry(device, kernel.name if kernel else None), small, *small.operands("float32")).launch
            assert launch is not None
            copies = registry.backend(device.backend).copies(device, _MOVED)
            rates = [_MOVED / min(timed(copy) for _ in range(_MOVES)) / 1e9 for copy in copies]
            warm(launch)
            rates.append(min(timed(launch, 20) for _ in range(_MOVES)))
    except (Unable, BackendUnavailable, KernelFailed, MemoryError):
        return None
    return dict(zip(LINKS, rates, strict=True))


def _reported(device: Device, what: str) -> AbstractContextManager[None]:
    """A block in which pyopencl's errors become KernelFailed. The CUDA backend raises no other errors."""
    return device.handle.reported(what) if device.backend == "opencl" else nullcontext()


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
    if device.backend == "opencl" and device.handle is not None:
        import pyopencl as cl

        try:
            with _reported(device, "copies"):
                one, two = (cl.Buffer(device.handle.context, cl.mem_flags.READ_WRITE, _MOVED) for _ in range(2))
                copy = partial(cl.enqueue_copy, device.handle.queue, one, two)
                seconds = min(timed(lambda: copy().wait()) for _ in range(_MOVES))
        except KernelFailed:
            return None, "not known"
        return 2 * _MOVED / seconds / 1e9, f"measured: copies of {_MOVED >> 20} MiB on the device, read and written"
    return None, "not known"


@cache
def _copy_rate(threads: int) -> float:
    source = np.ones(_COPIED // 8)
    to, parts = (np.array_split(array, threads) for array in (np.empty_like(source), source))
    with ThreadPoolExecutor(threads) as pool:  # NumPy releases the GIL while it copies
        return max(2 * _COPIED / timed(lambda: list(pool.map(np.copyto, to, parts))) / 1e9 for _ in range(_COPIES))
