"""The launch of a Split whose operands lie on one device: the other devices fetch what they need and send it back.

The backend knows how a device computes its part (Backend.in_order). This module decides who computes which part, and
who computes the part of a device that fails. Everything is enqueued, and nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from gemm import operands
from gemm.backends.base import Part
from gemm.dispatch import choice, registry
from gemm.dispatch.plan import Plan, Split
from gemm.dispatch.together import Side, at_once, make_up, ranges
from gemm.errors import delivering
from gemm.operands import Spread
from gemm.problem import NARROW, Device, DeviceView, Problem


class DeviceSplitLaunch:
    """The launch of a Split of operands on one device: see gemm.backends.base.Launch.

    A part whose device fails is computed by another device. The launch raises MemoryError or BackendUnavailable where
    no device can compute it, and RuntimeError where an out that is c was written by then.
    """

    def __init__(self, plan: Split) -> None:
        self._plan = plan

    def __call__(
        self, a: DeviceView, b: DeviceView, c: DeviceView | None, out: DeviceView, alpha: Any, beta: Any,
        bias: DeviceView | None = None,
    ) -> None:  # fmt: skip
        plan, problem = self._plan, self._plan.problem
        x, y, goal = Spread.of(a), Spread.of(b), Spread.of(out)
        spoils = c is not None and operands.identical(c, out)
        z = goal if spoils else None if c is None else Spread.of(c)
        added = None if bias is None else Spread.of(bias)
        chained = not (problem.reproducible or problem.fused or problem.dtype in NARROW) and out.ndim == 2
        backend, sides = registry.backend(out.device.backend), list[_Part]()
        given = [each for each in (x, y, z, goal, added) if each is not None]
        with delivering(backend.name), backend.in_order(given) as enqueued:
            for side, ends in zip(plan.sides, plan.cuts, strict=True):
                cut = ranges(problem, ends, out.shape)
                if all(first < last for first, last in cut.values()):
                    part = enqueued.part(x, y, z, goal, added, cut, chained=chained)
                    sides.append(_Part(side.device, problem, part, (alpha, beta), plan.named, spoils=spoils))
            at_once(sides)
            well = [side.name for side in sides if side.failure is None]
            others = [device.key for device in backend.devices() if device.key not in well]
            for each in sides:
                if each.failure is not None:
                    make_up(each, [name for name in (*well, *others) if name != each.name])

    def replay(self, *_: Any) -> None:
        """There is none: each product is planned anew."""


class _Part(Side):
    """One device's part of a product of device operands."""

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
