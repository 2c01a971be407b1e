"""Calibration: correct predicted times by measured times, which `gemm tune` and the running program collect.

The cost model knows rates. It does not know how a driver copies, pages and caches. The model's errors are therefore
similar for similar products. For host operands the error depends on the device and the type, because transfers take
most of the time. For operands in device memory the error depends on the kernel.

A class of products is all products whose sizes round to the same powers of two. One table stores, for each class,
measured time ÷ predicted time. `gemm tune` writes the table (gemm.tune.calibrate). The running process replaces entries
that its own measurements contradict. A class without a measurement takes the mean of its neighbours: the classes in
which one size is half or twice as large. If no neighbour was measured either, the prediction stays unchanged.

The running process times only products whose choice is in doubt: products of host arrays for which another device is
predicted to take at most `DOUBT` times as long as the chosen device. In each class the first product warms up, and the
next `TIMES` products are timed. If the chosen device proves slower than the prediction for the other device, later
products of this class do not use the chosen device. A class of products changes its device at most as often as there
are devices. A choice that is not in doubt has no extra cost. GEMM_ADAPT=0 disables these measurements. Reproducible
products are not timed, and the running process does not correct their predictions. Products whose operands a device may
use in place (`Problem.places`) are neither timed nor corrected: they transfer less than other products of their class.
"""

from __future__ import annotations

import json
import math
import os
from collections import ChainMap
from functools import cache

from gemm.catalog import Kernel
from gemm.core import disk_cache, threads
from gemm.core.problem import Device, Ints, Plan, Problem
from gemm.select import probe, verification

DOUBT = 4.0
"""A choice is in doubt if predicted time on another device ÷ predicted time on the chosen device is at most DOUBT."""
TIMES = 3
"""Number of products of a class that are timed on a device."""
PRIOR, NEARBY = 0.1, 0.25
"""Weights in the mean of `_mean`: PRIOR for the uncorrected prediction, NEARBY for a neighbour's measurement. A
measurement of the class itself has the weight 1."""
MOST = 8.0
"""Limit of measured ÷ predicted. A larger ratio has a cause outside the model, such as other load."""

Class = Ints
"""A class of products: the sizes rounded to powers of two (`Problem.octaves`)."""
Subject = tuple[str, str]
"""What an entry of the table is about: (device key, name). For host operands, the name is their type. For operands in
device memory, the name is the label of the kernel."""
Table = dict[Subject, dict[Class, float]]
"""{subject: {class: logarithm of measured ÷ predicted}}."""

_seen: Table = {}
"""Measurements of this process. They replace the entries of `stored` for the same classes."""
_timed: dict[tuple[Subject, str, Class], tuple[int, float]] = {}
"""{(subject, kernel, class): (number of products so far, least logarithm of measured ÷ predicted)}.

The number includes the product that warms up; the logarithm does not.
"""


def adapts() -> bool:
    """Whether the running program corrects predictions: true unless GEMM_ADAPT is 0.

    Raises ValueError if GEMM_ADAPT has a value other than 0 and 1.
    """
    text = os.environ.get("GEMM_ADAPT")
    return not text or bool(threads.setting("GEMM_ADAPT", "0 or 1", threads.switch, True))


def subject(kernel: Kernel, device: Device, problem: Problem) -> Subject:
    """Return the Subject of the table's entries that correct predictions for `problem` on `kernel` and `device`."""
    return device.key, problem.dtype if problem.device == "host" else kernel.label


def factor(whose: Subject, problem: Problem) -> float:
    """Return the factor by which to multiply the prediction for `problem`; 1.0 if nothing similar was measured.

    `whose` is the result of `subject`.
    """
    if problem.places or not (whose in stored() or whose in _seen):
        return 1.0
    return _mean(whose, problem.octaves, problem.reproducible)


def _mean(whose: Subject, at: Class, reproducible: bool) -> float:
    """Return the factor of class `at`: e to the power of a weighted mean of logarithms.

    If the class itself was measured, its measurement is the only one in the mean. Otherwise, the mean has the
    measurements of its neighbours. In both cases the mean includes a 0 with the weight PRIOR, which stands for the
    uncorrected prediction.
    """
    known = ChainMap({} if reproducible else _seen.get(whose, {}), stored().get(whose, {}))
    if at in known:
        return math.exp(known[at] / (1 + PRIOR))
    near = ((*at[:axis], at[axis] + step, *at[axis + 1 :]) for axis in range(len(at)) for step in (-1, 1))
    found = [known[place] for place in near if place in known]
    return math.exp(NEARBY * sum(found) / (PRIOR + NEARBY * len(found)))


def least(kernel: Kernel, device: Device) -> float:
    """Return a lower bound, at most 1, of `factor` for operands in device memory and any parameters of the kernel."""
    whose = device.key, kernel.name
    tables = (known for (where, label), known in stored().items() if (where, label.partition("[")[0]) == whose)
    return math.exp(min((0.0, *(value for known in tables for value in known.values()))))


@cache
def stored() -> Table:
    """Return the table that `gemm tune` has stored on this machine with these drivers."""
    blob = disk_cache.load(probe.entry("costs")) if probe.recalled[probe.entry()] else None
    table: Table = {}
    for where, what, at, value in json.loads(blob) if blob else ():
        table.setdefault((where, what), {})[tuple(at)] = float(value)
    return table


verification.forgetful.append(stored.cache_clear)


def observe(whose: Subject, at: Class, value: float) -> None:
    """Set this process's table entry for subject `whose` and class `at` to `value`, a logarithm from `error`."""
    _seen.setdefault(whose, {})[at] = value


def keep() -> None:
    """Add this process's measurements to the table on disk, for later processes. Clear the cached choices."""
    table = {whose: stored().get(whose, {}) | _seen.get(whose, {}) for whose in sorted({*stored(), *_seen})}
    rows = [(*whose, at, value) for whose, known in table.items() for at, value in sorted(known.items())]
    disk_cache.store(probe.entry("costs"), json.dumps(rows).encode())
    forget()
    verification.forget_choices()


def error(measured: float, predicted: float) -> float:
    """Return the logarithm of measured ÷ predicted; the ratio is limited to 1/MOST ... MOST."""
    return math.log(min(max(measured / predicted, 1 / MOST), MOST))


def _kind(plan: Plan) -> tuple[Subject, str, Class]:
    return subject(plan.kernel, plan.device, plan.problem), plan.kernel.label, plan.problem.octaves


def doubtful(plan: Plan) -> bool:
    """Whether the choice of `plan` is in doubt, so that the caller must time the product and call `learn`."""
    return (
        plan.rival <= DOUBT * plan.seconds
        and not (plan.problem.reproducible or plan.problem.places)
        and adapts()
        and _timed.get(_kind(plan), (0, 0.0))[0] <= TIMES
    )


def learn(plan: Plan, seconds: float) -> None:
    """Record that the product of `plan` took `seconds`, from host memory to host memory."""
    kind = whose, _, at = _kind(plan)
    count, deviation = _timed.get(kind, (0, math.inf))
    model = plan.seconds / plan.factor
    if count:
        deviation = min(deviation, error(seconds, model))  # other load only adds time: the least ratio is most accurate
        observe(whose, at, max(deviation, math.log(_mean(whose, at, True))))
    _timed[kind] = count + 1, deviation
    # Decide only after all TIMES measurements, because other load may have slowed a single measurement. The plan cache
    # need not be cleared, because it never repeats a product whose choice is still in doubt.
    if count == TIMES and model * _mean(whose, at, False) > plan.rival:
        verification.forget_choices(repeated=False)


def forget() -> None:
    """Drop what this process has learned."""
    _seen.clear()
    _timed.clear()
