"""The tuner's worker, `python -m gemm.tune.worker`: check a candidate and time it against the best one so far."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from gemm.backends import registry
from gemm.catalog import BY_NAME, Kernel
from gemm.core.backend import Backend, Launch
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device, Operand, Problem
from gemm.select import measure
from gemm.select.tuning_db import HERE
from gemm.select.verify.launches import Product
from gemm.select.verify.single import Mismatch
from gemm.select.verify.suite import quick
from gemm.select.worker import Line, serve
from gemm.tune.tuner import BETTER, problem

ROUNDS = 9
SAMPLE = 2e-3
"""Least duration of a timed sample, in seconds. A sample repeats the product if one product is shorter."""
HOPELESS = 2.0
"""Timing stops if the candidate is more than this many times as slow as the best candidate so far."""


@lru_cache(maxsize=1)
def _product(backend: Backend, row: Kernel, device: Device, problem: Problem) -> tuple[Product, list[Operand]]:
    """Return the operands for the check of `problem` and those for its timing, where the backend computes."""
    product = Product(backend, row, device, problem, np.random.default_rng(problem.n))
    return product, measure.random_operands(backend, device, product.problem)


def answer(request: Line) -> Iterator[Line]:
    """Check and time the candidate of `request`.

    The candidate is `kernel` with `params`. It is timed for about `budget` seconds, in turns with the same kernel with
    the parameters `against`, unless `against` is null. Timing stops early if the candidate is much slower than `stop`,
    the seconds of the fastest row so far. A candidate that is the best one so far must also pass the short checks of
    gemm.select.verify, unless the request says `verified`. A request without a kernel only loads the driver.

    The answer has a line {"step": "begin", "what": ...} for each stage. The last line is {"step": "trial", "seconds",
    "ratio"} or {"step": "trial", "failed": cause}. The ratio is candidate's time ÷ time of `against`, or null.
    """
    name = request["device"]
    backend = registry.backend(name.partition(":")[0])
    device = next(device for device in backend.devices() if device.key == name)
    if "kernel" not in request:
        return
    row = BY_NAME[request["kernel"]]
    try:
        yield from _tried(backend, device, row, request)
    except (KernelFailed, MemoryError, Mismatch) as error:
        local = isinstance(error, MemoryError) or (isinstance(error, KernelFailed) and error.memory)
        yield {"step": "trial", "failed": f"{HERE if local else ''}{error}"}


def _tried(backend: Backend, device: Device, row: Kernel, request: Line) -> Iterator[Line]:
    kernel = row.tuned(request["params"])
    product, operands = _product(backend, row, device, problem(row, tuple(request["shape"]), request["layout"]))
    yield {"step": "begin", "what": "built"}
    product.prepare(kernel, 1)
    kernels = [kernel] if request["against"] is None else [kernel, row.tuned(request["against"])]
    launches = [backend.launcher(each, device, product.problem) for each in kernels]
    yield {"step": "begin", "what": "checked"}
    product.enqueue(0)
    product.check("the product")
    yield {"step": "begin", "what": "timed"}

    def sampler(launch: Launch) -> Callable[[int], float]:
        run = measure.again(launch, *operands)

        def sample(times: int) -> float:
            start = time.perf_counter()
            measure.finished(backend, device, run, times)
            return (time.perf_counter() - start) / times

        return sample

    seconds, ratio = _timed(list(map(sampler, launches)), request["stop"], request["budget"])
    if not request["verified"] and (ratio is None or ratio < BETTER):
        yield {"step": "begin", "what": "verified"}
        quick(backend, kernel, device)
    yield {"step": "trial", "seconds": seconds, "ratio": ratio}


def _timed(field: Sequence[Callable[[int], float]], stop: float | None, budget: float) -> tuple[float, float | None]:
    """Return the median seconds of field[0], and the median over the rounds of the ratio field[0] / field[1].

    Each function in `field` runs a given number of products and returns their mean seconds. The ratio is None if there
    is no field[1]. Timing stops after two rounds if field[0] is more than `HOPELESS` times as slow as field[1] or
    `stop` in both rounds.
    """
    ending = time.perf_counter() + budget
    rounds = [[sample(1) for sample in field]]
    times = [max(1, round(SAMPLE / max(took, 1e-7))) for took in rounds[0]]
    forth = range(len(field))
    while len(rounds) <= ROUNDS and (len(rounds) < 2 or time.perf_counter() < ending):
        took = {at: field[at](times[at]) for at in (reversed(forth) if len(rounds) % 2 else forth)}
        rounds.append([took[at] for at in forth])
        if all(each[0] > HOPELESS * min(each[-1], stop or math.inf) for each in rounds):
            break
    del rounds[0]  # the first round timed single products, some of which are too short
    seconds = statistics.median(took[0] for took in rounds)
    return seconds, None if len(field) < 2 else statistics.median(took[0] / took[1] for took in rounds)


if __name__ == "__main__":
    serve(answer)
