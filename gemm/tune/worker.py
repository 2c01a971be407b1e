"""The tuner's worker, `python -m gemm.tune.worker`: check a candidate and time it against the best one so far."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.catalog import BY_NAME, Kernel
from gemm.core.backend import Backend, Launch
from gemm.core.errors import KernelFailed
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, DeviceView, Operand, Problem
from gemm.select import measure
from gemm.select.tuning_records import HERE
from gemm.select.verify.samples import random_matrix, types_of
from gemm.select.verify.single import Mismatch
from gemm.select.verify.suite import quick
from gemm.select.worker import Line, serve
from gemm.tune.search import BETTER

ROUNDS = 9
SAMPLE = 2e-3
"""Least duration of a timed sample, in seconds. A sample repeats the product if one product is shorter."""
HOPELESS = 2.0
"""Timing stops if the candidate is more than this many times as slow as the best one."""
_POISON = 0xA5
_CHECKED = 64  # number of rows, and of matrices of a batch, of which every element is compared


class Stage:
    """Operands of one shape where the backend computes: integers for the check, fractions for the timing."""

    def __init__(
        self, backend: Backend, device: Device, dtype: np.dtype[Any], types: tuple[np.dtype[Any], ...],
        shape: tuple[int, ...], layout: str,
    ) -> None:  # fmt: skip
        self.backend, self.device, self.dtype = backend, device, dtype
        self.batch, self.m, self.n, self.k = shape
        self.lead = (self.batch,) if self.batch > 1 else ()
        dice = np.random.default_rng(shape)
        sizes = ((self.m, self.k), (self.k, self.n))

        def made(draw: Callable[..., np.ndarray]) -> list[np.ndarray]:
            return [
                draw(dice, own, (*self.lead, *(size[::-1] if flip == "T" else size)))
                for own, size, flip in zip(types, sizes, layout, strict=True)
            ]

        def turned(given: list[Operand]) -> list[Any]:
            return [x.swapaxes(-1, -2) if isinstance(x, np.ndarray) and flip == "T" else
                    x.mT if isinstance(x, DeviceView) and flip == "T" else x
                    for x, flip in zip(given, layout, strict=True)]  # fmt: skip

        whole, fractions = made(_signs), made(random_matrix)
        self.exact = turned([*whole])
        self.whole, self.fractions = (turned([self.sent(x) for x in given]) for given in (whole, fractions))
        self.out = self.sent(np.empty((*self.lead, self.m, self.n), self.dtype))
        self.problem = Problem(
            self.dtype.name, self.m, self.n, self.k, self.batch, layout + "N",
            inputs=() if set(types) == {dtype} else tuple(each.name for each in types),
            device=device.key if isinstance(self.out, DeviceView) else "host",
        )  # fmt: skip

    def sent(self, array: np.ndarray) -> Operand:
        """Return `array` in device memory, or unchanged if the backend computes in host memory."""
        try:
            return self.backend.to_device(array, self.device)
        except TypeError:
            return array

    def launch(self, kernel: Kernel) -> Launch:
        return self.backend.launcher(kernel, self.device, self.problem)

    def check(self, kernel: Kernel, launch: Launch) -> None:
        """Raise Mismatch unless `launch` computes the exact product and writes nothing outside the output.

        The output is a window of a larger array, the frame, which is filled with a poison value.
        """
        shape = (*self.lead, self.m + 2, (self.n + 2) * self.dtype.itemsize)
        frame = np.full(shape, _POISON, np.uint8).view(self.dtype)
        sent = self.sent(frame)
        window: Operand
        if isinstance(sent, DeviceView):
            inner = (*self.lead, self.m, self.n)
            window = replace(sent, offset=sent.offset + sum(sent.strides[-2:]), shape=inner)
        else:
            window = sent[..., 1:-1, 1:-1]
        a, b = self.whole
        launch(a, b, None, window, 1, 0)
        back = self.backend.to_host(sent) if isinstance(sent, DeviceView) else frame
        result = back[..., 1:-1, 1:-1]
        some = np.unique(np.linspace(0, self.m - 1, min(self.m, _CHECKED)).astype(int))
        few = (np.unique(np.linspace(0, self.batch - 1, min(self.batch, _CHECKED)).astype(int)),) if self.lead else ()
        left, right = (x[few] if few else x for x in self.exact)
        wide = np.result_type(self.dtype, np.float64)
        exact = matmul(left[..., some, :].astype(wide), right.astype(wide))
        exact = (exact.astype(np.int64) if self.dtype.kind in "iu" else exact).astype(self.dtype)
        within = (result[few] if few else result)[..., some, :]
        # Only some rows are compared. Each element of the other rows must at least be a whole number that such a sum
        # can have. The poison value is no such number.
        plausible = np.all((np.rint(result) == result) & (np.abs(result) <= 2 * self.k))
        if not np.array_equal(within, exact) or not plausible:
            raise Mismatch(f"{kernel.label} on {self.device.name}: {self.problem} is wrong")
        result.view(np.uint8)[...] = _POISON
        if not np.all(back.view(np.uint8) == _POISON):
            raise Mismatch(f"{kernel.label} on {self.device.name}: {self.problem} wrote outside its output")

    def repeated(self, launch: Launch) -> Callable[[int], float]:
        """Return a function that runs a given number of products in a row and returns their mean seconds."""
        a, b = self.fractions
        run = measure.again(launch, a, b, self.out)

        def sample(times: int) -> float:
            start = time.perf_counter()
            measure.finished(self.backend, self.device, run, times)
            return (time.perf_counter() - start) / times

        return sample


def _signs(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return random elements -1, 0 and 1. All partial sums of their products are exact in float32 in any order."""
    low = 0 if dtype.kind == "u" else -1
    values: np.ndarray = dice.integers(low, 2, shape).astype(dtype)
    return values


_stage = lru_cache(maxsize=1)(Stage)


def answer(request: Line) -> Iterator[Line]:
    """Check and time the candidate of `request`.

    The candidate is `kernel` with `params`. It is timed for about `budget` seconds, in turns with the same kernel with
    the parameters `against`, unless `against` is null. A candidate that is the best one so far must also pass the short
    checks of gemm.select.verify, unless the request says `verified`. A request without a kernel only loads the driver.

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
    dtype, types = types_of(row)
    stage = _stage(backend, device, dtype, tuple(types), tuple(request["shape"]), request["layout"])
    yield {"step": "begin", "what": "built"}
    launch = stage.launch(kernel)
    against = None if request["against"] is None else stage.launch(row.tuned(request["against"]))
    yield {"step": "begin", "what": "checked"}
    stage.check(kernel, launch)
    yield {"step": "begin", "what": "timed"}
    seconds, ratio = _timed(stage, launch, against, request["stop"], request["budget"])
    if not request["verified"] and (ratio is None or ratio < BETTER):
        yield {"step": "begin", "what": "verified"}
        quick(backend, kernel, device)
    yield {"step": "trial", "seconds": seconds, "ratio": ratio}


def _timed(
    stage: Stage, launch: Launch, against: Launch | None, stop: float | None, budget: float
) -> tuple[float, float | None]:
    """Return the median seconds of `launch`, and the median over rounds of its ratio to `against`, or None.

    Timing stops after two rounds if `launch` is `HOPELESS` times as slow as the best.
    """
    field = [stage.repeated(each) for each in (launch, against) if each is not None]
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
    return seconds, None if against is None else statistics.median(took[0] / took[1] for took in rounds)


if __name__ == "__main__":
    serve(answer)
