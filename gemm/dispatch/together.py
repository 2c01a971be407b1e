"""The launch of a Split: its sides at once, each a product that is delivered as any other is."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from gemm import engine, operands
from gemm.dispatch import choice, hybrid
from gemm.dispatch.balance import CPU
from gemm.dispatch.hybrid import name_of
from gemm.dispatch.plan import ALL, HYBRID, Plan, Split
from gemm.errors import BackendUnavailable
from gemm.operands import Cut, part, parts
from gemm.problem import Problem

DRIVING = 4
"""Threads of the host that a device keeps busy: one drives it, often spinning, and the others copy (gemm_copy takes
what a product leaves). Their CPUs are left to them, where there are many, or the device would wait for its operands
while they wait for a CPU."""


class SplitLaunch:
    """The launch of a Split: see gemm.backends.base.Launch.

    A side that fails is made up for by whatever else works. It raises what `gemm` does, no KernelFailed: MemoryError or
    BackendUnavailable where nothing is left, RuntimeError where an out that is c was written by then.
    """

    def __init__(self, plan: Split) -> None:
        self._plan = plan

    def __call__(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray, alpha: Any, beta: Any,
        bias: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        plan, whole, sides = self._plan, _Views(a, b, c, out, bias), []
        alone = len(plan.sides) == 1
        for side, cut in zip(plan.sides, plan.cuts, strict=True):
            views = whole if alone else _cut(whole, plan.problem, cut)
            if views.out.size:
                own = plan.problem if alone else _described(side.problem, views)
                sides.append(_Part(side, own, views, (alpha, beta), plan.named, alone=alone))
        at_once(sides)
        failed = [side for side in sides if side.failure is not None]
        well = [side.name for side in sides if side.failure is None]
        for each in failed:
            make_up(each, [*well, "auto" if plan.backend == HYBRID else ALL[plan.backend]])
        if plan.backend == HYBRID and not failed and len(sides) == len(plan.sides):
            hybrid.learn(self._plan, [side.seconds for side in sides])


class Side:
    """One side's part of a product.

    Attributes:
        name: of the side, a device's key or "cpu". native: the CPU's own kernels compute it.
        spoils: others write to an out that is c meanwhile.
        failure: what was raised. seconds: what it took, once its kernel was there.
    """

    def __init__(self, name: str, *, native: bool = False, spoils: bool = False) -> None:
        self.name, self.native, self.spoils = name, native, spoils
        self.failure: BaseException | None = None
        self.seconds = 0.0

    def load(self) -> None:
        """Have the kernel compiled or loaded. Raises what `run` does."""
        raise NotImplementedError

    def run(self, backend: str) -> None:
        """Compute it by the best kernel of `backend`. Raises BackendUnavailable, MemoryError or RuntimeError."""
        raise NotImplementedError

    def prepare(self) -> None:
        """`load`; a failure is kept."""
        try:
            self.load()
        except (BackendUnavailable, MemoryError) as error:
            self.failure = error

    def compute(self, begun: float) -> None:
        """Compute it, unless it has failed before. Its seconds count from `begun`: two sides cost each one's."""
        if self.failure is not None:
            return
        try:
            self.run(self.name)
        except BaseException as error:  # raised when the other side is done
            self.failure = error
        self.seconds = time.perf_counter() - begun


def make_up(part: Side, others: Iterable[str]) -> None:
    """Compute a part whose side has failed by the first of `others` that can."""
    assert part.failure is not None
    error = part.failure
    for name in others:
        if not isinstance(error, BackendUnavailable | MemoryError):
            raise error
        try:
            part.run(name)
            return
        except (BackendUnavailable, MemoryError) as failure:
            error = failure
    if not part.spoils:
        raise error
    raise RuntimeError(f"{error}; out, which is c, is partly written") from error


class _Views(NamedTuple):
    """Operands as Launch has them."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    out: np.ndarray
    bias: np.ndarray | None


def _cut(whole: _Views, problem: Problem, cut: tuple[tuple[str, int, int], ...]) -> _Views:
    """A part of the operands: rows and columns of the result, or items of the longest axis of a stack."""
    of, down = ranges(problem, cut, whole.out.shape), whole.out.ndim - 2
    bias = whole.bias
    if bias is not None:
        bias = part(bias, {at - down: r for at, r in of.items() if at >= down and bias.shape[at - down] > 1})
    return _Views(*parts(*whole[:4], of), bias)


def ranges(problem: Problem, cut: tuple[tuple[str, int, int], ...], shape: Sequence[int]) -> Cut:
    """A cut of Split's as one of an out of that shape, whose longest axis of a stack is cut for the batch."""
    found: Cut = {}
    for axis, start, stop in cut:
        at, total = len(shape) - 2 + (axis == "n"), getattr(problem, axis)
        if axis == "batch":
            at = max(range(len(shape) - 2), key=lambda at: shape[at])
        found[at] = (round(start * shape[at] / total), round(stop * shape[at] / total))
    return found


def _described(predicted: Problem, views: _Views) -> Problem:
    """The Problem of a part: of a cut its layout and places are what they are, not always those of the whole."""
    places = tuple(map(operands.place, views[:4]))
    layout = "".join(map(operands.layout, (views.a, views.b, views.out)))
    return replace(predicted, batch=math.prod(views.out.shape[:-2]), layout=layout, places=places * any(places))


class _Part(Side):
    """A side's part of a product of host operands.

    Attributes:
        plan: as it was predicted. views: of the operands.
    """

    def __init__(
        self, plan: Plan, problem: Problem, views: _Views, scalars: tuple[Any, Any], kernel: str | None,
        *, alone: bool,
    ) -> None:  # fmt: skip
        spoils = not alone and views.c is not None and operands.identical(views.c, views.out)
        super().__init__(name_of(plan), native=plan.kernel.backend == CPU, spoils=spoils)
        self.plan, self.views, self._kernel = plan, views, kernel
        self._problem, self._scalars = problem, scalars

    def load(self) -> None:
        """Have the kernel compiled or loaded."""

        def attempt(plan: Plan) -> None:
            launch = choice.launcher(plan)
            native = getattr(launch, "native", None)
            if native is not None and getattr(launch, "wide", None) is None:
                native(*self.views[:4])  # which it then knows

        choice.deliver(self._problem, self.name, self._kernel, None, attempt)

    def run(self, backend: str) -> None:
        """Compute it by the best kernel of `backend`."""
        a, b, c, out, bias = self.views
        choice.run(self._problem, backend, self._kernel, a, b, c, out, *self._scalars, bias)


def at_once(sides: Sequence[Side]) -> None:
    """Compute the parts of all sides, the last one, which is the CPU's if that has one, in this thread.

    Whatever is raised meanwhile, Ctrl-C as well, and again: when this returns or raises, nobody writes to out any more.
    """
    *others, own = sides
    for side in sides if others else ():
        side.prepare()
    begun = time.perf_counter()
    beside = [_Beside(side, begun) for side in others]
    native = others and own.native
    interrupt: BaseException | None = None
    try:
        with engine.leaving(min(DRIVING, engine.get_num_threads() // 4)) if native else nullcontext():
            for each in beside:
                each.start()
            own.compute(begun)
    except BaseException as error:
        interrupt = error
    finally:
        while not all(each.over for each in beside):
            try:
                for each in beside:
                    each.finish(given_up=interrupt is not None)
            except BaseException as error:
                interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


class _Beside:
    """A part that another thread computes, or this one where the system has no more threads.

    Attributes:
        over: nobody computes it now, nor will.
    """

    def __init__(self, side: Side, begun: float) -> None:
        self.side, self.begun, self.done = side, begun, threading.Event()
        self.over = self._alone = False
        self._claims: dict[str, str] = {}

    def claimed(self, by: str) -> bool:
        """Whether it is that one's: the first's who asks. One step, which nothing can interrupt."""
        return self._claims.setdefault("by", by) == by

    def start(self) -> None:
        """Give it to another thread."""
        try:
            given = _idle.pop()
        except IndexError:
            given = SimpleQueue()
            try:
                threading.Thread(target=_serve, args=(given,), name="gemm-hybrid", daemon=True).start()
            except RuntimeError:
                self._alone = True
                return
        given.put(self)

    def finish(self, *, given_up: bool) -> None:
        """Wait until it is computed; if it is given up, no longer than somebody is at it. To be called until `over`."""
        if self.over:
            return
        if not (given_up or self._alone) or not self.claimed("here"):
            self.done.wait()
        elif not given_up:
            self.side.compute(self.begun)
        self.over = True


_Given = SimpleQueue[_Beside]

_idle: list[_Given] = []
"""Of threads that wait for the next product: to start one may take as long as a millisecond's product gains."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork's child has none of them


def _serve(given: _Given) -> None:
    while True:
        part = given.get()
        if part.claimed("there"):
            part.side.compute(part.begun)
        done = part.done
        del part  # and its operands
        _idle.append(given)
        done.set()
        del done
