"""How fast is a kernel on this device? For the probe and the tuner."""

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
from gemm.core.problem import Device, DeviceView, Operand, Problem
from gemm.core.rates import CALL, Rates
from gemm.select.verify.samples import random_matrix, types_of

LEAST = 16
"""n of a product that is too small to matter."""
LITTLE, MOVED = 1 << 20, 64 << 20
"""Bytes of the operand, or the result, by which a link is timed, and the host's memory."""
READ = 128 << 20
"""Bytes of the operand by which a device's memory is timed: no cache holds them."""
ABREAST = 4
"""Groups a compute unit that read it: each waits for memory, so that fewer are slower than that is."""
WIDTH = 2048
"""Columns of an operand by which a link is timed, and the host's memory."""


def measure(backend: Backend, kernel: Kernel, device: Device, budget: float = 0.04) -> Rates:
    """The kernel's rates, from products whose size doubles until one takes `budget` seconds or n = 4096.

    Operands are resident where the backend has memory of its own; what it takes to move them is timed apart (`link`).
    Small products are timed in a row, as they come, and repeated by the plan cache: what all kernels
    pay alike would hide how they differ. What calls of kernels in host memory differ by is noise, so that they all
    count as one `CALL`.
    """
    dtype, types = types_of(kernel)
    try:
        backend.to_device(np.ones((1, 1), dtype), device)
        resident = True
    except TypeError:  # computes in host memory
        resident = False
    timed = partial(_seconds, backend, kernel, device, resident=resident)
    # Whole tiles, which nothing needs to pad, and little more than one group of them.
    rows, columns = (-(-LEAST // size) * size for size in kernel.group)
    deep = 4 * LEAST if resident else LEAST
    first = timed(rows, columns, deep, row=20)
    n, spent = LEAST, 0.0
    while spent * 8 < budget and n < 4096:
        n *= 2
        spent = timed(n, n, n)
    first = min(first, timed(rows, columns, deep, row=20))  # runtimes are quicker some time after their start
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
    """Bytes/s of a GPU's memory in products of a kernel that streams an operand; 0: it streams none."""
    streams = kernel.params.get("streams", 0) if device.kind == "gpu" else 0
    if not streams:
        return 0.0
    (rows, columns), itemsize = kernel.group, types_of(kernel)[1][0].itemsize  # of operands and result
    abreast = ABREAST * device.limits["compute_units"]
    m, n = (rows * abreast, columns) if streams & 1 else (rows, columns * abreast)
    most = min(READ, device.limits.get("max_alloc", READ)) // itemsize
    k = max(4, most // max(m, n) // 4 * 4)  # rows of whole vectors
    spent = timed(m, n, k, row=4)
    return (m * k + k * n + m * n) * itemsize / max(spent - launch, spent / 4)


_links: dict[str, tuple[float, float, float]] = {}


def link(backend: Backend, kernel: Kernel, device: Device) -> tuple[float, float, float]:
    """Bytes/s at which products of host operands have them moved to `device`, and their results back, and seconds that
    this takes besides.

    It is timed once a process, of the first kernel that asks, as what products take longer than resident ones, in which
    the operand, or the result, is as good as all there is: how a launch moves operands, by which threads and what
    memory, is not how a single array is copied.
    """
    if device.key not in _links:
        dtype, types = types_of(kernel)

        def moved(size: int, result: bool) -> float:
            rows = size // (dtype if result else types[1]).itemsize // WIDTH
            m, k = (rows, LEAST) if result else (LEAST, rows)
            there, here = (_seconds(backend, kernel, device, m, WIDTH, k, resident=where) for where in (True, False))
            return max(here - there, here / 16)  # where it all but vanishes, it is the noise of both

        few, many = ([moved(size, result) for result in (False, True)] for size in (LITTLE, MOVED))
        rates = [(MOVED - LITTLE) / max(y - x, y / 16) for x, y in zip(few, many, strict=True)]
        start = max(0.0, *(x - LITTLE / rate for x, rate in zip(few, rates, strict=True)))
        _links[device.key] = rates[0], rates[1], start
    return _links[device.key]


def _seconds(
    backend: Backend, kernel: Kernel, device: Device, m: int, n: int, k: int, row: int = 1, *, resident: bool
) -> float:  # fmt: skip
    """`seconds` of a product of the kernel's own types."""
    where = device.key if resident else "host"
    problem = Problem(types_of(kernel)[0].name, m, n, k, inputs=kernel.inputs, device=where)
    return seconds(backend, kernel, device, problem, row)


def seconds(backend: Backend, kernel: Kernel, device: Device, problem: Problem, row: int = 1) -> float:
    """Of a product of random operands where `problem` has them; the mean of a row of them.

    Host operands begin where none can be used in place (see `Backend.wraps`).
    """
    random, resident = np.random.default_rng(problem.n), problem.device != "host"
    m, n, k, stack = problem.m, problem.n, problem.k, (problem.batch,) if problem.batch > 1 else ()
    types = [np.dtype(name) for name in problem.inputs or (problem.dtype, problem.dtype)]
    a, b = (
        np.resize(random_matrix(random, own, (min(rows, LEAST), columns)), (*stack, rows, columns))
        for own, rows, columns in zip(types, (m, k), (k, n), strict=True)
    )
    launch = backend.launcher(kernel, device, problem)
    arrays = [a, b, np.empty((*stack, m, n), problem.dtype)]
    given: list[Operand] = [*arrays]
    if resident or backend.wraps(device):
        given = [backend.to_device(x, device) if resident else _unaligned(x) for x in arrays]
    run = again(launch, *given)
    return best_of(lambda: finished(backend, device, run, row), 10 if row > 1 else 3) / row


def _unaligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins one element after a page."""
    memory = operands.aligned(array.nbytes + array.itemsize)[array.itemsize :]
    copy = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def again(launch: Launch, a: Operand, b: Operand, out: Operand) -> Callable[[], Any]:
    """Repeats the product of a and b, which is computed once here, as `gemm.frontend.plan_cache` does."""
    run = partial(launch, a, b, None, out, 1, 0)
    run()
    views = [x for x in (a, b, out) if isinstance(x, DeviceView)]
    if len(views) < 3 or not hasattr(launch, "replay"):
        return run
    x, y, goal = (view.owner for view in views)
    replay = launch.replay(x, y, None, goal)
    return run if replay is None else lambda: run() if replay(x, y, None, goal, 1, 0) is None else None


def finished(backend: Backend, device: Device, run: Callable[[], Any], times: int) -> None:
    """Run so often in a row, and wait for the last."""
    for _ in range(times):
        run()
    backend.synchronize(device)


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """The least seconds of `times` runs after one that warms up: the others met something else on the machine."""
    run()
    best = math.inf
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
