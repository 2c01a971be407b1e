"""A product of operands that lie on devices of one backend, by several of them at once.

Each computes a part of the result, as its backend knows how (Backend.in_order): here is only who computes which, and
who makes up for one that fails. Everything is enqueued and nothing waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from gemm import operands
from gemm.backends.base import Part
from gemm.dispatch import choice, registry
from gemm.dispatch.plan import Plan, Split
from gemm.dispatch.together import Side, at_once, make_up, ranges
from gemm.errors import delivering
from gemm.operands import Cut, Spread
from gemm.problem import NARROW, Device, DeviceView, Problem


class SummaLaunch:
    """The launch of a Split of operands on one device: see gemm.backends.base.Launch.

    It raises what SplitLaunch does.
    """

    def __init__(self, plan: Split) -> None:
        self._plan = plan

    def __call__(
        self, a: DeviceView, b: DeviceView, c: DeviceView | None, out: DeviceView, alpha: Any, beta: Any,
        bias: DeviceView | None = None,
    ) -> None:  # fmt: skip
        plan, spread = self._plan, [None if x is None else Spread.of(x) for x in (a, b, c, out, bias)]
        if c is not None and operands.identical(c, out):
            spread[2] = spread[3]
        shares = []
        for side, given in zip(plan.sides, plan.cuts, strict=True):
            cut = ranges(plan.problem, given, out.shape)
            if all(first < last for first, last in cut.values()):
                shares.append((side.device, cut))
        x, y, z, goal, added = spread
        assert x is not None
        assert y is not None
        assert goal is not None
        multiply(x, y, z, goal, added, (alpha, beta), plan.problem, shares, plan.named)

    def replay(self, *_: Any) -> None:
        """There is none: each product is planned anew."""


def multiply(
    a: Spread, b: Spread, c: Spread | None, out: Spread, bias: Spread | None, scalars: tuple[Any, Any],
    problem: Problem, shares: Sequence[tuple[Device, Cut]], kernel: str | None,
) -> None:  # fmt: skip
    """out = alpha·a·b + beta·c + bias, a share of out by each of these devices; c is out itself where it is the same.

    A share that fails is computed by another device. Raises MemoryError or BackendUnavailable where none can, and
    RuntimeError where an out that is c was written by then.
    """
    backend = registry.backend(out.all[0].device.backend)
    chained = not (problem.reproducible or problem.fused or problem.dtype in NARROW) and len(out.shape) == 2
    sides = list[_Share]()
    given = [x for x in (a, b, c, out, bias) if x is not None]
    with delivering(backend.name), backend.in_order(given) as enqueued:
        for device, cut in shares:
            part = enqueued.part(a, b, c, out, bias, cut, chained=chained)
            sides.append(_Share(device, problem, part, scalars, kernel, spoils=c is out))
        if sides:
            at_once(sides)
        well = [side.name for side in sides if side.failure is None]
        others = [device.key for device in backend.devices() if device.key not in well]
        for side in sides:
            if side.failure is not None:
                make_up(side, [name for name in (*well, *others) if name != side.name])


def copy(source: Spread, to: Spread) -> None:
    """to = source, of one shape; each block of `to` is fetched by its device. Raises what `multiply` does."""
    backend = registry.backend(to.all[0].device.backend)
    with delivering(backend.name), backend.in_order((source, to)) as enqueued:
        for top, row in zip(pairwise(to.rows), to.blocks, strict=True):
            for left, block in zip(pairwise(to.columns), row, strict=True):
                if block.size:
                    enqueued.fetch(source, block, {0: top, 1: left})


class _Share(Side):
    """One device's share of a product."""

    def __init__(
        self, device: Device, problem: Problem, part: Part, scalars: tuple[Any, Any], kernel: str | None,
        *, spoils: bool,
    ) -> None:  # fmt: skip
        super().__init__(device.key, spoils=spoils)
        self._devices = registry.backend(device.backend).devices()
        self._part, self._scalars, self._kernel = part, scalars, kernel
        *batch, m, n = part.shape
        self._problem = replace(problem, m=m, n=n, batch=prod(batch))

    def load(self) -> None:

        def attempt(plan: Plan) -> None:
            choice.launcher(plan)

        self._deliver(self.name, attempt)

    def run(self, backend: str) -> None:
        """Enqueue it on the device of that key."""

        def attempt(plan: Plan) -> None:
            launch = choice.launcher(plan)
            self._part.enqueue(plan.device, launch, *self._scalars, fused=plan.problem.fused)

        self._deliver(backend, attempt)

    def _deliver(self, key: str, attempt: Callable[[Plan], None]) -> None:
        device = next(device for device in self._devices if device.key == key)
        choice.deliver(replace(self._problem, device=key), key, self._kernel, device, attempt)
