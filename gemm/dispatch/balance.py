"""Where to cut a product so that two sides end together, and what measured times say of predicted ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from gemm.problem import Problem

Seconds = Callable[[int], float]
"""The time that a side takes for so many items; it grows with them, if in steps."""

MOST = 8.0
"""How many times faster or slower than predicted a side may turn out to be; beyond that the measurement is doubted."""
STEP = 8
"""Corrections are powers of 2 ** (1 / STEP), so that few cuts are made of one product: each has plans of its own."""
RECENT = 5
"""Products of which the middle one counts, or the lesser of two: the first ones load kernels and lock memory."""
SPLIT, ALONE, AGAIN = 6, 4, 256
"""Products of a kind: split at first; then computed by each side alone, to know what splitting gains, for beside the
other one a side is slower; then by whatever is soonest; and after so many all is forgotten, for the machine may have
other work by then."""
CLOSE = 4.0
"""Times the better side's prediction up to which the other one is tried alone, too."""
_KINDS = 256


def balance(total: int, grain: int, first: Seconds, second: Seconds) -> tuple[int, float]:
    """(items for the first side, a multiple of `grain`; seconds) where the later side ends soonest."""

    def end(items: int) -> float:
        return max(first(items) if items else 0.0, second(total - items) if items < total else 0.0)

    low, high = 0, total // grain  # in grains: at `low` the second side ends later, at `high` the first may
    while high - low > 1:
        middle = (low + high) // 2
        if first(middle * grain) < second(total - middle * grain):
            low = middle
        else:
            high = middle
    best = min((low, high), key=lambda at: end(at * grain))
    return best * grain, end(best * grain)


class Lately:
    """Measured ÷ predicted seconds of one kind of products in this process, of sides alone and together."""

    def __init__(self) -> None:
        self.count = 0
        self._ratios: dict[tuple[str, bool], deque[float]] = {}

    def note(self, side: str, ratio: float, *, together: bool) -> None:
        """A product, or its part, took `ratio` times the predicted seconds."""
        kept = self._ratios.setdefault((side, together), deque(maxlen=RECENT))
        kept.append(min(max(ratio, 1 / MOST), MOST))

    def scale(self, side: str, *, together: bool) -> float:
        """By what to multiply the side's predictions. One measurement says nothing: it was the first."""
        for case in (together, not together):
            if len(kept := self._ratios.get((side, case), ())) > 1:
                middle = sorted(kept)[(len(kept) - 1) // 2]
                return float(2 ** (round(STEP * math.log2(middle)) / STEP))
        return 1.0

    def alone(self, side: str) -> int:
        """How many products the side has computed alone."""
        return len(self._ratios.get((side, False), ()))

    @property
    def tries_alone(self) -> bool:
        """Whether the next product is for one side alone."""
        return SPLIT <= self.count < SPLIT + ALONE


_known: dict[object, Lately] = {}


def lately(problem: Problem) -> Lately:
    """What is known of products like `problem`: of its types and about its n and k."""
    kind = (problem.dtype, problem.inputs, problem.precision, problem.reproducible, problem.batch > problem.m,
            problem.n.bit_length(), problem.k.bit_length())  # fmt: skip
    found = _known.get(kind)
    if found is None or found.count >= AGAIN:
        if len(_known) >= _KINDS:
            _known.clear()
        found = _known[kind] = Lately()
    return found


forget = _known.clear
