"""Predictions corrected by what was measured: once a machine by `gemm tune`, and while a program runs.

The cost model knows rates, not how a driver copies, pages and caches; so its errors are alike for products that are
alike. For host operands they are those of a device and a type, since transfers are most of them; for resident ones
those of a kernel. A table says by how much products of a class took longer than predicted; neighbours an octave away
count a little, and where nothing was measured predictions stay as they are.

While a program runs, only what is in doubt is timed: products of host arrays for which another device is predicted to
take less than `DOUBT` times as long. Of each class the first one warms up and the next `TIMES` are timed, and what
proves slower than the other device is predicted to be is chosen no more; so a class changes its device as often as
there are devices at most. Choices where nothing is in doubt cost nothing more. GEMM_ADAPT=0 turns this off;
reproducible products neither teach nor learn.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache

from gemm.catalog import Kernel
from gemm.core import disk_cache, threads
from gemm.core.plan import Plan
from gemm.core.problem import Device, Problem
from gemm.select import probe, verification

DOUBT = 4.0
"""Times the prediction for the chosen device up to which another one's makes the choice doubtful."""
TIMES = 3
"""Products of a class that are timed on a device."""
NEARBY = 0.25
"""What a neighbour's measurement weighs beside one of the class itself."""
PRIOR = 0.1
"""What the prediction as it is weighs."""
MOST = 8.0
"""More is no error of the model: something else went on."""

Subject = tuple[str, str]
"""A device's key, and the type of host operands or the label of a kernel that reads resident ones."""
Table = dict[Subject, dict[tuple[int, ...], float]]
"""{subject: {`Problem.octaves`: logarithm of what was measured ÷ predicted}}."""

_learned: Table = {}
_surfaces: Table = {}
"""{subject: {class: what `_smooth` makes of `_learned` there}}, wherever that is not 0."""
_counts: dict[tuple[Subject, str, tuple[int, ...]], int] = {}


def adapts() -> bool:
    """Whether predictions are corrected while the program runs: unless GEMM_ADAPT is 0. Raises ValueError."""
    text = os.environ.get("GEMM_ADAPT")
    return not text or bool(threads.setting("GEMM_ADAPT", "0 or 1", threads.switch, True))


def subject(kernel: Kernel, device: Device, problem: Problem) -> Subject:
    """Whose error a prediction's is."""
    return device.key, problem.dtype if problem.device == "host" else kernel.label


def factor(kernel: Kernel, device: Device, problem: Problem) -> float:
    """What a prediction for `problem` is to be multiplied by."""
    if problem.places:  # in memory that a device shares no such thing was measured
        return 1.0
    whose, at = subject(kernel, device, problem), problem.octaves
    late = _fitted_surface(whose).get(at, 0.0)
    if whose in _surfaces and not problem.reproducible:
        late += _surfaces[whose].get(at, 0.0)
    return math.exp(late) if late else 1.0


def least(kernel: Kernel, device: Device) -> float:
    """No `factor` of resident operands is less, whatever is tuned of the kernel, nor this more than 1."""
    whose = device.key, kernel.name
    tables = (known for (where, label), known in fitted().items() if (where, label.partition("[")[0]) == whose)
    return math.exp(min(0.0, *(value for known in tables for value in known.values()), 0.0))


@cache
def _fitted_surface(whose: Subject) -> dict[tuple[int, ...], float]:
    """The like of `_surfaces` for what was fitted."""
    known = fitted().get(whose, {})
    surface: dict[tuple[int, ...], float] = {}
    for at in known:
        _spread(surface, known, at)
    return surface


def _spread(surface: dict[tuple[int, ...], float], known: dict[tuple[int, ...], float], at: tuple[int, ...]) -> None:
    """Have `surface` say what `_smooth` does wherever what is known at `at` counts."""
    for place in (at, *_near(at)):
        surface[place] = _smooth(known, place)


def _near(at: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The neighbours of a class along each axis."""
    return [(*at[:axis], at[axis] + step, *at[axis + 1 :]) for axis in range(len(at)) for step in (-1, 1)]


def _smooth(known: dict[tuple[int, ...], float], at: tuple[int, ...]) -> float:
    """The mean of what is known there, of neighbours along each axis, and of 0, weighted."""
    found = [(1.0, known[at])] if at in known else []
    found += [(NEARBY, known[place]) for place in _near(at) if place in known]
    return sum(weight * value for weight, value in found) / (PRIOR + sum(weight for weight, _ in found))


@cache
def fitted() -> Table:
    """What `gemm tune` found on this machine with these drivers."""
    blob = disk_cache.load(probe.entry("costs")) if probe.facts(run=False) else None
    table: Table = {}
    for where, what, at, value in json.loads(blob) if blob else ():
        table.setdefault((where, what), {})[tuple(at)] = float(value)
    return table


verification.forgetful += [fitted.cache_clear, _fitted_surface.cache_clear]


def keep(table: Table) -> None:
    """Let `fitted` give `table`, in this process and in later ones on this machine."""
    rows = [(*whose, at, value) for whose, known in sorted(table.items()) for at, value in sorted(known.items())]
    disk_cache.store(probe.entry("costs"), json.dumps(rows).encode())
    verification.forget_choices()


def error(measured: float, predicted: float) -> float:
    """The logarithm of the one ÷ the other, within bounds."""
    return math.log(min(max(measured / predicted, 1 / MOST), MOST))


def _counted(plan: Plan) -> tuple[Subject, str, tuple[int, ...]]:
    return subject(plan.kernel, plan.device, plan.problem), plan.kernel.label, plan.problem.octaves


def doubtful(plan: Plan) -> bool:
    """Whether the product that `plan` is for is to be timed, and `learn` to be told."""
    return (
        plan.rival <= DOUBT * plan.seconds
        and not plan.problem.reproducible
        and adapts()
        and _counts.get(_counted(plan), 0) <= TIMES
    )


def learn(plan: Plan, seconds: float) -> None:
    """A product by `plan` took so long, from host memory to host memory."""
    key = whose, _, at = _counted(plan)
    count = _counts[key] = _counts.get(key, 0) + 1
    if count == 1:
        return
    model = plan.seconds / plan.factor
    late = error(seconds, model * math.exp(_fitted_surface(whose).get(at, 0.0)))
    known = _learned.setdefault(whose, {})
    known[at] = max(0.0, late if count == 2 else min(known.get(at, late), late))  # others disturb, nobody hastens
    _spread(_surfaces.setdefault(whose, {}), known, at)
    # Only when all are timed: a single one may have been disturbed. Products of a class in doubt are not repeated.
    if count == TIMES + 1 and model * math.exp(_fitted_surface(whose).get(at, 0.0) + known[at]) > plan.rival:
        verification.forget_choices(repeated=False)


def forget() -> None:
    """Drop what this process has learned."""
    _learned.clear()
    _surfaces.clear()
    _counts.clear()
