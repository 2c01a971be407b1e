"""The launch of a Split: all parts at once, each a product that is delivered as any other is."""

from __future__ import annotations

import math
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from gemm.core import engine, operands
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import Cut, part, parts
from gemm.core.plan import ALL, Part, Plan, Split
from gemm.core.problem import Problem
from gemm.execute.split import CPU, name_of

DRIVING = 4
"""Most CPUs that the CPU's part leaves to the threads that drive a device and copy for it. Without a CPU of their own
the device waits for its operands."""
REPAIRABLE = BackendUnavailable, MemoryError
"""Failures of a part that another device may compute."""


class SplitLaunch:
    """The launch of a Split: see gemm.core.backend.Launch.

    A part whose device fails is computed by another one. It raises what `gemm` does, no KernelFailed: MemoryError or
    BackendUnavailable where nothing is left, RuntimeError where an out that is c was written by then.
    """

    def __init__(self, plan: Split, run: Callable[..., object]) -> None:
        """`run` is gemm.execute.run, which computes the parts."""
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
                sides.append(_side(side, self._run, plan.named, x, y, z, goal, alpha, beta, own))
        try:
            at_once(sides)
        except REPAIRABLE as error:  # no side's own
            _refuse_spoilt(error, spoils and any(side.done for side in sides))
            raise
        well = [side.name for side in sides if side.failure is None]
        written = bool(well)  # a side that has failed has left its part as it was
        for each in sides:
            if each.failure is not None:
                _make_up(each, [*well, ALL.get(plan.backend, "auto")], spoils=spoils and written)
                written = True


def _ranges(problem: Problem, given: Part, shape: Sequence[int]) -> Cut:
    """A part of Split's as one of an out of that shape, whose longest axis of a stack is cut for the batch."""
    found: Cut = {}
    for axis, start, stop in given:
        at, total = len(shape) - 2 + (axis == "n"), getattr(problem, axis)
        if axis == "batch":
            at = max(range(len(shape) - 2), key=lambda at: shape[at])
        found[at] = (round(start * shape[at] / total), round(stop * shape[at] / total))
    return found


class Side:
    """One device's part of a product, which belongs to the first thread that claims it.

    Attributes:
        name: the device's key, or "cpu". native: the CPU's own kernels compute it. failure: what was raised.
        done: it was computed, or has failed.
        run: run(backend) computes the part by the best kernel of `backend`. It raises what gemm.execute.run does.
    """

    def __init__(self, name: str, run: Callable[[str], object], *, native: bool = False) -> None:
        self.name, self.run, self.native = name, run, native
        self.failure: BaseException | None = None
        self.done = False
        # A queue: Ctrl-C in the midst of waiting for an Event can leave its lock held for good.
        self._claims, self._told = dict[str, str](), SimpleQueue[None]()

    def _claimed(self, by: str) -> bool:
        """Whether the part belongs to `by`. One step, which nothing can interrupt."""
        return self._claims.setdefault("by", by) == by

    def work(self, by: str) -> None:
        """Compute the part, unless it belongs to another thread. What is raised is kept."""
        if self._claimed(by):
            try:
                self.run(self.name)
            except BaseException as error:
                self.failure = error
            self.done = True
            self._told.put(None)

    def settle(self) -> None:
        """Wait for the thread that the part belongs to. If that is none or this one, no other computes it later."""
        if not self._claimed("here"):
            while not self.done:
                self._told.get()


def _side(plan: Plan, run: Callable[..., object], kernel: str | None, *given: Any) -> Side:
    """A part, whose operands are given as `run` takes them."""
    a, b, _, out, *_ = given
    places = tuple(map(operands.place, given[:4]))
    layout, batch = "".join(map(operands.layout, (a, b, out))), math.prod(out.shape[:-2])
    problem = replace(plan.problem, batch=batch, layout=layout, places=places * any(places))
    native = plan.kernel.backend == CPU
    return Side(name_of(plan), lambda backend: run(problem, backend, kernel, *given), native=native)


def at_once(sides: Sequence[Side]) -> None:
    """Compute the parts of all sides: the last one, the CPU's if it has one, in this thread, the others in new threads.

    Then this thread takes the parts that no other has begun. When this returns or raises, nobody writes to out any
    more, whatever is raised meanwhile: Ctrl-C as well, and again.
    """
    *others, own = waiting = list(sides)
    interrupt: BaseException | None = None
    try:
        for each in others:
            with suppress(RuntimeError, MemoryError):  # the system has no more threads
                start_new_thread(each.work, ("there",))  # which waits for nothing that Ctrl-C could break
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
    """What a side has raised that no other device makes up for."""
    failures = (side.failure for side in sides)
    return next((each for each in failures if each is not None and not isinstance(each, REPAIRABLE)), None)


def _make_up(side: Side, others: Iterable[str], *, spoils: bool) -> None:
    """Compute the part of a side that has failed by the first of `others` that can.

    `spoils`: other sides have written to an out that is c.
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
    """Raise RuntimeError if an out that is c is partly written: no other device can compute the product then."""
    if spoilt:
        raise RuntimeError(f"{error}; out, which is c, is partly written") from error
