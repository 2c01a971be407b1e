"""backend="hybrid": one large product of host arrays, cut by rows between the CPU and the fastest other device.

Each side is a product of its own with its own plan, and both run at once (gemm.dispatch.together). A stack is cut
between its matrices where these are more than their rows. Where a cut gains little over the better side alone, that one
computes everything. The cut starts from predicted times, transfers included, and follows measured ones
(gemm.dispatch.balance).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from gemm.catalog import BACKENDS
from gemm.dispatch import balance, choice, correction, probe, trust
from gemm.dispatch.entrants import HOST_BACKENDS
from gemm.dispatch.plan import HYBRID, Plan, Split
from gemm.errors import BackendUnavailable
from gemm.problem import Device, Problem

CPU = "cpu"
START = 1e-4
"""Seconds that a second thread and two launches cost."""
GAIN = 0.95
"""A cut that is predicted to take more than this share of the better side's time is not made."""
FINEST = 16
"""The tiles of a device are halved until a product has so many."""


def choose(problem: Problem) -> Plan:
    """A Split, or a plan for one side where that is sooner. Raises BackendUnavailable where there is but the CPU."""
    there, here = _elsewhere(problem), _best(problem, CPU)
    if there is None or here is None:
        return replace(choice.alone(problem), reason="the other side has no kernel for it")
    lent = any(place and not place.isdigit() for place in problem.places)
    if lent or shares_cores(there.device):
        best = min(there, here, key=lambda plan: plan.seconds)
        why = "operands in memory of gemm.empty are one side's at a time"
        if not lent:
            why = f"{there.device.key} computes on the CPU's own cores"
        return replace(best, reason=f"{best.reason}; {why}")
    if not correction.adapts():
        return _cut(there, here)
    known = balance.lately(problem)
    together, apart = (
        (known.scale(there.device.key, together=case), known.scale(CPU, together=case)) for case in (True, False)
    )
    found = _cut(there, here, together, apart)
    if known.count and (known.tries_alone or not isinstance(found, Split)):
        seconds, best = _sooner(there, here, apart)
        other, scale = (here, apart[1]) if best is there else (there, apart[0])
        fewer = known.alone(name_of(other)) < known.alone(name_of(best))
        if known.tries_alone and fewer and scale * other.seconds <= balance.CLOSE * seconds:
            seconds, best = scale * other.seconds, other
        # A Split still: its time is seen, and the next product may be cut again.
        return _split(problem, (best,), seconds, "one side alone, by measured times")
    return found


def name_of(side: Plan) -> str:
    """Of a side, for those who compute it and for what is known of it."""
    return CPU if side.kernel.backend in HOST_BACKENDS else side.device.key


def shares_cores(device: Device) -> bool:
    """Whether `device` computes on the CPU's own cores: what it gains the CPU loses."""
    return device.kind == "cpu"


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


def _sooner(there: Plan, here: Plan, scales: tuple[float, float]) -> tuple[float, Plan]:
    """The better of two plans for all of a product, and its predicted seconds times its scale."""
    return min(
        ((scale * plan.seconds, plan) for scale, plan in zip(scales, (there, here), strict=True)),
        key=lambda each: each[0],
    )


@lru_cache(maxsize=4096)
def _cut(
    there: Plan, here: Plan, together: tuple[float, float] = (1.0, 1.0), apart: tuple[float, float] = (1.0, 1.0)
) -> Plan:
    """The best cut between two sides, whose plans for all of a product these are; or the better one of them.

    Args:
        together, apart: by what predicted times are to be multiplied, of both sides at once and of each alone.
    """
    problem, names = here.problem, (there.device.key, CPU)
    axis = _axis(problem)

    def seconds(items: int, side: int) -> float:
        return together[side] * _predicted(_part(problem, axis, items), names[side])

    total = getattr(problem, axis)
    grain = 1 if axis == "batch" else _tile(there)
    items, latest = balance.balance(total, grain, lambda n: seconds(n, 0), lambda n: seconds(n, 1))
    latest += START
    alone, best = _sooner(there, here, apart)
    if items in (0, total) or latest > GAIN * alone:
        return replace(best, reason=f"{best.reason}; a second side would not gain enough")
    parts = zip((items, total - items), names, strict=True)
    sides = tuple(choice.choose(_part(problem, axis, count), name) for count, name in parts)
    what = "matrices" if axis == "batch" else "rows"
    bounds = ((0, items), (items, total))
    told = ", ".join(
        f"{what} {start} to {stop - 1} on {side.device.key} in {_ms(scale * side.seconds)}"
        for (start, stop), side, scale in zip(bounds, sides, together, strict=True)
    )
    return _split(problem, sides, latest, f"{told}; {best.device.key} alone would take {_ms(alone)}")


def _ms(seconds: float) -> str:
    return f"about {1e3 * seconds:.3g} ms"


def _split(problem: Problem, sides: tuple[Plan, ...], seconds: float, reason: str) -> Split:
    first, axis = sides[0], _axis(problem)
    return Split(problem, first.kernel, first.device, seconds, reason, axis=axis, sides=sides)


def _part(problem: Problem, axis: str, items: int) -> Problem:
    return replace(problem, batch=items) if axis == "batch" else replace(problem, m=items)


def _axis(problem: Problem) -> str:
    return "batch" if problem.batch > problem.m else "m"


@lru_cache(maxsize=4096)
def _predicted(problem: Problem, backend: str) -> float:
    found = choice.soonest(problem, backend)
    return math.inf if found is None or found.seconds is None else found.seconds


def _tile(plan: Plan) -> int:
    """Rows of the result that the device computes at a time; fewer where the product has but few such tiles."""
    problem, (rows, columns) = plan.problem, plan.kernel.group
    tile = columns if plan.kernel.swaps(problem.m, problem.n, problem.layout) else rows
    while tile > 1 and tile * FINEST > problem.m:
        tile //= 2
    return tile


trust.forgetful += [_elsewhere.cache_clear, _best.cache_clear, _cut.cache_clear, _predicted.cache_clear, balance.forget]
