"""Predictions corrected by what was measured: once a machine by `gemm tune`, and while a program runs.

The cost model knows rates, not how a driver copies, pages and caches; so its errors are alike for products that are
alike. For host operands they are those of a device and a type, since transfers are most of them; for resident ones
those of a kernel. One table says by how much products of a class took longer than predicted. `gemm tune` writes it
(gemm.tune.calibrate), and the running process replaces what it finds to be otherwise. A class that was not measured
takes the mean of its neighbours, an octave away; where nothing was measured, predictions stay as they are.

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
from functools import cache, lru_cache

from gemm.catalog import Kernel
from gemm.core import disk_cache, threads
from gemm.core.plan import Plan
from gemm.core.problem import Device, Problem
from gemm.select import probe, verification

DOUBT = 4.0
"""Times the prediction for the chosen device up to which another one's makes the choice doubtful."""
TIMES = 3
"""Products of a class that are timed on a device."""
PRIOR, NEARBY = 0.1, 0.25
"""What the prediction as it is weighs, and a neighbour's measurement, where one of the class itself weighs 1."""
MOST = 8.0
"""More is no error of the model: something else went on."""

Class = tuple[int, ...]
"""Products that are alike: `Problem.octaves`."""
Subject = tuple[str, str]
"""A device's key, and the type of host operands or the label of a kernel that reads resident ones."""
Table = dict[Subject, dict[Class, float]]
"""{subject: {class: logarithm of what was measured ÷ predicted}}."""

_seen: Table = {}
"""What this process has measured, in place of what `fitted` says of the same classes."""
_timed: dict[tuple[Subject, str, Class], tuple[int, float]] = {}
"""{(subject, kernel, class): how many products were timed, and the least logarithm of measured ÷ predicted}."""


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
    return _factor(subject(kernel, device, problem), problem.octaves, problem.reproducible)


def _factor(whose: Subject, at: Class, reproducible: bool) -> float:
    known = whose in fitted() or (whose in _seen and not reproducible)
    return _mean(whose, at, reproducible) if known else 1.0


@lru_cache(maxsize=4096)
def _mean(whose: Subject, at: Class, reproducible: bool) -> float:
    """e to what is known of a class, else to the mean of its neighbours along each axis; weighted, with 0."""
    known = fitted().get(whose, {}) | ({} if reproducible else _seen.get(whose, {}))
    if at in known:
        return math.exp(known[at] / (1 + PRIOR))
    near = ((*at[:axis], at[axis] + step, *at[axis + 1 :]) for axis in range(len(at)) for step in (-1, 1))
    found = [known[place] for place in near if place in known]
    return math.exp(NEARBY * sum(found) / (PRIOR + NEARBY * len(found)))


def least(kernel: Kernel, device: Device) -> float:
    """No `factor` of resident operands is less, whatever is tuned of the kernel, nor this more than 1."""
    whose = device.key, kernel.name
    tables = (known for (where, label), known in fitted().items() if (where, label.partition("[")[0]) == whose)
    return math.exp(min(0.0, *(value for known in tables for value in known.values()), 0.0))


@cache
def fitted() -> Table:
    """The table as `gemm tune` has left it on this machine with these drivers."""
    blob = disk_cache.load(probe.entry("costs")) if probe.facts(run=False) else None
    table: Table = {}
    for where, what, at, value in json.loads(blob) if blob else ():
        table.setdefault((where, what), {})[tuple(at)] = float(value)
    return table


verification.forgetful += [fitted.cache_clear, _mean.cache_clear]


def observe(whose: Subject, at: Class, value: float) -> None:
    """Let the table say `value`, from `error`, in this process."""
    _seen.setdefault(whose, {})[at] = value
    _mean.cache_clear()


def keep() -> None:
    """Let later processes on this machine have the table, too."""
    table = {whose: fitted().get(whose, {}) | _seen.get(whose, {}) for whose in sorted({*fitted(), *_seen})}
    rows = [(*whose, at, value) for whose, known in table.items() for at, value in sorted(known.items())]
    disk_cache.store(probe.entry("costs"), json.dumps(rows).encode())
    forget()
    verification.forget_choices()


def error(measured: float, predicted: float) -> float:
    """The logarithm of the one ÷ the other, within bounds."""
    return math.log(min(max(measured / predicted, 1 / MOST), MOST))


def _kind(plan: Plan) -> tuple[Subject, str, Class]:
    return subject(plan.kernel, plan.device, plan.problem), plan.kernel.label, plan.problem.octaves


def doubtful(plan: Plan) -> bool:
    """Whether the product that `plan` is for is to be timed, and `learn` to be told."""
    return (
        plan.rival <= DOUBT * plan.seconds
        and not plan.problem.reproducible
        and adapts()
        and _timed.get(_kind(plan), (0, 0.0))[0] <= TIMES
    )


def learn(plan: Plan, seconds: float) -> None:
    """A product by `plan` took so long, from host memory to host memory."""
    kind = whose, _, at = _kind(plan)
    count, late = _timed.get(kind, (0, math.inf))
    model = plan.seconds / plan.factor
    if count:
        late = min(late, error(seconds, model))  # others disturb, nobody hastens
        observe(whose, at, max(late, math.log(_factor(whose, at, True))))
    _timed[kind] = count + 1, late
    # Only when all are timed: a single one may have been disturbed. Products of a class in doubt are not repeated.
    if count == TIMES and model * _factor(whose, at, False) > plan.rival:
        verification.forget_choices(repeated=False)


def forget() -> None:
    """Drop what this process has learned."""
    _seen.clear()
    _timed.clear()
    _mean.cache_clear()
