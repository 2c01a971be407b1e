"""The tuner: search for the best parameters of a device's kernels.

The tuner proposes parameters, and a worker (a child process, `python -m gemm.tune.tuner`) checks and times them. A row
is a kernel with the parameters from the catalog. A candidate is a row with proposed parameters. A trial is the time of
a candidate or the cause of its failure.

Every trial is stored on disk before the next trial starts, so an interrupted run can continue. A candidate that hangs
or kills the worker costs only its own time. The tuner does not try such a candidate again with the same driver.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from gemm.backends import registry
from gemm.catalog import BY_NAME, Kernel
from gemm.core.backend import Backend, Launch
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, Ints, Operand, Problem
from gemm.select import cost, measure, probe, tuning_db
from gemm.select.tuning_db import HERE, Record, Trial, key_of
from gemm.select.verify.launches import Product
from gemm.select.verify.single import Mismatch
from gemm.select.verify.suite import verify
from gemm.select.worker import Child, Line, serve, timeout

FAST = 1.0
"""Greatest number of seconds that a fast run spends on a class of products."""
TIMING = 0.4
"""Seconds for timing one candidate; a fast run uses a quarter of this."""
PATIENCE = 10.0
"""Seconds that a stage of a candidate (to build, check, time or verify it) may take after the run's time is up. If the
stage takes longer, the run ends and the candidate does not count as failed."""
HOPELESS = 4.0
"""The search for a kernel's parameters ends after the first trial if this trial is more than HOPELESS times as slow as
the best trial of any kernel in the class."""
SMALL = 48
"""A space of at most SMALL points is searched completely. A point is one value for each parameter of the space."""
SAMPLES = 24
"""Number of random points that the search tries first in a larger space. Then it tries the neighbours of the best
point, until no neighbour is better."""
MOST = 96
"""Greatest number of points that the search tries in a larger space."""
BETTER = 0.98
"""A candidate replaces the best candidate only if its time is less than BETTER times the best candidate's time. Two
measurements of the same candidate can differ by 2 %."""
ROUNDS = 9
SAMPLE = 2e-3
"""Least duration of a timed sample, in seconds. A sample repeats the product if one product is shorter."""
SLOW = 2.0
"""Timing stops if the candidate is more than SLOW times as slow as the best candidate so far."""
_LISTED = 8192  # greatest number of points whose legality is checked; from larger spaces, random points are taken

Point = dict[str, int]


@dataclass(frozen=True)
class Step:
    """One result of the tuner.

    Attributes:
        row, params: the candidate.
        trial: the seconds of the candidate, or why the candidate failed.
        record: all that is known about the row for this class of products.
    """

    row: Kernel
    params: dict[str, int]
    trial: Trial
    record: Record


def problem(row: Kernel, shape: tuple[int, int, int, int], layout: str) -> Problem:
    """Return the product of `shape` (batch, m, n, k) and `layout`, with the types of `row`."""
    batch, m, n, k = shape
    return Problem("float32" if row.dtype == "*" else row.dtype, m, n, k, batch, layout + "N", inputs=row.inputs)


def tune(
    child: Child, device: Device, rows: Iterable[Kernel], shape: tuple[int, int, int, int], layout: str, *,
    fast: bool = False, until: float = math.inf,
) -> Iterator[Step]:  # fmt: skip
    """Tune `rows` on `device` for the class of products to which `shape` and `layout` belong.

    Args:
        child: a worker of this module.
        fast: whether to spend at most FAST seconds.
        until: the time.monotonic() at which to stop. A candidate that is running at this time may finish.

    Raises:
        BackendUnavailable: the worker died or hung while it loaded the device's driver.
    """
    for line in child.ask({"device": device.key}, timeout()):  # load the driver before any search starts
        raise BackendUnavailable(device.backend, f"its driver {line['cause']} in a child process")
    if fast:
        until = min(until, time.monotonic() + FAST)
    searches = [_Search(child, device, row, shape, layout, TIMING / 4 if fast else TIMING) for row in rows]
    searches = sorted((each for each in searches if each.size), key=lambda each: each.expected)

    def steps(each: _Search, most: int | None = None) -> Iterator[Step]:
        best = min((s.record.seconds for s in searches if s.record.seconds), default=None)
        for params, trial in each.run(until, best, most):
            yield Step(each.row, params, trial, each.record)

    for each in searches:
        yield from steps(each, 1)
    best = min((each.record.seconds for each in searches if each.record.seconds), default=math.inf)
    for each in sorted(searches, key=lambda each: each.record.seconds or math.inf):
        if (each.record.seconds or 0.0) <= HOPELESS * best:
            yield from steps(each)


class _Search:
    """The search for the best parameters of a kernel. Known trials come from the disk, others from the worker.

    `row` is the kernel with the catalog's parameters.
    """

    def __init__(
        self, child: Child, device: Device, row: Kernel, shape: tuple[int, int, int, int], layout: str, timing: float
    ) -> None:
        self.child, self.device, self.row, self.timing = child, device, row, timing
        self.problem = problem(row, shape, layout)
        names = {"batch": shape[0], "m": shape[1], "n": shape[2], "k": shape[3], **device.limits}
        self.facts = facts = probe.recalled[probe.entry()]
        rates = facts.rates(row, device) if facts else None
        self.expected = cost.predict(row, device, replace(self.problem, device=device.key), rates).seconds or math.inf
        self.size = size(row, names)
        fresh = Record(row.name, shape, layout, device.driver, tuning_db.fingerprint(row))
        known = [record for record in tuning_db.stored(device) if record.identity == fresh.identity]
        self.record = known[0] if known else fresh
        seeds = [{name: choice.kernel.params[name] for name in row.space}
                 for choice in tuning_db.choices(row, device, self.problem)][:3]  # fmt: skip
        self._proposals = proposals(row, names, seeds)
        self._point = next(self._proposals, None)

    def run(self, until: float, best: float | None, most: int | None = None) -> Iterator[tuple[dict[str, int], Trial]]:
        """Yield (parameters, result) for each set of parameters that the search tries.

        The result is seconds or why the kernel failed. Results that are stored on disk are not measured again. When the
        search has ended, time the best parameters once more (`_confirm`) and yield them again, unless an earlier run
        has done that.

        Args:
            until: the time.monotonic() after which no trial starts.
            best: seconds of the fastest kernel so far in this class of products, or None. The worker stops timing
                parameters that are much slower.
            most: greatest number of trials; None means no limit.
        """
        while self._point is not None and (most is None or most > 0):
            point, key = self._point, key_of(self._point)
            trial = self.record.trials.get(key)
            if trial is None:
                if time.monotonic() >= until:
                    return
                failure = tuning_db.failure(self.row, self.row.tuned(point), self.device, self.problem)
                answer = {"failed": failure} if failure else self._asked(point, self.record.params, best, until)
                if answer is None:
                    return
                trial = self._learn(point, answer)
            yield point, trial
            most = None if most is None else most - 1
            try:
                self._point = self._proposals.send(math.inf if isinstance(trial, str) else trial)
            except StopIteration:
                self._point = None
        if self._point is None and self.record.params is not None and self.record.gain is None:
            self._confirm(until)
            yield self.record.params, self.record.seconds or math.inf

    def _learn(self, point: dict[str, int], answer: Line) -> Trial:
        """Store the worker's answer for `point` and return its trial."""
        record = self.record
        best = None if record.params is None else record.trials.get(key_of(record.params))
        trial: Trial
        if "failed" in answer:
            trial = str(answer["failed"])
        elif answer["ratio"] is None or not isinstance(best, float):
            trial = _rounded(answer["seconds"])
        else:  # both points were timed in the same rounds, so the effect of other load cancels out in their ratio
            trial = _rounded(answer["ratio"] * best)
        record = replace(record, trials={**record.trials, key_of(point): trial})
        if not isinstance(trial, str) and (not isinstance(best, float) or trial < BETTER * best):
            record = replace(record, params=point, seconds=_rounded(answer["seconds"]), gain=None)
        self.record = record
        tuning_db.save(self.device, [record])
        return trial

    def _confirm(self, until: float) -> None:
        """Time the best values of the parameters again, in turns with the catalog's values.

        The record keeps the best values only if they are clearly faster than the catalog's. Otherwise the record gets
        the catalog's values.
        """
        assert self.record.params is not None
        best, default = self.record.params, {name: self.row.params[name] for name in self.row.space}
        record, gain = self.record, 1.0
        if best != default and not isinstance(record.trials.get(key_of(default), ""), str):
            if time.monotonic() >= until:
                return
            answer = self._asked(best, default, None, until)
            if answer is None or "ratio" not in answer:  # keep the best values, which worked before
                return
            seconds, gain = answer["seconds"], 1 / answer["ratio"]
            if gain < 1 / BETTER:
                best, seconds, gain = default, seconds * gain, 1.0
            record = replace(record, params=best, seconds=_rounded(seconds))
        self.record = replace(record, gain=_rounded(gain))
        tuning_db.save(self.device, [self.record])

    def _asked(
        self, point: dict[str, int], against: dict[str, int] | None, stop: float | None, until: float
    ) -> Line | None:
        """Ask the worker about `point` and return the last line of its answer.

        If the worker died or hung, the result is {"failed": cause}. Returns None if the time ran out or no worker could
        start.

        Args:
            against: the parameters to time in turns with `point`, or None.
            stop: seconds of the fastest kernel so far, or None. The worker stops timing a point that is much slower.
            until: the time.monotonic() at which the run's time is up.
        """
        known = self.facts.of(self.row.tuned(point), self.device) if self.facts else None
        verified = point == self.record.params or bool(known and known["ok"])
        request = {
            "device": self.device.key, "kernel": self.row.name, "params": point, "against": against,
            "shape": self.record.shape, "layout": self.record.layout, "stop": stop, "budget": self.timing,
            "verified": verified,
        }  # fmt: skip
        patience = max(PATIENCE, until - time.monotonic())
        stage, answer = "loaded", Line()
        for line in self.child.ask(request, min(timeout(), patience)):
            if line["step"] == "begin":
                stage = line["what"]
            else:
                answer = line
        if answer["step"] == "refused":  # the system started no worker, which says nothing about the kernel
            return None
        if answer["step"] == "died":
            hung = answer["cause"] == "hung"
            if hung and patience < timeout():
                return None
            # The cause can be local to this class: the product may be too large for the time limit. A build that hangs,
            # however, hangs for all products.
            local = stage == "loaded" or (hung and stage != "built")
            return {"failed": f"{HERE if local else ''}it {answer['cause']} while it was {stage}"}
        return answer


def _rounded(seconds: float) -> float:
    """Return `seconds` rounded to four significant digits, because people read the file that stores the result."""
    return float(f"{seconds:.4g}")


# Which parameter values to try, and in which order.


def points(row: Kernel, names: Mapping[str, int]) -> list[Point]:
    """Return the points of `row`'s space that its rules (Kernel.legal) admit; in a very large space, only some of them.

    Args:
        names: values of the names in the rules: the sizes of the problem and the limits of the device.
    """
    axes = list(row.space)
    if math.prod(len(values) for values in row.space.values()) <= _LISTED:
        combinations: Iterable[Ints] = product(*row.space.values())
    else:
        dice = random.Random(row.name)
        combinations = (tuple(dice.choice(row.space[axis]) for axis in axes) for _ in range(_LISTED))
    found = [dict(zip(axes, values, strict=True)) for values in combinations]
    return [point for point in found if _legal(row, point, names)]


def _legal(row: Kernel, point: Point, names: Mapping[str, int]) -> bool:
    try:
        return row.tuned(point).illegal(names) is None
    except ValueError:  # the point is not in the space
        return False


def size(row: Kernel, names: Mapping[str, int]) -> int:
    """Return the greatest number of points that `proposals` yields."""
    return min(MOST, len(points(row, names)))


def proposals(row: Kernel, names: Mapping[str, int], seeds: Iterable[Point] = ()) -> Generator[Point, float, None]:
    """Yield points to try, each once: the catalog's point, `seeds`, then points of the space.

    SMALL, SAMPLES and MOST limit the number of points.

    The caller sends the seconds of each point, or infinity if the point failed. The same seconds lead to the same
    points. To continue an interrupted search, start again and send the known seconds.
    """
    legal = points(row, names)
    default = {axis: row.params[axis] for axis in row.space}
    small = len(legal) <= SMALL
    listed = legal if small else random.Random(row.name).sample(legal, SAMPLES)
    seen: dict[str, tuple[float, Point]] = {}
    for point in (default, *seeds, *listed):
        if key_of(point) not in seen and _legal(row, point, names):
            seen[key_of(point)] = (yield point), point
    best, centre = math.inf, None
    while not small and seen and len(seen) < MOST:
        reached, point = min(seen.values(), key=lambda tried: tried[0])
        if centre == point or not reached < math.inf:
            return
        best, centre = reached, point
        around = [near for near in _neighbours(row, centre) if key_of(near) not in seen and _legal(row, near, names)]
        for near in around[: MOST - len(seen)]:
            seen[key_of(near)] = (yield near), near
            if seen[key_of(near)][0] < best:
                break  # continue from this better point


def _neighbours(row: Kernel, point: Point) -> list[Point]:
    """Return the points that are one step up or down from `point` along one axis."""
    found = []
    for axis, values in row.space.items():
        at = values.index(point[axis])
        found += [{**point, axis: values[i]} for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return found


@lru_cache(1)
def _product(backend: Backend, row: Kernel, device: Device, problem: Problem) -> tuple[Product, list[Operand]]:
    """Return the operands for the check of `problem` and those for its timing.

    The operands are in the memory where the backend computes.
    """
    product = Product(backend, row, device, problem, np.random.default_rng(problem.n))
    return product, measure.random_operands(backend, device, product.problem)


def answer(request: Line) -> Iterator[Line]:
    """Check and time the candidate of `request`.

    The candidate is the request's `kernel` with its `params`. It is timed for about `budget` seconds, in turns with the
    same kernel with the parameters `against`, unless `against` is null. Timing stops early if the candidate is much
    slower than `stop`, the seconds of the fastest kernel so far. A candidate that is the best one so far must also pass
    the short checks of gemm.select.verify, unless the request says `verified`. A request without a kernel only loads
    the driver.

    The answer has a line {"step": "begin", "what": ...} for each stage. The last line is {"step": "trial", "seconds",
    "ratio"} or {"step": "trial", "failed": cause}. The ratio is the candidate's time ÷ the time with the parameters
    `against`, or null.
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
        verify(backend, kernel, device)
    yield {"step": "trial", "seconds": seconds, "ratio": ratio}


def _timed(field: Sequence[Callable[[int], float]], stop: float | None, budget: float) -> tuple[float, float | None]:
    """Return the median seconds of field[0], and the median over the rounds of the ratio field[0] / field[1].

    Each function in `field` computes a given number of products and returns their mean seconds. The ratio is None if
    there is no field[1]. Timing stops after two rounds if, in both rounds, field[0] takes more than `SLOW` times as
    long as field[1], or more than `SLOW` times `stop`.
    """
    ending = time.perf_counter() + budget
    rounds = [[sample(1) for sample in field]]
    times = [max(1, round(SAMPLE / max(took, 1e-7))) for took in rounds[0]]
    forth = range(len(field))
    while len(rounds) <= ROUNDS and (len(rounds) < 2 or time.perf_counter() < ending):
        took = {at: field[at](times[at]) for at in (reversed(forth) if len(rounds) % 2 else forth)}
        rounds.append([took[at] for at in forth])
        if all(each[0] > SLOW * min(each[-1], stop or math.inf) for each in rounds):
            break
    del rounds[0]  # the first round timed single products, some of which are too short
    seconds = statistics.median(took[0] for took in rounds)
    return seconds, None if len(field) < 2 else statistics.median(took[0] / took[1] for took in rounds)


if __name__ == "__main__":
    serve(answer)
