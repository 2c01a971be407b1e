"""How fast is a kernel on this device? For the probe and the tuner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gemm import operands
from gemm.backends.base import Backend, Launch
from gemm.catalog import Kernel
from gemm.dispatch.plan import CALL, Rates
from gemm.problem import Device, DeviceView, Operand, Problem
from gemm.verify import random_matrix, types_of

LEAST = 16
"""n of a product that is too small to matter."""


def measure(backend: Backend, kernel: Kernel, device: Device, budget: float = 0.04) -> Rates:
    """The kernel's rates, from products whose size doubles until one takes `budget` seconds or n = 4096.

    Operands are resident where the backend has memory of its own; transfers are timed apart, on 16 MiB. Small products
    are timed in a row, as they come, and repeated as `gemm.repeat` does it: what all kernels pay alike would hide how
    they differ. What calls of kernels in host memory differ by is noise, so that they all count as one `CALL`.
    """
    dtype, types = types_of(kernel)
    upload = download = 0.0
    resident = True
    try:
        block = np.ones((2048, (16 << 20) // 2048 // dtype.itemsize), dtype)
        view = _sent(backend, block, device)
    except TypeError:  # computes in host memory
        resident = False
    else:
        upload = block.nbytes / best_of(lambda: _sent(backend, block, device))
        download = block.nbytes / best_of(lambda: backend.to_host(view))

    def seconds(m: int, n: int, k: int, row: int = 1, *, turned: bool = False) -> float:
        random = np.random.default_rng(n)
        a, b = (random_matrix(random, own, shape) for own, shape in zip(types, ((m, k), (k, n)), strict=True))
        launch = backend.launcher(kernel, device, Problem(dtype.name, m, n, k, inputs=kernel.inputs))
        arrays = [a, b, np.empty((m, n), dtype)]
        given: list[Operand] = [*arrays]
        if turned:
            given = [operands.transposed(backend.to_device(x.T, device)) for x in arrays]
        elif resident:
            given = [backend.to_device(x, device) for x in arrays]
        run = again(launch, *given)
        return best_of(lambda: finished(backend, device, run, row)) / row

    # Whole tiles, which nothing needs to pad, and little more than one group of them.
    rows, columns = (-(-LEAST // size) * size for size in kernel.group)
    first = seconds(rows, columns, 4 * LEAST if resident else LEAST, row=20)
    n, spent = LEAST, 0.0
    while spent * 8 < budget and n < 4096:
        n *= 2
        spent = seconds(n, n, n)
    work = 2.0 * n**3
    staged = 0.0
    if resident and {"a_rows", "b_rows"} & kernel.params.keys():
        staged = seconds(rows + 1, columns + 1, 4 * LEAST + 1, row=20, turned=True) - first
    launch = first if resident else CALL
    return Rates(
        launch, work / max(spent - first, spent / 4), upload, download, max(staged, 0.0), backend.wraps(device)
    )


def _sent(backend: Backend, block: np.ndarray, device: Device) -> DeviceView:
    view = backend.to_device(block, device)
    backend.synchronize(device)
    return view


def again(launch: Launch, a: Operand, b: Operand, out: Operand) -> Callable[[], Any]:
    """Repeats the product of a and b, which is computed once here, as `gemm.repeat` does."""
    run = partial(launch, a, b, None, out, 1, 0)
    run()
    views = [x for x in (a, b, out) if isinstance(x, DeviceView)]
    if len(views) < 3 or not hasattr(launch, "replay"):
        return run
    x, y, goal = (view.owner for view in views)
    replay = launch.replay(x, y, None, goal)
    return run if replay is None else lambda: run() if replay(x, y, None, goal) is None else None


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
