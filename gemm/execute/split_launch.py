"""The launch of a Split: run all parts at the same time, each by the same path as an ordinary product."""

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
"""CPUs at most that the CPU's part leaves free for the threads that drive a device and copy its operands. Without a
free CPU for these threads, the device would wait for its operands."""
REPAIRABLE = BackendUnavailable, MemoryError
"""If a part fails with one of these errors, another device may compute the part."""


class SplitLaunch:
    """The launch of a Split: see gemm.core.backend.Launch.

    If a device fails, another device computes its part.

    Raises:
        The exceptions of `gemm`, but never KernelFailed: MemoryError or BackendUnavailable when no device is left, and
        RuntimeError if an out that is c has been partly written by then.
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
                sides.append(_side(side, self._run, plan.named, x, y, z, goal, alpha, beta, own))
        try:
            at_once(sides)
        except REPAIRABLE as error:  # raised by at_once itself; a part's own error is in its Side
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
    """One device's part of a product. The first thread that claims the part computes it.

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
        # A queue, because Ctrl-C while a thread waits for an Event can leave the Event's lock held forever.
        self._claims, self._told = dict[str, str](), SimpleQueue[None]()

    def _claimed(self, by: str) -> bool:
        """Whether the part belongs to `by`, which claims it if it is free. The claim is one atomic step."""
        return self._claims.setdefault("by", by) == by

    def work(self, by: str) -> None:
        """Compute the part, unless another thread has claimed it. An exception is stored in `failure`."""
        if self._claimed(by):
            try:
                self.run(self.name)
            except BaseException as error:
                self.failure = error
            self.done = True
            self._told.put(None)

    def settle(self) -> None:
        """Wait until the thread that claimed the part has finished it.

        If no thread has claimed the part, this thread claims it without computing it, so that no thread starts later.
        """
        if not self._claimed("here"):
            while not self.done:
                self._told.get()


def _side(plan: Plan, run: Callable[..., object], kernel: str | None, *given: Any) -> Side:
    """The Side of one part; `given` are the part's operands, in the order that `run` takes them."""
    a, b, _, out, *_ = given
    places = tuple(map(operands.place, given[:4]))
    layout, batch = "".join(map(operands.layout, (a, b, out))), math.prod(out.shape[:-2])
    problem = replace(plan.problem, batch=batch, layout=layout, places=places * any(places))
    native = plan.kernel.backend == CPU
    return Side(name_of(plan), lambda backend: run(problem, backend, kernel, *given), native=native)


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
                start_new_thread(each.work, ("there",))  # unlike Thread.start, it never waits, so Ctrl-C is harmless
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
    """The first exception of a side that no other device can repair, or None."""
    failures = (side.failure for side in sides)
    return next((each for each in failures if each is not None and not isinstance(each, REPAIRABLE)), None)


def _make_up(side: Side, others: Iterable[str], *, spoils: bool) -> None:
    """Compute the part of a failed side on the first backend in `others` that succeeds.

    `spoils`: other sides have already written to an out that is c.
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
        raise RuntimeError(f"{error}; out, which is c, is partly written") from error
