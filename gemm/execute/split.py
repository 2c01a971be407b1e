"""Split one product over several devices: which part of the result each device computes.

backend="hybrid" uses the CPU and the fastest other device; backend="cuda:all" uses all GPUs. If the operands are in
host memory, each device gets a rectangle of the result, or some matrices of a stack. The sizes of the parts are chosen
so that all devices finish at the same predicted time. k is never split: one device computes an element completely and
determines its bits. If the operands are on a device, that device computes the whole product.

The launch of a Split runs all parts at the same time, each by the same path as an ordinary product.
"""

from __future__ import annotations

import math
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.catalog import BACKENDS, HOST_BACKENDS
from gemm.core import engine, operands
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import Cut, part, parts
from gemm.core.problem import ALL, HYBRID, Device, Ints, Part, Plan, Problem, Split, layout_of, place_of
from gemm.select import choice, probe

CPU = "cpu"
GAIN = 0.95
"""A split must take at most this fraction of one device's predicted time; otherwise one device computes the product."""
START = 2e-4
"""Seconds to start another thread and a second launch, measured on two cores of an AMD EPYC."""
ROUNDS = 3
"""Number of rounds in which the sizes of the parts are chosen. Each round predicts the times of its parts; the next
round chooses the sizes by the rates that follow from these times."""
GRAIN, FINEST = 64, 16
"""Parts start at multiples of GRAIN rows or columns. On an axis shorter than GRAIN·FINEST, GRAIN is replaced by the
largest power of two that is at most the axis's length / FINEST."""
DRIVING = 4
"""The CPU's part of a split leaves at most this many CPUs to the threads that drive a device and copy its operands.
Without a free CPU for these threads, the device would wait for its operands."""
REPAIRABLE = BackendUnavailable, MemoryError
"""If a part fails with one of these errors, another device may compute the part."""

Bounds = Ints
"""Boundaries of the parts of an axis, starting with 0. Two equal neighbours enclose an empty part."""


@lru_cache(4096)
def choose(problem: Problem, backend: str, kernel: str | None, holder: Device | None, generation: int) -> Plan:
    """A Split; or the plan of one device, with a `reason` that says why the product is not split.

    If the operands are on a device (`holder`), the result is the plan of that device, without such a reason. Raises the
    exceptions of gemm.execute.choose.

    Args:
        generation: `verification.generation`. A new generation invalidates the cached choices.
    """
    best = replace(choice.choose(problem, backend, kernel, holder), rival=math.inf)  # also rejects unknown names
    groups = [] if backend == HYBRID and holder is not None else _groups(backend)
    if holder is not None:
        return best
    found = [[plan for name in group if (plan := _plan(problem, name, kernel))] for group in groups]
    whole = [min(plans, key=lambda plan: plan.seconds) for plans in found if plans]
    if why := _undivided(problem, whole):
        return replace(best, reason=f"{best.reason}; {why}")
    split = min(_splits(problem, backend, kernel, whole), key=lambda split: split.seconds, default=best)
    if split is best or split.seconds > GAIN * best.seconds:
        return replace(best, reason=f"{best.reason}; more devices would not gain enough")
    return replace(split, reason=f"{split.reason}; {best.device.key} alone would take {_ms(best.seconds)}")


def _groups(backend: str) -> list[list[str]]:
    """Groups of device keys or backend names. The fastest device of each group computes a part.

    Raises BackendUnavailable.
    """
    if backend in ALL:
        devices = registry.backend(ALL[backend]).devices()
        if len(devices) < 2:
            cause = f"there is one {devices[0].kind.upper()} only, {devices[0].name}"
            raise BackendUnavailable(backend, cause, f'Pass backend="{ALL[backend]}"')
        return [[device.key] for device in devices]
    facts = probe.facts()
    if facts is not None and all(device["backend"] in HOST_BACKENDS for device in facts.devices.values()):
        causes = "; ".join(facts.unavailable.values()) or "no drivers"
        remedy = 'Install a driver for one, or pass backend="auto"'
        raise BackendUnavailable(HYBRID, f"there is no device other than the CPU ({causes})", remedy)
    return [[name for name in BACKENDS if name not in HOST_BACKENDS], [CPU]]


def name_of(plan: Plan) -> str:
    """The `backend` argument with which gemm.select.choice.choose returns a plan on the same device."""
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
    """Yield splits whose parts are proportional to the devices' rates. A rate is in bytes of the result per second.

    The first split uses the rates predicted for the whole product. Each later split uses the rates predicted for the
    parts of the previous split.
    """
    rates = [plan.problem.sizes[3] / plan.seconds for plan in whole]
    for _ in range(ROUNDS):
        sides, cuts, reasons = list[Plan](), list[Part](), list[str]()
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
            reasons.append(f"{part} on {side.device.key} in {_ms(side.seconds)}")
        if len(sides) > 1:
            yield Split(
                problem, sides[0].kernel, sides[0].device, _seconds(sides), ", ".join(reasons), backend=backend,
                named=kernel, sides=tuple(sides), cuts=tuple(cuts),
            )  # fmt: skip


def _cuts(problem: Problem, rates: Sequence[float]) -> Iterator[Part]:
    """The part of each device, in proportion to its rate.

    If the batch is larger than m, each device computes some products of the batch. Otherwise the result is cut into a
    grid of parts, and each device receives its rows of a and its columns of b. The grid is the one that transfers the
    fewest bytes. If several grids do so, it is the grid with the most cuts along m.
    """
    if problem.batch > problem.m:
        yield from ((("batch", start, stop),) for start, stop in pairwise(bounds(problem.batch, rates)))
        return
    a, b, *_ = problem.sizes
    grids = ((p, len(rates) // p) for p in range(len(rates), 0, -1) if len(rates) % p == 0)
    p, q = min(grids, key=lambda grid: grid[1] * a + grid[0] * b)
    groups = [rates[at * q : (at + 1) * q] for at in range(p)]
    rows = bounds(problem.m, [sum(group) for group in groups], _grain(problem.m))
    for (top, bottom), group in zip(pairwise(rows), groups, strict=True):
        for left, right in pairwise(bounds(problem.n, group, _grain(problem.n))):
            yield (("m", top, bottom),) * (p > 1) + (("n", left, right),) * (q > 1)


def bounds(total: int, weights: Sequence[float], grain: int = 1) -> Bounds:
    """Boundaries that divide `total` items in proportion to `weights`.

    The first boundary is 0, the last is `total`, and all others are multiples of `grain` (or `total`).
    """
    scale, ends = total / sum(weights), [0]
    for at in range(1, len(weights)):
        ends.append(max(ends[-1], min(total, round(sum(weights[:at]) * scale / grain) * grain)))
    return (*ends, total)


def _grain(total: int) -> int:
    return min(GRAIN, 1 << max(0, (total // FINEST).bit_length() - 1))


def _seconds(sides: Sequence[Plan]) -> float:
    """Predicted seconds until the last device finishes, but at least the time of all copies together.

    The host's threads copy the operands of all devices one after another, so the copies of different devices add up.
    """
    away = [side for side in sides if name_of(side) != CPU]
    copying = registry.backend(away[0].device.backend).copying if away else 0.0
    copied = sum(sum(side.problem.moved) for side in away) / copying if copying else 0.0
    return START + max(copied, *(side.seconds for side in sides))


def _ms(seconds: float) -> str:
    return f"about {1e3 * seconds:.3g} ms"


class SplitLaunch:
    """The launch of a Split: see gemm.core.backend.Launch.

    If a device fails, another device computes the part of the device that failed.

    Raises:
        The exceptions of `gemm`, but never KernelFailed: MemoryError or BackendUnavailable when no device is left, and
        RuntimeError if out is c and has already been partly written.
    """

    def __init__(self, plan: Split, run: Callable[..., object]) -> None:
        """`run` is gemm.execute.run, which computes each part."""
        self._plan, self._run = plan, run

    def __call__(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray, alpha: Any, beta: Any,
        bias: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        plan, down = self._plan, out.ndim - 2
        spoils, sides = c is not None and operands.identical(c, out), list[Side]()
        for side, given in zip(plan.sides, plan.cuts, strict=True):
            cut, own = _ranges(plan.problem, given, out.shape), bias
            if bias is not None:
                own = part(bias, {at - down: r for at, r in cut.items() if at >= down and bias.shape[at - down] > 1})
            x, y, z, goal = parts(a, b, c, out, cut)
            if goal.size:
                sides.append(_side(side, self._run, plan.named, (x, y, z, goal, alpha, beta, own)))
        try:
            at_once(sides)
        except REPAIRABLE as error:  # from at_once itself: a REPAIRABLE error of a part is in `failure` of its Side
            _refuse_spoilt(error, spoils and any(side.done for side in sides))
            raise
        well = [side.name for side in sides if side.failure is None]
        written = bool(well)  # a part that failed has left its region of out unchanged
        for each in sides:
            if each.failure is not None:
                _make_up(each, [*well, ALL.get(plan.backend, "auto")], spoils=spoils and written)
                written = True


def _ranges(problem: Problem, given: Part, shape: Sequence[int]) -> Cut:
    """The index ranges of a part in an out of this `shape`. A part of the batch cuts the longest axis of the stack."""
    found: Cut = {}
    for axis, start, stop in given:
        at, total = len(shape) - 2 + (axis == "n"), getattr(problem, axis)
        if axis == "batch":
            at = max(range(len(shape) - 2), key=lambda at: shape[at])
        found[at] = (round(start * shape[at] / total), round(stop * shape[at] / total))
    return found


class Side:
    """One device's part of a product. A thread claims the part before it computes it, so that only one thread does.

    Attributes:
        name: the device's key, or "cpu".
        native: whether kernels of the cpu backend compute the part.
        failure: the exception that computing the part raised, or None.
        done: the part has been computed or has failed.
        run: run(backend) computes the part by the best kernel of `backend`, and raises what gemm.execute.run raises.
    """

    def __init__(self, name: str, run: Callable[[str], object], *, native: bool = False) -> None:
        self.name, self.run, self.native = name, run, native
        self.failure: BaseException | None = None
        self.done = False
        # `_finished` is a queue, not an Event: Ctrl-C while a thread waits for an Event can leave the Event's lock held
        # forever.
        self._claims, self._finished = dict[str, str](), SimpleQueue[None]()

    def _claimed(self, by: str) -> bool:
        """Claim the part for the thread `by` if no thread has claimed it. Return whether the part belongs to `by`.

        The check and the claim are one atomic step.

        Args:
            by: "here" for the thread that called `at_once`, "there" for a thread that it started.
        """
        return self._claims.setdefault("by", by) == by

    def work(self, by: str) -> None:
        """Compute the part, unless another thread has claimed it. An exception is stored in `failure`."""
        if self._claimed(by):
            try:
                self.run(self.name)
            except BaseException as error:
                self.failure = error
            self.done = True
            self._finished.put(None)

    def settle(self) -> None:
        """Wait until the thread that claimed the part has finished it.

        If no thread has claimed the part, this thread claims it without computing it: no other thread can then start
        to compute it later.
        """
        if not self._claimed("here"):
            while not self.done:
                self._finished.get()


def _side(plan: Plan, run: Callable[..., object], kernel: str | None, given: tuple[Any, ...]) -> Side:
    """The Side of one part; `given` are the part's operands, as `run` takes them."""
    a, b, _, out, *_ = given
    places = tuple(map(place_of, given[:4]))
    layout, batch = "".join(map(layout_of, (a, b, out))), math.prod(out.shape[:-2])
    problem = replace(plan.problem, batch=batch, layout=layout, places=places * any(places))
    native = plan.kernel.backend == CPU
    return Side(name_of(plan), lambda backend: run(problem, backend, kernel, given), native=native)


def at_once(sides: Sequence[Side]) -> None:
    """Compute the parts of all sides at the same time, in several threads.

    This thread computes the last side's part, which is the CPU's part if there is one. New threads compute the other
    parts. Afterwards this thread computes the parts that no thread has started. When this function returns or raises,
    even after repeated Ctrl-C, no thread writes to out any more.
    """
    *others, own = waiting = list(sides)
    interrupt: BaseException | None = None
    try:
        for each in others:
            with suppress(RuntimeError, MemoryError):  # the system cannot start more threads
                start_new_thread(each.work, ("there",))  # Thread.start would wait: Ctrl-C could interrupt it
        leaves = min(DRIVING, engine.get_num_threads() // 4) if others and own.native else 0
        with engine.leaving(leaves) if leaves else nullcontext():
            own.work("here")
        for each in others:
            if _error(sides) is None:
                each.work("here")
    except BaseException as error:
        interrupt = error
    while waiting:
        try:
            waiting[-1].settle()
            waiting.pop()
        except BaseException as error:
            interrupt = interrupt or error
    if (raised := interrupt or _error(sides)) is not None:
        raise raised


def _error(sides: Sequence[Side]) -> BaseException | None:
    """The first failure of a side that another device cannot repair (its type is not in REPAIRABLE), or None."""
    failures = (side.failure for side in sides)
    return next((each for each in failures if each is not None and not isinstance(each, REPAIRABLE)), None)


def _make_up(side: Side, others: Iterable[str], *, spoils: bool) -> None:
    """Compute the part of a failed side on the first backend in `others` that succeeds.

    If none succeeds, this raises the last error, or RuntimeError with `spoils`. `spoils` is true if out is c and other
    sides have already written to out.
    """
    error = side.failure
    for name in others:
        try:
            side.run(name)
            return
        except REPAIRABLE as failure:
            error = failure
    assert error is not None
    _refuse_spoilt(error, spoils)
    raise error


def _refuse_spoilt(error: BaseException, spoilt: bool) -> None:
    """Raise RuntimeError if out is c and is partly written, because no other device can compute the product then."""
    if spoilt:
        raise RuntimeError(f"{error}; out is the same array as c, and is partly written") from error
