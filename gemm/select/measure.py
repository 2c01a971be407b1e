"""Measure the rates of a kernel on a device, for the probe and the tuner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gemm.catalog import Kernel
from gemm.core import operands
from gemm.core.backend import Backend, Launch
from gemm.core.problem import CALL, Device, DeviceView, Operand, Problem, Rates
from gemm.select.verify.single import on_device, random_matrix, types_of

LEAST = 16
"""The approximate size, along each axis, of a product that takes only as long as its launch."""
LITTLE, MOVED = 1 << 20, 64 << 20
"""Bytes of the large operand, or of the result, in a timed product. The rate of a link follows from the times with both
sizes; the rate of host memory follows from the time with MOVED."""
READ = 128 << 20
"""Bytes of the large operand in the product that measures the rate of a device's memory; too many for any cache."""
ABREAST = 4
"""Work-groups per compute unit in the product with READ bytes. With fewer work-groups, the memory would be idle while
they wait for their loads."""
WIDTH = 2048
"""Columns of the large operand or result in the products that measure the rate of a link or of host memory."""


def measure(backend: Backend, kernel: Kernel, device: Device, budget: float = 0.04) -> Rates:
    """Measure the kernel's rates with products whose size doubles until one takes about `budget` seconds or n = 4096.

    Operands are in device memory if the backend has device memory. `link` measures transfers separately.

    Small products are launched one after the other without waiting, by the fast path with which the plan cache repeats
    a product. Otherwise the differences between kernels would be hidden by overhead that is the same for all of them.
    For kernels that compute in host memory, the launch time is the constant `CALL`, because measured differences
    between their launches are only noise.
    """
    dtype, types = types_of(kernel)
    resident = isinstance(on_device(backend, device, np.ones((1, 1), dtype)), DeviceView)
    timed = _timer(backend, kernel, device, resident=resident)
    # m and n of the small product: LEAST, rounded up to multiples of a work-group's tile, so that no tile is padded.
    rows, columns = (-(-LEAST // size) * size for size in kernel.group)
    deep = 4 * LEAST if resident else LEAST
    first = timed(rows, columns, deep, row=20)
    n, spent = LEAST, 0.0
    while spent * 8 < budget and n < 4096:
        n *= 2
        spent = timed(n, n, n)
    first = min(first, timed(rows, columns, deep, row=20))  # a runtime becomes faster some time after its start
    flops = 2.0 * n**3 / max(spent - first, spent / 4)
    launch, staged = max(first - 2.0 * rows * columns * deep / flops, first / 2), 0.0
    if resident and {"a_rows", "b_rows"} & kernel.params.keys():
        staged = timed(rows + 1, columns + 1, 4 * LEAST + 1, row=20) - first
    rates = Rates(launch, flops, staged=max(staged, 0.0), wrapped=backend.wraps(device))
    if resident:
        upload, download, start = link(backend, kernel, device)
        memory = _streamed(timed, kernel, device, launch)
        return replace(rates, upload=upload, download=download, start=start, overlaps=backend.overlaps, memory=memory)
    return replace(rates, launch=CALL, memory=MOVED / timed(1, WIDTH, MOVED // types[1].itemsize // WIDTH))


def _streamed(timed: Callable[..., float], kernel: Kernel, device: Device, launch: float) -> float:
    """Measure the bytes/s of a GPU's memory with a kernel that streams an operand; 0 if the kernel streams none."""
    streams = kernel.params.get("streams", 0) if device.kind == "gpu" else 0
    if not streams:
        return 0.0
    (rows, columns), itemsize = kernel.group, types_of(kernel)[1][0].itemsize  # a, b and out have the same type
    abreast = ABREAST * device.limits["compute_units"]
    m, n = (rows * abreast, columns) if streams & 1 else (rows, columns * abreast)
    most = min(READ, device.limits.get("max_alloc", READ)) // itemsize
    k = max(4, most // max(m, n) // 4 * 4)  # a multiple of 4 gives rows of whole vectors
    spent = timed(m, n, k, row=4)
    return (m * k + k * n + m * n) * itemsize / max(spent - launch, spent / 4)


_links: dict[str, tuple[float, float, float]] = {}


def link(backend: Backend, kernel: Kernel, device: Device) -> tuple[float, float, float]:
    """Measure the link between host and `device`.

    The measurement runs once in each process, with the first kernel that needs it. It times a product with host
    operands and subtracts the time of the same product with operands in device memory. The operand or result whose
    transfer is measured is nearly all of the product's data. Copying a single array would not measure the same: a
    launch transfers operands with other threads and other memory.

    Returns:
        Bytes/s to the device; bytes/s back to the host; seconds that a transfer takes in addition, whatever its size.
    """
    if device.key not in _links:
        dtype, types = types_of(kernel)
        timers = [_timer(backend, kernel, device, resident=resident) for resident in (True, False)]

        def moved(size: int, result: bool) -> float:
            rows = size // (dtype if result else types[1]).itemsize // WIDTH
            m, k = (rows, LEAST) if result else (LEAST, rows)
            there, here = (timed(m, WIDTH, k) for timed in timers)
            return max(here - there, here / 16)  # a smaller difference is noise of the two measurements

        few, many = ([moved(size, result) for result in (False, True)] for size in (LITTLE, MOVED))
        rates = [(MOVED - LITTLE) / max(y - x, y / 16) for x, y in zip(few, many, strict=True)]
        start = max(0.0, *(x - LITTLE / rate for x, rate in zip(few, rates, strict=True)))
        _links[device.key] = rates[0], rates[1], start
    return _links[device.key]


def _timer(backend: Backend, kernel: Kernel, device: Device, *, resident: bool) -> Callable[..., float]:
    """Return a function (m, n, k, row) that calls `seconds` for a product of the kernel's own types.

    Operands are in device memory if `resident`, else in host memory.
    """
    unit = Problem(types_of(kernel)[0].name, 1, 1, 1, inputs=kernel.inputs, device=device.key if resident else "host")

    def timed(m: int, n: int, k: int, row: int = 1) -> float:
        return seconds(backend, kernel, device, replace(unit, m=m, n=n, k=k), row)

    return timed


def seconds(backend: Backend, kernel: Kernel, device: Device, problem: Problem, row: int = 1) -> float:
    """Measure the seconds of a product of random operands, in the memory that `problem` names.

    Args:
        row: number of products that are launched one after the other without waiting. The result is their mean time.
    """
    run = again(backend.launcher(kernel, device, problem), *random_operands(backend, device, problem))
    return best_of(lambda: finished(backend, device, run, row), 10 if row > 1 else 3) / row


def random_operands(backend: Backend, device: Device, problem: Problem) -> list[Operand]:
    """Return random a and b, and an empty out, in the memory that `problem` names.

    Host operands are unaligned, so that no device can use them in place (see `Backend.wraps`).
    """
    random, resident = np.random.default_rng(problem.n), problem.device != "host"
    m, n, k, stack = problem.m, problem.n, problem.k, (problem.batch,) if problem.batch > 1 else ()
    types = [np.dtype(name) for name in problem.inputs or (problem.dtype, problem.dtype)]
    a, b = (
        np.resize(random_matrix(random, own, (min(rows, LEAST), columns)), (*stack, rows, columns))
        for own, rows, columns in zip(types, (m, k), (k, n), strict=True)
    )
    arrays = [a, b, np.empty((*stack, m, n), problem.dtype)]
    if resident:
        return [on_device(backend, device, x, letter) for x, letter in zip(arrays, problem.layout, strict=True)]
    return [_unaligned(x) for x in arrays] if backend.wraps(device) else [*arrays]


def _unaligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of `array` that begins one element after the beginning of a page."""
    memory = operands.aligned(array.nbytes + array.itemsize)[array.itemsize :]
    copy = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def again(launch: Launch, a: Operand, b: Operand, out: Operand) -> Callable[[], Any]:
    """Compute the product of a and b once; return a function that repeats it as `gemm.frontend.plan_cache` does."""
    run = partial(launch, a, b, None, out, 1, 0)
    run()
    views = [x for x in (a, b, out) if isinstance(x, DeviceView)]
    if len(views) < 3 or not hasattr(launch, "replay"):
        return run
    x, y, goal = (view.owner for view in views)
    replay = launch.replay(x, y, None, goal)
    return run if replay is None else lambda: run() if replay(x, y, None, goal, 1, 0, None) is None else None


def finished(backend: Backend, device: Device, run: Callable[[], Any], times: int) -> None:
    """Call `run()` `times` times without waiting in between, then wait until the device has finished."""
    for _ in range(times):
        run()
    backend.synchronize(device)


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """Return the least seconds of `times` runs, after one run that warms up. Other load only makes runs slower."""
    run()
    best = math.inf
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
