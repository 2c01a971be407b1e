"""backend="hybrid": one large product of host arrays, cut by rows between the CPU and the fastest other device.

Each side is a product of its own with its own plan, and both run at once (gemm.dispatch.together). A stack is cut
between its matrices where these are more than their rows. There are three ways to compute such a product: both sides at
once, the device alone, the CPU alone. Each that may be the soonest by its predicted time, transfers included, is tried,
a few times a class of products; from then on it is the one that measured least (gemm.dispatch.correction keeps what was
measured). Beside the other side, a side is slower than alone: so the cut follows what sides took at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from gemm.catalog import BACKENDS, HOST_BACKENDS
from gemm.dispatch import balance, choice, correction, probe, trust
from gemm.dispatch.balance import CPU
from gemm.dispatch.plan import HYBRID, Plan, Split
from gemm.errors import BackendUnavailable
from gemm.problem import Device, Problem

GAIN = 0.95
"""A cut that takes more than this share of the better side's time is not made."""
CLOSE = 1.5
"""Times the soonest way's up to which one that was measured once is measured again: others may have disturbed it."""
ALONE, TOGETHER, SHARE = "alone", "together", "share"
"""What is learned: how late a side is alone, how late both are at once, the first side's share when they were quickest;
and how late a side was beside the other one, by its name."""


class _Way(NamedTuple):
    """One to compute a product: a cut, or the plan of one side; with its seconds, and how often it was tried."""

    plan: Plan
    seconds: float
    tries: int

    @property
    def certain(self) -> bool:
        return self.tries > correction.TIMES


def choose(problem: Problem) -> Plan:
    """A Split, or a plan for one side where that is sooner. Raises BackendUnavailable where there is but the CPU."""
    there, here = _elsewhere(problem), _best(problem, CPU)
    if there is None or here is None:
        return replace(choice.alone(problem), reason="the other side has no kernel for it")
    lent = any(place and not place.isdigit() for place in problem.places)
    if lent or shares_cores(there.device):
        side = min(there, here, key=lambda plan: plan.seconds)
        why = "operands in memory of gemm.empty are one side's at a time"
        if not lent:
            why = f"{there.device.key} computes on the CPU's own cores"
        return replace(side, reason=f"{side.reason}; {why}")
    known = _Known(there, here)
    ways = [known.alone(there), known.alone(here)]
    least = min(ways, key=_seconds)
    if (cut := known.cut(GAIN * least.seconds)) is not None:
        told = f"{cut.plan.reason}; {least.plan.device.key} alone would take {balance.ms(least.seconds)}"
        ways.append(cut._replace(plan=replace(cut.plan, reason=told)))
    way = _next(ways) if known.learns else min(ways, key=_seconds)
    if isinstance(way.plan, Split):
        return way.plan
    if known.learns and not way.certain:  # a Split, so that it is timed and the next product is chosen anew
        return balance.split(problem, (way.plan,), way.seconds, "alone, to see what both at once would gain")
    return replace(way.plan, reason=f"{way.plan.reason}; a second side would not gain enough")


def learn(plan: Split, seconds: Sequence[float]) -> None:
    """The sides of a product by `plan` took so long, each from the beginning on."""
    there, here = _elsewhere(plan.problem), _best(plan.problem, CPU)
    if there is not None and here is not None and (known := _Known(there, here)).learns:
        known.learn(plan, seconds)


def name_of(side: Plan) -> str:
    """Of a side, for those who compute it and for what is known of it."""
    return CPU if side.kernel.backend in HOST_BACKENDS else side.device.key


def shares_cores(device: Device) -> bool:
    """Whether `device` computes on the CPU's own cores: what it gains the CPU loses."""
    return device.kind == "cpu"


def _seconds(way: _Way) -> float:
    return way.seconds


def _next(ways: list[_Way]) -> _Way:
    """The one that was tried least of those that may be the soonest; when all were tried enough, the soonest."""
    least = min(map(_seconds, ways))
    open_ = [
        way for way in ways if not way.certain and way.seconds <= (correction.DOUBT if way.tries < 2 else CLOSE) * least
    ]
    return min(open_, key=lambda way: (way.tries, way.seconds)) if open_ else min(ways, key=_seconds)


class _Known:
    """What is known of products like one whose plans, each for all of it, these are.

    A class is half an octave wide along each axis: whether a cut gains is a closer question than who is sooner.
    """

    def __init__(self, there: Plan, here: Plan) -> None:
        problem = here.problem
        self.learns = correction.adapts() and not problem.reproducible
        self._there, self._here = there, here
        self._at = tuple(round(2 * math.log2(max(x, 1))) for x in (problem.batch, problem.m, problem.n, problem.k))
        self._what = (problem.dtype, *problem.inputs, problem.precision)

    def alone(self, side: Plan) -> _Way:
        """One side has all."""
        whose = self._subject(ALONE, side)
        return _Way(side, _model(side) * self._scale(side, whose), correction.tries(whose, self._at))

    def cut(self, most: float) -> _Way | None:
        """Both at once; None where that takes more than `most` seconds. The cut follows what the sides took the last
        time, until there were enough: then it is the quickest one's again."""
        whose = self._pair(TOGETHER)
        tries, late = correction.tries(whose, self._at), self._told(whose)
        certain = tries > correction.TIMES and late is not None
        there, here = (self._scale(x, self._pair(name_of(x)), self._subject(ALONE, x)) for x in self._sides)
        share = self._told(self._pair(SHARE)) if certain else None
        found = balance.cut(*self._sides, (there, here), share, most if late is None else math.inf)
        if found is None:
            return None
        seconds = found.seconds
        if late is not None:
            measured = math.exp(late) * self._least
            seconds = measured if certain else min(measured, seconds)
        return _Way(found, seconds, tries) if seconds <= most else None

    def learn(self, plan: Split, seconds: Sequence[float]) -> None:
        """See `learn`."""
        late = [correction.error(took, _model(side)) for took, side in zip(seconds, plan.sides, strict=True)]
        if len(plan.sides) == 1:
            correction.tell(self._subject(ALONE, plan.sides[0]), self._at, late[0])
            return
        whose = self._pair(TOGETHER)
        if correction.tries(whose, self._at) > correction.TIMES:
            return
        quickest = correction.tell(whose, self._at, correction.error(max(seconds), self._least))
        if correction.tries(whose, self._at) > 1:
            for side, value in zip(plan.sides, late, strict=True):
                correction.put(self._pair(name_of(side)), self._at, value)
        if quickest:
            ((axis, _, items),) = plan.cuts[0]
            correction.put(self._pair(SHARE), self._at, items / getattr(plan.problem, axis))

    @property
    def _sides(self) -> tuple[Plan, Plan]:
        return self._there, self._here

    @property
    def _least(self) -> float:
        """What times of both at once are set beside: it is the same for any cut."""
        return min(map(_model, self._sides))

    def _subject(self, case: str, *sides: Plan) -> correction.Subject:
        keys = " + ".join(side.device.key for side in sides)
        return keys, ", ".join((case, *self._what, *(side.kernel.label for side in sides)))

    def _pair(self, case: str) -> correction.Subject:
        return self._subject(case, *self._sides)

    def _told(self, whose: correction.Subject) -> float | None:
        return correction.told(whose, self._at) if self.learns else None

    def _scale(self, side: Plan, *subjects: correction.Subject) -> float:
        """By what to multiply the model's times of a side: what was measured of the first of `subjects`, if any."""
        late = next((late for late in map(self._told, subjects) if late is not None), None)
        return side.factor if late is None else math.exp(late)


def _model(plan: Plan) -> float:
    """Predicted seconds, not corrected."""
    return plan.seconds / plan.factor


@lru_cache(maxsize=4096)
def _elsewhere(problem: Problem) -> Plan | None:
    """The best plan for all of `problem` on another device; None where none of them multiplies such operands."""
    facts = probe.facts(run=True)
    if facts is not None and all(device["backend"] in HOST_BACKENDS for device in facts.devices.values()):
        causes = "; ".join(facts.unavailable.values()) or "no drivers"
        remedy = 'Install a driver for one, or pass backend="auto"'
        raise BackendUnavailable(HYBRID, f"there is no device beside the CPU ({causes})", remedy)
    return _best(problem, *(name for name in BACKENDS if name not in HOST_BACKENDS))


@lru_cache(maxsize=4096)
def _best(problem: Problem, *names: str) -> Plan | None:
    """The best plan for all of `problem` by the backends of those names; None where none of them multiplies such."""
    found = []
    for name in names:
        with suppress(BackendUnavailable, TypeError, ValueError):  # the last: no reproducible=True of this type
            found.append(choice.choose(problem, name))
    return min(found, key=lambda plan: plan.seconds, default=None)


trust.forgetful += [_elsewhere.cache_clear, _best.cache_clear]
