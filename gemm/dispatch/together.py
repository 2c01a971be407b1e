"""The launch of a Split: its sides at once, each a product that is delivered as any other is."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from gemm import engine, operands
from gemm.dispatch import choice, hybrid
from gemm.dispatch.balance import CPU
from gemm.dispatch.hybrid import name_of
from gemm.dispatch.plan import EVERY, HYBRID, Plan, Split
from gemm.errors import BackendUnavailable
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
        plan, whole, parts = self._plan, _Views(a, b, c, out, bias), []
        alone = len(plan.sides) == 1
        for side, cut in zip(plan.sides, plan.cuts, strict=True):
            views = whole if alone else _cut(whole, plan.problem, cut)
            if views.out.size:
                own = plan.problem if alone else _described(side.problem, views)
                parts.append(_Part(side, own, views, (alpha, beta), plan.named))
        _at_once(parts)
        failed = [part for part in parts if part.failure is not None]
        well = [part.name for part in parts if part.failure is None]
        for part in failed:
            self._make_up(part, [*well, "auto" if plan.backend == HYBRID else EVERY.partition(":")[0]])
        if plan.backend == HYBRID and not failed and len(parts) == len(plan.sides):
            hybrid.learn(self._plan, [part.seconds for part in parts])

    def _make_up(self, part: _Part, others: list[str]) -> None:
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
        c, out = part.views.c, part.views.out
        if c is None or len(self._plan.sides) == 1 or not operands.identical(c, out):
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
    a, b, c, out, bias = whole
    for axis, start, stop in cut:
        at = int(np.argmax(out.shape[:-2])) if axis == "batch" else out.ndim - 2 + (axis == "n")
        items = out.shape[at], getattr(problem, axis)  # these are the whole stack's
        along = slice(*(round(end * items[0] / items[1]) for end in (start, stop)))
        of = (*(slice(None),) * at, along)
        a, b = a if axis == "n" else a[of], b if axis == "m" else b[of]
        c, out = None if c is None else c[of], out[of]
        if bias is not None and axis != "batch" and bias.shape[axis == "n"] > 1:
            bias = bias[along] if axis == "m" else bias[:, along]
    return _Views(a, b, c, out, bias)


def _described(predicted: Problem, views: _Views) -> Problem:
    """The Problem of a part: of a cut its layout and places are what they are, not always those of the whole."""
    places = tuple(map(operands.place, views[:4]))
    layout = "".join(map(operands.layout, (views.a, views.b, views.out)))
    return replace(predicted, batch=math.prod(views.out.shape[:-2]), layout=layout, places=places * any(places))


class _Part:
    """One side's part of a product.

    Attributes:
        plan: as it was predicted. name: of the side. views: of the operands.
        failure: what was raised. seconds: what it took, once its kernel was there.
    """

    def __init__(
        self, plan: Plan, problem: Problem, views: _Views, scalars: tuple[Any, Any], kernel: str | None
    ) -> None:  # fmt: skip
        self.plan, self.views, self._kernel = plan, views, kernel
        self.name = name_of(plan)
        self.failure: BaseException | None = None
        self.seconds = 0.0
        self._problem, self._scalars = problem, scalars

    def load(self) -> None:
        """Have the kernel compiled or loaded."""

        def attempt(plan: Plan) -> None:
            launch = choice.launcher(plan)
            if hasattr(launch, "native"):
                launch.native(*self.views[:4])  # which it then knows

        try:
            choice.deliver(self._problem, self.name, self._kernel, None, attempt)
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

    def run(self, backend: str) -> None:
        """Compute it by the best kernel of `backend`."""
        a, b, c, out, bias = self.views
        choice.run(self._problem, backend, self._kernel, a, b, c, out, *self._scalars, bias)


def _at_once(parts: list[_Part]) -> None:
    """Compute the parts, the last one, which is the CPU's if that has one, in this thread."""
    *others, own = parts
    for part in parts if others else ():
        part.load()
    begun, running = time.perf_counter(), list[tuple[_Part, threading.Event | None]]()
    native = others and own.plan.kernel.backend == CPU
    try:
        with engine.leaving(min(DRIVING, engine.get_num_threads() // 4)) if native else nullcontext():
            running += [(part, _beside(part, begun)) for part in others]
            own.compute(begun)
    finally:
        for part, done in running:  # whatever has happened, nobody writes to out any more when this returns
            if done is None:
                part.compute(begun)
            else:
                done.wait()


_Given = SimpleQueue[tuple[_Part, float, threading.Event]]

_idle: list[_Given] = []
"""Of threads that wait for the next product: to start one may take as long as a millisecond's product gains."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork's child has none of them


def _beside(part: _Part, begun: float) -> threading.Event | None:
    """Have another thread compute a part; the event that it is done, None where the system has no more threads."""
    try:
        given = _idle.pop()
    except IndexError:
        given = SimpleQueue()
        try:
            threading.Thread(target=_serve, args=(given,), name="gemm-hybrid", daemon=True).start()
        except RuntimeError:
            return None
    done = threading.Event()
    given.put((part, begun, done))
    return done


def _serve(given: _Given) -> None:
    while True:
        part, begun, done = given.get()
        part.compute(begun)
        del part  # and its operands
        _idle.append(given)
        done.set()
        del done
