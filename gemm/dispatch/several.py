"""backend="cuda:all": one product over all devices of a backend, each a part of the result.

Parts are rectangles of rows and columns, or matrices of a stack, as large as each device is fast; k is never cut
between them, so that an element has the bits of one device. Of host operands each part is a product of its own, with
its own way to its device (gemm.dispatch.together); operands on a device are fetched by the others
(gemm.dispatch.device_split).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from gemm.dispatch import balance, choice, registry, trust
from gemm.dispatch.plan import ALL, Plan, Split
from gemm.errors import BackendUnavailable
from gemm.problem import Device, Problem

GAIN = 0.95
"""A split that is predicted to take more than this share of one GPU's time is not made."""

Bounds = tuple[int, ...]
"""0 and the ends of parts of an axis; two that are equal are of a part without items."""


def devices(backend: str) -> tuple[Device, ...]:
    """All that `backend`, one of ALL, names. Raises BackendUnavailable where there are not two."""
    found = registry.backend(ALL[backend]).devices()
    if len(found) < 2:
        raise BackendUnavailable(
            backend, f"there is one {found[0].kind.upper()} only, {found[0].name}", f'Pass backend="{ALL[backend]}"'
        )
    return found


@lru_cache(maxsize=4096)
def choose(problem: Problem, backend: str, kernel: str | None, held_by: Device | None) -> Plan:
    """A Split, or the plan of one device where that is sooner. Raises what gemm.dispatch.choose does."""
    every = devices(backend)
    if held_by is not None and held_by not in every:
        raise ValueError(
            f"backend={backend!r} cannot reach operands that lie on {held_by.key}; copy them to {every[0].key} first"
        )

    def on(device: Device, part: Problem) -> Plan:
        if held_by is None:
            return choice.choose(part, device.key, kernel)
        return choice.choose(replace(part, device=device.key), device.key, kernel, device)

    whole, refusal = [], None
    for device in every:
        try:
            whole.append(on(device, problem))
        except BackendUnavailable as error:  # it has failed before, say
            refusal = error
    alone = [plan for plan in whole if held_by in (None, plan.device)]
    if not alone:
        raise refusal or BackendUnavailable(backend, "no device is left")
    best = min(alone, key=lambda plan: plan.seconds)
    if len(whole) == 1:
        return replace(best, reason=f"{best.reason}; no other device has a kernel for it")
    if held_by is not None and "S" in problem.layout:
        return replace(best, reason=f"{best.reason}; operands whose elements lie apart are not fetched by others")
    sides, cuts = [], []
    for plan, cut in zip(whole, _cuts(problem, whole), strict=True):
        if all(start < stop for _, start, stop in cut):
            sizes: dict[str, Any] = {axis: stop - start for axis, start, stop in cut}
            sides.append(on(plan.device, replace(problem, **sizes)))
            cuts.append(cut)
    seconds = balance.START + max(
        _copied(sides, held_by), *(max(side.seconds, _fetched(side, held_by)) for side in sides)
    )
    if len(sides) == 1 or seconds > GAIN * best.seconds:
        return replace(best, reason=f"{best.reason}; more devices would not gain enough")
    told = ", ".join(_told(cut, side) for cut, side in zip(cuts, sides, strict=True))
    told += f"; {best.device.key} alone would take {balance.ms(best.seconds)}"
    return Split(
        problem, sides[0].kernel, sides[0].device, seconds, told, backend=backend, named=kernel,
        sides=tuple(sides), cuts=tuple(cuts),
    )  # fmt: skip


trust.forgetful.append(choose.cache_clear)


def _fetched(side: Plan, home: Device | None) -> float:
    """Seconds that operands of a device's part take from the device that holds them, and its results back."""
    if home is None or side.device == home:
        return 0.0
    return sum(side.problem.moved) / registry.backend(home.backend).rate(side.device, home)


def _copied(sides: Sequence[Plan], home: Device | None) -> float:
    """Seconds that the host's threads take, which all devices share, to copy host operands of all parts."""
    if home is not None:
        return 0.0
    return sum(sum(side.problem.moved) for side in sides) / registry.backend(sides[0].device.backend).copying


def grids(count: int) -> Iterator[tuple[int, int]]:
    """Every p × q of `count` parts, those of the most rows first."""
    yield from ((p, count // p) for p in range(count, 0, -1) if count % p == 0)


def bounds(total: int, weights: Sequence[float], grain: int = 1) -> Bounds:
    """`total` items in as many parts as there are weights, in proportion to them, cut at multiples of `grain`."""
    scale, ends = total / sum(weights), [0]
    for at in range(1, len(weights)):
        ends.append(max(ends[-1], min(total, round(sum(weights[:at]) * scale / grain) * grain)))
    return (*ends, total)


def _cuts(problem: Problem, whole: Sequence[Plan]) -> Iterator[tuple[tuple[str, int, int], ...]]:
    """The part of each of these plans' devices.

    A device is sent its rows of a and its columns of b: of all grids the one that sends least; rows only, if as good.
    """
    rates = [1 / plan.seconds for plan in whole]
    if balance.longest(problem) == "batch":
        ends = bounds(problem.batch, rates)
        yield from ((("batch", start, stop),) for start, stop in pairwise(ends))
        return
    a, b, *_ = problem.sizes
    grain = {axis: balance.tile(whole[0], axis) for axis in ("m", "n")}
    p, q = min(grids(len(whole)), key=lambda grid: grid[1] * a + grid[0] * b)
    groups = [rates[at * q : (at + 1) * q] for at in range(p)]
    rows = bounds(problem.m, [sum(group) for group in groups], grain["m"])
    for row, group in enumerate(groups):
        down = (("m", rows[row], rows[row + 1]),) if p > 1 else ()
        columns = bounds(problem.n, group, grain["n"])
        for start, stop in pairwise(columns):
            yield (*down, ("n", start, stop)) if q > 1 else down


def _told(cut: Sequence[tuple[str, int, int]], side: Plan) -> str:
    names = {"m": "rows", "n": "columns", "batch": "matrices"}
    part = " of ".join(f"{names[axis]} {start} to {stop - 1}" for axis, start, stop in cut)
    return f"{part} on {side.device.key} in {balance.ms(side.seconds)}"
