"""Split one product over several devices: which part of the result each device computes.

backend="hybrid" uses the CPU and the fastest other device; backend="cuda:all" uses all GPUs. If the operands are in
host memory, each device gets a rectangle of the result, or some matrices of a stack. The parts are sized for all
devices to finish at the same predicted time. k is never split, so one device computes each element, with that device's
bits. If the operands are on a device, that device computes the whole product. gemm.execute.split_launch runs a split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from gemm.backends import registry
from gemm.catalog import BACKENDS, HOST_BACKENDS
from gemm.core.errors import BackendUnavailable
from gemm.core.plan import ALL, HYBRID, Part, Plan, Split
from gemm.core.problem import Device, Problem
from gemm.select import choice, probe

CPU = "cpu"
GAIN = 0.95
"""A split must take at most this fraction of one device's predicted time; otherwise one device computes the product."""
START = 2e-4
"""Seconds to start another thread and a second launch, measured on two cores of an AMD EPYC."""
ROUNDS = 3
"""Rounds of prediction. Each round predicts the parts' times, which correct the rates that size the next parts."""
GRAIN, FINEST = 64, 16
"""Parts start at multiples of GRAIN. On an axis shorter than GRAIN·FINEST, a smaller power of two replaces GRAIN."""

Bounds = tuple[int, ...]
"""Boundaries of the parts of an axis, starting with 0. Two equal neighbours enclose an empty part."""


@lru_cache(maxsize=4096)
def choose(problem: Problem, backend: str, kernel: str | None, held_by: Device | None, generation: int) -> Plan:
    """A Split; or the plan of one device, with a `reason` that says why the product is not split.

    Raises the exceptions of gemm.execute.choose.

    Args:
        generation: `verification.generation`. A new generation invalidates the cached choices.
    """
    best = replace(choice.choose(problem, backend, kernel, held_by), rival=math.inf)  # also rejects unknown names
    groups = [] if backend == HYBRID and held_by is not None else _groups(backend)
    if held_by is not None:
        return best
    found = [[plan for name in group if (plan := _plan(problem, name, kernel))] for group in groups]
    whole = [min(plans, key=lambda plan: plan.seconds) for plans in found if plans]
    if why := _undivided(problem, whole):
        return replace(best, reason=f"{best.reason}; {why}")
    split = min(_splits(problem, backend, kernel, whole), key=lambda split: split.seconds, default=best)
    if split is best or split.seconds > GAIN * best.seconds:
        return replace(best, reason=f"{best.reason}; more devices would not gain enough")
    return replace(split, reason=f"{split.reason}; {best.device.key} alone would take {_ms(best.seconds)}")


def _devices(backend: str) -> tuple[Device, ...]:
    """All devices of `backend`, one of ALL. Raises BackendUnavailable if there are fewer than two devices."""
    found = registry.backend(ALL[backend]).devices()
    if len(found) < 2:
        cause = f"there is one {found[0].kind.upper()} only, {found[0].name}"
        raise BackendUnavailable(backend, cause, f'Pass backend="{ALL[backend]}"')
    return found


def _groups(backend: str) -> list[list[str]]:
    """Groups of names of devices or backends: the fastest of each group takes part. Raises BackendUnavailable."""
    if backend in ALL:
        return [[device.key] for device in _devices(backend)]
    facts = probe.facts(run=True)
    if facts is not None and all(device["backend"] in HOST_BACKENDS for device in facts.devices.values()):
        causes = "; ".join(facts.unavailable.values()) or "no drivers"
        remedy = 'Install a driver for one, or pass backend="auto"'
        raise BackendUnavailable(HYBRID, f"there is no device besides the CPU ({causes})", remedy)
    return [[name for name in BACKENDS if name not in HOST_BACKENDS], [CPU]]


def name_of(plan: Plan) -> str:
    """The name by which `choice` finds a plan on the same device again."""
    return CPU if plan.kernel.backend in HOST_BACKENDS else plan.device.key


def _shares_cores(device: Device) -> bool:
    """Whether a device of a backend other than "cpu" computes on the CPU's own cores."""
    return device.kind == "cpu"


def _plan(problem: Problem, name: str, kernel: str | None) -> Plan | None:
    with suppress(BackendUnavailable, TypeError, ValueError):  # ValueError: this type has no reproducible kernel
        return choice.choose(problem, name, kernel)
    return None


def _undivided(problem: Problem, whole: Sequence[Plan]) -> str:
    """Why one device computes the whole product, or "" if the product may be split."""
    if len(whole) < 2:
        return "no other device has a kernel for it"
    if any(place and not place.isdigit() for place in problem.places):
        return "operands in memory of gemm.empty are used by one device at a time"
    sharing = [plan.device.key for plan in whole if name_of(plan) != CPU and _shares_cores(plan.device)]
    return f"{sharing[0]} computes on the CPU's own cores" if sharing else ""


def _splits(problem: Problem, backend: str, kernel: str | None, whole: Sequence[Plan]) -> Iterator[Split]:
    """Splits in proportion to the devices' rates, in bytes of the result per second.

    The first split uses the rates predicted for the whole product. Each further split uses the rates predicted for the
    parts of the split before.
    """
    rates = [plan.problem.sizes[3] / plan.seconds for plan in whole]
    for _ in range(ROUNDS):
        sides, cuts, told = list[Plan](), list[Part](), list[str]()
        for at, cut in enumerate(_cuts(problem, rates)):
            sizes: dict[str, Any] = {axis: stop - start for axis, start, stop in cut}
            if not all(sizes.values()):
                continue
            if (side := _plan(replace(problem, **sizes), name_of(whole[at]), kernel)) is None:
                return
            rates[at] = side.problem.sizes[3] / side.seconds
            sides.append(side)
            cuts.append(cut)
            names = {"m": "rows", "n": "columns", "batch": "matrices"}
            part = " of ".join(f"{names[axis]} {start} to {stop - 1}" for axis, start, stop in cut)
            told.append(f"{part} on {side.device.key} in {_ms(side.seconds)}")
        if len(sides) > 1:
            yield Split(
                problem, sides[0].kernel, sides[0].device, _seconds(sides), ", ".join(told), backend=backend,
                named=kernel, sides=tuple(sides), cuts=tuple(cuts),
            )  # fmt: skip


def _cuts(problem: Problem, rates: Sequence[float]) -> Iterator[Part]:
    """The part of each device, in proportion to its rate.

    A device receives its rows of a and its columns of b. Among all grids of parts, the grid that transfers the fewest
    bytes is taken. A grid of rows only wins a tie.
    """
    if problem.batch > problem.m:
        yield from ((("batch", start, stop),) for start, stop in pairwise(bounds(problem.batch, rates)))
        return
    a, b, *_ = problem.sizes
    p, q = min(_grids(len(rates)), key=lambda grid: grid[1] * a + grid[0] * b)
    groups = [rates[at * q : (at + 1) * q] for at in range(p)]
    rows = bounds(problem.m, [sum(group) for group in groups], _grain(problem.m))
    for (top, bottom), group in zip(pairwise(rows), groups, strict=True):
        for left, right in pairwise(bounds(problem.n, group, _grain(problem.n))):
            yield (("m", top, bottom),) * (p > 1) + (("n", left, right),) * (q > 1)


def _grids(count: int) -> Iterator[tuple[int, int]]:
    """Every p × q grid of `count` parts, starting with the most rows."""
    yield from ((p, count // p) for p in range(count, 0, -1) if count % p == 0)


def bounds(total: int, weights: Sequence[float], grain: int = 1) -> Bounds:
    """Boundaries that divide `total` items in proportion to `weights`, at multiples of `grain`."""
    scale, ends = total / sum(weights), [0]
    for at in range(1, len(weights)):
        ends.append(max(ends[-1], min(total, round(sum(weights[:at]) * scale / grain) * grain)))
    return (*ends, total)


def _grain(total: int) -> int:
    return min(GRAIN, 1 << max(0, (total // FINEST).bit_length() - 1))


def _seconds(sides: Sequence[Plan]) -> float:
    """Predicted time until the last device finishes, at least the time of all copies.

    The host's threads copy the operands of all devices one after another, so the copies of different devices add up.
    """
    away = [side for side in sides if name_of(side) != CPU]
    copying = registry.backend(away[0].device.backend).copying if away else 0.0
    copied = sum(sum(side.problem.moved) for side in away) / copying if copying else 0.0
    return START + max(copied, *(side.seconds for side in sides))


def _ms(seconds: float) -> str:
    return f"about {1e3 * seconds:.3g} ms"
