"""Products of device arrays that wait, in runs at a constant distance: each run is one batched product."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gemm import operands, repeat
from gemm.api import at_once
from gemm.problem import DeviceView

log = logging.getLogger("gemm")


def stack(arrays: Sequence[np.ndarray], axes: int) -> np.ndarray:
    """Arrays of one shape and dtype as one with a new first axis, and ones until each has `axes`.

    A view where all are the same.
    """
    first = arrays[0]
    ones = (1,) * (axes - first.ndim)
    if all(x is first for x in arrays):
        return np.broadcast_to(first.reshape(*ones, *first.shape), (len(arrays), *ones, *first.shape))
    return np.concatenate(arrays).reshape(len(arrays), *ones, *first.shape)


class Waiting(NamedTuple):
    """A product: the caller's arrays, and where they lie.

    Attributes:
        replay: what computes products like it. options: a key of repeat.replays. stream: the one it was asked for on.
        addresses: of a, b, c (0: there is none) and out.
    """

    replay: Any
    options: Any
    stream: int
    arrays: tuple[Any, Any, Any, Any]
    addresses: tuple[int, int, int, int]


class Resident:
    """Products of CUDA arrays of one thread that wait."""

    MOST = 4096
    MOST_WORK = 1.4e8  # multiply-adds: a larger product fills a GPU by itself
    LEAST_RUN = 8  # products: what checking and choosing one batched product costs

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def last(self) -> Any:
        """The result that was promised last, or None."""
        return self._waiting[-1].arrays[3] if self._waiting else None

    def take(self, options: Any, a: Any, b: Any, c: Any, out: Any) -> Any:
        """The result of a product of arrays like others before, which waits; None for any other."""
        replay = repeat.replay(options, a, b, c, out)
        place = getattr(replay, "place", None)
        if place is None or replay.work > self.MOST_WORK:
            return None
        stream, arrays, addresses = place(a, b, c, out)
        self._waiting.append(Waiting(replay, options, stream, arrays, addresses))
        return arrays[3]

    def run(self, failed: dict[tuple[str, int], BaseException]) -> None:
        """Compute what waits. failed: is given ("device", number) of each product that raised, and its error."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            spans = np.array([[w.replay.span(i) for i in range(4)] for w in waiting])
            at = np.array([w.addresses for w in waiting], np.int64)
            self._compute(waiting, at, at[..., None] + spans, range(len(waiting)), failed)

    def _compute(
        self, waiting: list[Waiting], at: np.ndarray, extents: np.ndarray, part: range,
        failed: dict[tuple[str, int], BaseException],
    ) -> None:  # fmt: skip
        """Those of `part`: together if they may be computed in any order, else its first half before the second."""
        if len(part) > 1 and not independent(extents[part.start : part.stop], at[part.start : part.stop, 2] > 0):
            middle = (part.start + part.stop) // 2
            self._compute(waiting, at, extents, range(part.start, middle), failed)
            self._compute(waiting, at, extents, range(middle, part.stop), failed)
            return
        groups: dict[Any, list[int]] = {}
        for i in part:
            groups.setdefault((id(waiting[i].replay), waiting[i].stream), []).append(i)
        for group in groups.values():
            for run in runs(at[group]):
                self._launch([waiting[group[i]] for i in run], [group[i] for i in run], failed)

    def _launch(
        self, run: list[Waiting], numbers: list[int], failed: dict[tuple[str, int], BaseException]
    ) -> None:  # fmt: skip
        """Products that lie at a constant distance."""
        options = repeat.named(run[0].options)
        if len(run) >= self.LEAST_RUN:
            steps = [y - x for x, y in zip(run[0].addresses, run[1].addresses, strict=True)]
            try:
                views = stacked(run[0], steps, len(run))
                if views is not None:
                    at_once(*views[:3], out=views[3], **options)
                    return
            except Exception as error:  # of one of them, or it was too much at once
                log.debug("%d products in one launch failed, which are launched one by one: %s", len(run), error)
        for one, number in zip(run, numbers, strict=True):
            a, b, c, out = one.arrays
            try:
                at_once(a, b, c, out=out, **options)
            except Exception as error:
                failed["device", number] = error


def stacked(first: Waiting, steps: Sequence[int], count: int) -> list[Any] | None:
    """The operands of `count` products, each `steps` bytes behind the one before, as stacks; None for vectors."""
    views: list[Any] = []
    for array, name in zip(first.arrays, ("a", "b", "c", "out"), strict=True):
        if array is not None and name == "c" and array is first.arrays[3]:
            views.append(None)
            continue
        views.append(None if array is None else operands.wrap(array, name))
    if views[0].ndim < 2 or views[1].ndim < 2:
        return None
    axes = max(views[0].ndim, views[1].ndim)
    found: list[Any] = [
        None if view is None else _stack_of(view, step, count, axes, first.stream)
        for view, step in zip(views, steps, strict=True)
    ]
    if first.arrays[2] is first.arrays[3]:
        found[2] = found[3]
    return found


def _stack_of(view: DeviceView, step: int, count: int, axes: int, stream: int) -> DeviceView:
    ones = (1,) * (axes - view.ndim)
    shape, strides = (count, *ones, *view.shape), (step, *(0 for _ in ones), *view.strides)
    return replace(view, shape=shape, strides=strides, queue=stream)


def independent(extents: np.ndarray, reads_c: np.ndarray) -> bool:
    """Whether no product reads or writes what another writes.

    Args:
        extents: (products, 4, 2): the first byte of a, b, c and out, and one past the last. reads_c: (products,).
    """
    order = np.argsort(extents[:, 3, 0], kind="stable")
    low, high = extents[order, 3, 0], extents[order, 3, 1]
    if (high[:-1] > low[1:]).any():
        return False
    for operand in range(3):
        own = extents[:, operand] if operand < 2 else extents[reads_c & (extents[:, 2] != extents[:, 3]).any(1), 2]
        last = np.searchsorted(low, own[:, 1]) - 1  # that begins before the operand's end
        if ((last >= 0) & (high[last] > own[:, 0])).any():
            return False
    return True


def runs(addresses: np.ndarray) -> list[range]:
    """`addresses`, (products, operands), cut where the distance from one product to the next changes."""
    if len(addresses) < 2:
        return [range(len(addresses))]
    steps = np.diff(addresses, axis=0)
    changes = [*(np.flatnonzero((steps[1:] != steps[:-1]).any(axis=1)) + 1), len(steps)]
    found, start = [], 0
    for change in changes:  # steps[start:change] are the same, if any are left
        if change <= start:
            continue
        found.append(range(start, int(change) + 1))
        start = int(change) + 1
    if start < len(addresses):
        found.append(range(start, len(addresses)))
    return found
