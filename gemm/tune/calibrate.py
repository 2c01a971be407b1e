"""Calibrate the cost model: time products of many classes on this machine, and store measured ÷ predicted time.

For each type, products of host operands are timed first: on each device, with the kernel that has the least predicted
time. Products of operands in device memory follow: on each device, with up to MOST kernels. The shapes that programs
use most come before other shapes. If a device is a CPU, the shapes TINY come first for operands in its memory. Each
product is timed a few times, and the least time counts. See gemm.select.calibration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gemm.backends import registry
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Candidate, Device, Problem
from gemm.select import calibration, choice, measure, verification

SQUARES = (512, 1024, 256, 2048, 4096, 128)
OTHERS = (
    (1, 64, 4096, 4096), (1, 4096, 4096, 64), (64, 128, 128, 128), (1, 256, 256, 16384), (1, 16, 2048, 2048),
    (1, 4096, 64, 1024), (1, 512, 512, 64), (1, 2048, 2048, 256), (512, 32, 32, 32), (1, 1, 4096, 4096),
    (1, 128, 2048, 512), (1, 2048, 128, 512), (16, 512, 512, 64), (1, 4096, 16, 256),
)  # fmt: skip
SHAPES = (*((1, n, n, n) for n in SQUARES), *OTHERS)
"""(batch, m, n, k) of the products, the most frequent in programs first."""
TINY = ((1, 8, 8, 8), (1, 256, 4, 8), (1, 16, 256, 4), (16, 8, 32, 8))
"""Additional (batch, m, n, k), only for operands in the memory of a device that is a CPU.

Such a product takes about as long as the device's runtime takes to start a work-group. Kernels differ in this time.
"""
TYPES = ("float32", "float64", "float16", "int8")
"""Types of the operands. The result of int8 operands is int32."""
SHARE = 0.01
"""Greatest predicted time of a product that is timed, as a share of the time budget. Such a product is computed about
five times."""
VERIFYING, VERIFIED = 8.0, 0.3
"""Kernels with `lazy_verify` that are not verified yet are verified only if the time budget exceeds VERIFYING seconds.
No verification starts after the share VERIFIED of the budget is used."""
NEAR, LITTLE = 1.5, 1e-5
"""For operands in device memory, the kernels that are timed are those whose predicted time is at most
NEAR × the least predicted time + LITTLE seconds."""
MOST = 3
"""Greatest number of kernels that are timed for one product of operands in device memory."""


@dataclass(frozen=True)
class Measurement:
    """One measurement: the time of `problem` on `device` with `kernel`. `error` is measured ÷ predicted time."""

    problem: Problem
    device: Device
    kernel: str
    seconds: float
    error: float


def calibrate(devices: Sequence[Device], until: float) -> Iterator[Measurement]:
    """Time products on `devices`, and yield each measurement.

    For the class of each product, record measured ÷ predicted time (see gemm.select.calibration). At the end, store the
    table on disk. A class without a new measurement keeps its stored entry.

    Args:
        until: the value of time.monotonic() after which no further product is started.
    """
    calibration.forget()
    start = time.monotonic()
    patience = SHARE * (until - start)
    cases = [
        (device, _problem(device, dtype, resident, shape))
        for dtype, resident in product(TYPES, (False, True))
        for shape in (*(TINY if resident else ()), *SHAPES)
        for device in devices
        if device.kind == "cpu" or shape not in TINY
    ]
    try:
        if until - start > VERIFYING:
            for device in devices:
                fields = (_able(device, problem) for where, problem in cases if where == device)
                soonest = (able[0].kernel for able in fields if able)
                verification.verify(
                    (kernel for kernel in soonest if kernel.lazy_verify), device, start + VERIFIED * (until - start)
                )
        for device, problem in cases:
            if time.monotonic() >= until:
                return
            yield from _measured(device, problem, patience)
    finally:
        calibration.keep()


def _problem(device: Device, dtype: str, resident: bool, shape: tuple[int, int, int, int]) -> Problem:
    batch, m, n, k = shape
    result = "int32" if dtype == "int8" else dtype
    inputs = (dtype, dtype) if result != dtype else ()
    return Problem(result, m, n, k, batch, inputs=inputs, device=device.key if resident else "host")


def _able(device: Device, problem: Problem) -> list[Candidate]:
    """Return the candidates that can compute `problem` on `device`, the fastest first."""
    holder = device if problem.device != "host" else None
    try:
        field = choice.candidates(problem, device.key, holder=holder)
    except (BackendUnavailable, TypeError, ValueError):
        return []
    return sorted((c for c in field if c.seconds and c.kernel.dtype != "*"), key=lambda c: c.seconds or 0.0)


def _measured(device: Device, problem: Problem, patience: float) -> Iterator[Measurement]:
    resident = problem.device != "host"
    able = _able(device, problem)
    able = [
        c for c in able
        if not c.kernel.lazy_verify or (verification.record(c.kernel, device, ordered=False) or {}).get("ok")
    ]  # fmt: skip
    most = NEAR * (able[0].seconds or 0.0) + LITTLE if able else 0.0
    near = [c for c in able if (c.seconds or 0.0) <= most][: MOST if resident else 1]
    if not near or (near[0].seconds or 0.0) > patience:  # timing the product would leave no time for others
        return
    for candidate in near:
        try:
            seconds = _seconds(candidate, problem, patience)
        except (MemoryError, KernelFailed, TypeError):
            continue
        deviation = calibration.error(seconds, (candidate.seconds or 0.0) / candidate.factor)
        calibration.observe(calibration.subject(candidate.kernel, device, problem), problem.octaves, deviation)
        yield Measurement(problem, device, candidate.kernel.name, seconds, math.exp(deviation))


def _seconds(candidate: Candidate, problem: Problem, patience: float) -> float:
    """Return the seconds of the product: the least of several measurements.

    If the product is short and its operands are in device memory, each measurement is the mean time of up to 20
    products in a row.
    """
    kernel, device = candidate.kernel, candidate.device
    backend = registry.backend(device.backend)
    once = measure.seconds(backend, kernel, device, problem)
    row = 1 if problem.device == "host" else max(1, min(20, round(patience / 24 / once)))
    return once if row == 1 else measure.seconds(backend, kernel, device, problem, row)
