"""Tunes a device's kernels: proposes parameters, has a child check and time them, and keeps what it learns.

Every trial is on disk before the next one starts, so that a run that was interrupted goes on where it was. A candidate
that hangs or kills the child costs its own time and is not tried again with this driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gemm.catalog import Kernel
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device, Problem
from gemm.select import cost, probe, tuning_db
from gemm.select.tuning_records import HERE, Record, Trial, key_of
from gemm.select.worker import Child, Line, timeout
from gemm.tune import search

FAST = 1.0
"""Seconds that a fast run spends on a class of products."""
TIMING = 0.4
"""Seconds that a candidate is timed for; a quarter of it in a fast run."""
PATIENCE = 10.0
"""Seconds that a stage of a candidate may take when the time is up; more is no failure, but the end."""
HOPELESS = 4.0
"""A kernel that, by its first trials, is so many times as slow as the best for the class is not searched."""


@dataclass(frozen=True)
class Step:
    """What has just become known.

    Attributes:
        row, params, trial: the candidate and its fate; record: all that is known of the row for this class.
    """

    row: Kernel
    params: dict[str, int]
    trial: Trial
    record: Record


def problem(row: Kernel, shape: tuple[int, int, int, int], layout: str) -> Problem:
    """The product of `shape` (batch, m, n, k) that `row` computes."""
    batch, m, n, k = shape
    return Problem("float32" if row.dtype == "*" else row.dtype, m, n, k, batch, layout + "N", inputs=row.inputs)


def tune(
    child: Child, device: Device, rows: Iterable[Kernel], shape: tuple[int, int, int, int], layout: str, *,
    fast: bool = False, until: float = math.inf,
) -> Iterator[Step]:  # fmt: skip
    """Tune `rows` on `device` for the class of products that `shape` and `layout` stand for.

    Args:
        child: of the module gemm.tune.worker.
        fast: spend FAST seconds at most. until: when to stop, by time.monotonic(); what runs then may finish.

    Raises:
        BackendUnavailable: the device's driver does not survive being loaded.
    """
    for line in child.ask({"device": device.key}, timeout()):  # loading the driver counts for no class
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
    """The search for a row's best parameters, fed by what is on disk and by the child."""

    def __init__(
        self, child: Child, device: Device, row: Kernel, shape: tuple[int, int, int, int], layout: str, timing: float
    ) -> None:
        self.child, self.device, self.row, self.timing = child, device, row, timing
        self.problem = problem(row, shape, layout)
        names = {"batch": shape[0], "m": shape[1], "n": shape[2], "k": shape[3], **device.limits}
        self.facts = facts = probe.facts(run=False)
        rates = facts.rates(row, device) if facts else None
        self.expected = cost.predict(row, device, replace(self.problem, device=device.key), rates).seconds or math.inf
        self.size = search.size(row, names)
        fresh = Record(row.name, shape, layout, device.driver, tuning_db.fingerprint(row))
        known = [record for record in tuning_db.stored(device) if record.identity == fresh.identity]
        self.record = known[0] if known else fresh
        seeds = [{name: choice.kernel.params[name] for name in row.space}
                 for choice in tuning_db.choices(row, device, self.problem)][:3]  # fmt: skip
        self._proposals = search.proposals(row, names, seeds)
        self._point = next(self._proposals, None)

    def run(self, until: float, best: float | None, most: int | None = None) -> Iterator[tuple[dict[str, int], Trial]]:
        """Each trial, up to `most` of them, and in the end the best again. `best`: seconds of the best row so far."""
        while self._point is not None and (most is None or most > 0):
            point, key = self._point, key_of(self._point)
            trial = self.record.trials.get(key)
            if trial is None:
                if time.monotonic() >= until:
                    return
                spoiled = tuning_db.failure(self.row, self.row.tuned(point), self.device, self.problem)
                answer = {"failed": spoiled} if spoiled else self._asked(point, self.record.params, best, until)
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
        """Keep what the child said of `point`; returns its trial."""
        record = self.record
        best = None if record.params is None else record.trials.get(key_of(record.params))
        trial: Trial
        if "failed" in answer:
            trial = str(answer["failed"])
        elif answer["ratio"] is None or not isinstance(best, float):
            trial = _rounded(answer["seconds"])
        else:  # next to the best, in the same rounds: what else the machine did then cancels out
            trial = _rounded(answer["ratio"] * best)
        record = replace(record, trials={**record.trials, key_of(point): trial})
        if not isinstance(trial, str) and (not isinstance(best, float) or trial < search.BETTER * best):
            record = replace(record, params=point, seconds=_rounded(answer["seconds"]), gain=None)
        self.record = record
        tuning_db.save(self.device, [record])
        return trial

    def _confirm(self, until: float) -> None:
        """Time the best once more, beside the catalog's values, which take their place unless it is clearly faster."""
        assert self.record.params is not None
        best, default = self.record.params, {name: self.row.params[name] for name in self.row.space}
        record, gain = self.record, 1.0
        if best != default and not isinstance(record.trials.get(key_of(default), ""), str):
            if time.monotonic() >= until:
                return
            answer = self._asked(best, default, None, until)
            if answer is None or "ratio" not in answer:  # it worked before: nothing is learnt
                return
            seconds, gain = answer["seconds"], 1 / answer["ratio"]
            if gain < 1 / search.BETTER:
                best, seconds, gain = default, seconds * gain, 1.0
            record = replace(record, params=best, seconds=_rounded(seconds))
        self.record = replace(record, gain=_rounded(gain))
        tuning_db.save(self.device, [self.record])

    def _asked(
        self, point: dict[str, int], against: dict[str, int] | None, stop: float | None, until: float
    ) -> Line | None:
        """The child's last line about `point`, a death as {"failed": cause}; None if the time ran out."""
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
        if answer["step"] == "refused":  # by the system: nothing is learnt of the kernel
            return None
        if answer["step"] == "died":
            hung = answer["cause"] == "hung"
            if hung and patience < timeout():
                return None
            # A product may only be too large for the time limit; a build that hangs does so for all of them.
            local = stage == "loaded" or (hung and stage != "built")
            return {"failed": f"{HERE if local else ''}it {answer['cause']} while it was {stage}"}
        return answer


def _rounded(seconds: float) -> float:
    """To the digits that mean something, in a file that people read."""
    return float(f"{seconds:.4g}")
