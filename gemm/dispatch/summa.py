"""A product of operands that lie on GPUs, by several of them at once; see gemm.backends.cuda_summa for what each does.

Everything is enqueued and nothing waited for. What the operands' streams hold is waited for on the devices, and those
streams wait for the product, so that it is in order with whatever else is enqueued there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from gemm import operands
from gemm.backends.cuda_api import LEGACY_STREAM, cuda
from gemm.backends.cuda_blocks import Cut
from gemm.backends.cuda_spread import Spread
from gemm.backends.cuda_summa import Part, fetch
from gemm.dispatch import choice, registry
from gemm.dispatch.plan import EVERY, Plan, Split
from gemm.dispatch.together import Side, at_once, make_up, ranges
from gemm.errors import KernelFailed, delivering
from gemm.problem import NARROW, Device, DeviceView, Problem


class SummaLaunch:
    """The launch of a Split of operands on one GPU: see gemm.backends.base.Launch. It raises what SplitLaunch does."""

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
    """out = alpha·a·b + beta·c + bias, a share of out by each of these GPUs; c is out itself where it is the same.

    A share that fails is computed by another GPU. Raises MemoryError or BackendUnavailable where none can, RuntimeError
    where an out that is c was written by then.
    """
    chained = not (problem.reproducible or problem.fused or problem.dtype in NARROW) and len(out.shape) == 2
    sides = list[_Share]()
    with _in_order(x for x in (a, b, c, out, bias) if x is not None) as (after, done):
        for device, cut in shares:
            part = Part(a, b, c, out, bias, cut, chained=chained)
            sides.append(_Share(device, problem, part, scalars, kernel, after, done, spoils=c is out))
        if sides:
            at_once(sides)
        well = [side.name for side in sides if side.failure is None]
        others = [device.key for device in _devices() if device.key not in well]
        for side in sides:
            if side.failure is not None:
                make_up(side, [name for name in (*well, *others) if name != side.name])


def copy(source: Spread, to: Spread) -> None:
    """to = source, of one shape; each block of `to` is fetched by its GPU. Raises KernelFailed."""
    with _in_order((source, to)) as (after, done):
        for top, row in zip(pairwise(to.rows), to.blocks, strict=True):
            for left, block in zip(pairwise(to.columns), row, strict=True):
                if block.size:
                    done.append((block.device, fetch(source, block, {0: top, 1: left}, after)))


@contextmanager
def _in_order(of: Iterable[Spread]) -> Iterator[tuple[list[int], list[tuple[Device, int]]]]:
    """Events of what the streams of these operands hold, and a list for those of what is enqueued within.

    The streams wait for the latter, with whose devices they are in the list, whatever happens.
    """
    queues: dict[tuple[str, int], DeviceView] = {}
    for view in (view for spread in of for view in spread.all):
        queues[view.device.key, LEGACY_STREAM if view.queue is None else view.queue] = view
    begun, done = list[tuple[Device, int]](), list[tuple[Device, int]]()
    try:
        with delivering(EVERY):
            for (_, stream), view in queues.items():
                begun.append((view.device, _event(view.device, stream)))
        yield [event for _, event in begun], done
    finally:
        for (_, stream), view in queues.items():
            with suppress(KernelFailed), view.device.handle:  # of a context that died: nothing comes after it there
                for _, event in done:
                    cuda().cuStreamWaitEvent(stream, event, 0)
        for device, event in (*begun, *done):
            with suppress(KernelFailed), device.handle:
                cuda().cuEventDestroy(event)  # takes effect once it has happened


def _devices() -> tuple[Device, ...]:
    return registry.backend(EVERY.partition(":")[0]).devices()


def _event(device: Device, stream: int) -> int:
    """An event that happens once that stream is through with what it holds now."""
    with device.handle:
        event = int(cuda().cuEventCreate(2))  # CU_EVENT_DISABLE_TIMING
        cuda().cuEventRecord(event, stream)
        return event


class _Share(Side):
    """One GPU's share of a product."""

    def __init__(
        self, device: Device, problem: Problem, part: Part, scalars: tuple[Any, Any], kernel: str | None,
        after: Sequence[int], done: list[tuple[Device, int]], *, spoils: bool,
    ) -> None:  # fmt: skip
        """done: gets an event, with its device, that all that was enqueued is done."""
        super().__init__(device.key, spoils=spoils)
        self._done = done
        self._part, self._scalars, self._kernel, self._after = part, scalars, kernel, after
        *batch, m, n = part.shape
        self._problem = replace(problem, m=m, n=n, batch=prod(batch))

    def load(self) -> None:

        def attempt(plan: Plan) -> None:
            choice.launcher(plan)

        self._deliver(self.name, attempt)

    def run(self, backend: str) -> None:
        """Enqueue it on the GPU of that key."""

        def attempt(plan: Plan) -> None:
            fused, launch = plan.problem.fused, choice.launcher(plan)
            event = self._part.enqueue(plan.device, launch, *self._scalars, fused=fused, after=self._after)
            self._done.append((plan.device, event))

        self._deliver(backend, attempt)

    def _deliver(self, key: str, attempt: Callable[[Plan], None]) -> None:
        device = next(device for device in _devices() if device.key == key)
        choice.deliver(replace(self._problem, device=key), key, self._kernel, device, attempt)
