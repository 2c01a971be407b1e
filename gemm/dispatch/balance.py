"""Where to cut a product so that two sides end together: the device, which has the first part, and the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from gemm.dispatch import choice, trust
from gemm.dispatch.plan import HYBRID, Plan, Split
from gemm.problem import Problem

CPU = "cpu"
START = 1e-4
"""Seconds that a second thread and two launches cost."""
FINEST = 16
"""The tiles of a device are halved until a product has so many."""


@lru_cache(maxsize=4096)
def cut(
    there: Plan, here: Plan, scales: tuple[float, float], share: float | None = None, most: float = math.inf
) -> Split | None:
    """The cut with which both sides, whose plans for all of a product these are, end soonest; None: one has all.

    Args:
        scales: by what to multiply the model's times of each. share: the first one's, if the cut is known.
        most: seconds; a cut that is predicted to take longer is none.
    """
    problem, names = here.problem, (there.device.key, CPU)
    axis = longest(problem)

    def seconds(items: int, side: int) -> float:
        return scales[side] * _predicted(_part(problem, axis, items), names[side])

    total = getattr(problem, axis)
    grain = 1 if axis == "batch" else tile(there, axis)
    if share is None:
        items = balanced(total, grain, lambda n: seconds(n, 0), lambda n: seconds(n, 1))
    else:
        items = round(share * total / grain) * grain
    if not 0 < items < total:
        return None
    taken = seconds(items, 0), seconds(total - items, 1)
    if max(taken) + START > most or math.isinf(max(taken)):
        return None
    parts = zip((items, total - items), names, strict=True)
    sides = tuple(choice.choose(_part(problem, axis, count), name) for count, name in parts)
    what = "matrices" if axis == "batch" else "rows"
    bounds = ((0, items), (items, total))
    told = ", ".join(
        f"{what} {start} to {stop - 1} on {side.device.key} in {ms(time)}"
        for (start, stop), side, time in zip(bounds, sides, taken, strict=True)
    )
    return split(problem, sides, max(taken) + START, told)


def balanced(total: int, grain: int, first: Callable[[int], float], second: Callable[[int], float]) -> int:
    """Items for the first of two sides, a multiple of `grain`, so that the later side ends soonest.

    Args:
        first, second: seconds that each takes for so many items; they grow with them, if in steps.
    """

    def end(items: int) -> float:
        return max(first(items) if items else 0.0, second(total - items) if items < total else 0.0)

    low, high = 0, total // grain  # in grains: at `low` the second side ends later, at `high` the first may
    while high - low > 1:
        middle = (low + high) // 2
        if first(middle * grain) < second(total - middle * grain):
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda at: end(at * grain)) * grain


def ms(seconds: float) -> str:
    """As reasons tell it."""
    return f"about {1e3 * seconds:.3g} ms"


def split(problem: Problem, sides: tuple[Plan, ...], seconds: float, reason: str) -> Split:
    """The plan of these sides of hybrid's, each of which has the items after those of the one before."""
    first, axis, cuts, start = sides[0], longest(problem), [], 0
    for side in sides:
        stop = start + getattr(side.problem, axis)
        cuts.append(((axis, start, stop),))
        start = stop
    return Split(
        problem, first.kernel, first.device, seconds, reason, backend=HYBRID, sides=sides, cuts=tuple(cuts)
    )  # fmt: skip


def _part(problem: Problem, axis: str, items: int) -> Problem:
    return replace(problem, batch=items) if axis == "batch" else replace(problem, m=items)


def longest(problem: Problem) -> str:
    """The axis along which to cut: that of the batch where it is longer than a matrix has rows."""
    return "batch" if problem.batch > problem.m else "m"


@lru_cache(maxsize=4096)
def _predicted(problem: Problem, backend: str) -> float:
    """Seconds, not corrected."""
    found = choice.soonest(problem, backend)
    return math.inf if found is None or found.seconds is None else found.seconds / found.factor


def tile(plan: Plan, axis: str) -> int:
    """Rows (axis "m") or columns ("n") of the result that the device computes at a time; fewer where the product has
    but few such tiles."""
    problem, group = plan.problem, plan.kernel.group
    size = group[(axis == "n") != plan.kernel.swaps(problem.m, problem.n, problem.layout)]
    while size > 1 and size * FINEST > getattr(problem, axis):
        size //= 2
    return size


trust.forgetful += [cut.cache_clear, _predicted.cache_clear]
