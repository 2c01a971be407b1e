"""The search strategy of the tuner: which parameter values to try, and in which order.

This module measures nothing. The caller sends measured times to the generator `proposals`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Mapping
from itertools import product

from gemm.catalog import Kernel
from gemm.select.tuning_records import key_of

Point = dict[str, int]

SMALL = 48
"""A space of at most this many points is searched completely."""
SAMPLES = 24
"""Number of random points that the search tries in a larger space. After them it tries neighbours of the best point, as
long as a neighbour is better."""
MOST = 96
"""Greatest number of points that the search tries in a larger space."""
BETTER = 0.98
"""A candidate replaces the best one only if candidate's time ÷ best time is less than this. Two measurements of the
same candidate can differ by as much."""
_LISTED = 8192  # greatest number of points that are checked against the rules; larger spaces are sampled


def points(row: Kernel, names: Mapping[str, int]) -> list[Point]:
    """Return the points of `row`'s space that its rules admit.

    Args:
        names: values of the names in the rules: the sizes of the problem and the limits of the device.
    """
    axes = list(row.space)
    if math.prod(len(values) for values in row.space.values()) <= _LISTED:
        combinations: Iterable[tuple[int, ...]] = product(*row.space.values())
    else:
        dice = random.Random(row.name)
        combinations = (tuple(dice.choice(row.space[axis]) for axis in axes) for _ in range(_LISTED))
    found = [dict(zip(axes, values, strict=True)) for values in combinations]
    return [point for point in found if _legal(row, point, names)]


def _legal(row: Kernel, point: Point, names: Mapping[str, int]) -> bool:
    try:
        return row.tuned(point).illegal(names) is None
    except ValueError:  # the point is not in the space
        return False


def size(row: Kernel, names: Mapping[str, int]) -> int:
    """Return the greatest number of points that `proposals` yields."""
    return min(MOST, len(points(row, names)))


def proposals(row: Kernel, names: Mapping[str, int], seeds: Iterable[Point] = ()) -> Generator[Point, float, None]:
    """Yield points to try, each once: the catalog's point, `seeds`, then points of the space (SMALL, SAMPLES, MOST).

    The caller sends the seconds of each point, or infinity if the point failed. The same seconds lead to the same
    points. To continue an interrupted search, start again and send the known seconds.
    """
    legal = points(row, names)
    default = {axis: row.params[axis] for axis in row.space}
    small = len(legal) <= SMALL
    listed = legal if small else random.Random(row.name).sample(legal, SAMPLES)
    seen: dict[str, tuple[float, Point]] = {}
    for point in (default, *seeds, *listed):
        if key_of(point) not in seen and _legal(row, point, names):
            seen[key_of(point)] = (yield point), point
    best, centre = math.inf, None
    while not small and seen and len(seen) < MOST:
        reached, point = min(seen.values(), key=lambda tried: tried[0])
        if centre == point or not reached < math.inf:
            return
        best, centre = reached, point
        around = [near for near in _neighbours(row, centre) if key_of(near) not in seen and _legal(row, near, names)]
        for near in around[: MOST - len(seen)]:
            seen[key_of(near)] = (yield near), near
            if seen[key_of(near)][0] < best:
                break  # continue from this better point


def _neighbours(row: Kernel, point: Point) -> list[Point]:
    """Return the points that are one step up or down from `point` along one axis."""
    found = []
    for axis, values in row.space.items():
        at = values.index(point[axis])
        found += [{**point, axis: values[i]} for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return found
