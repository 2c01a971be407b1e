"""Which values of a kernel's parameters to try, and in which order. Pure: who sends the times, measures."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Mapping
from itertools import product

from gemm.catalog import Kernel
from gemm.select.tuning_records import key_of

Point = dict[str, int]

SMALL = 48
"""A space of up to so many points is tried whole."""
SAMPLES = 24
"""Of a larger one so many at random, then neighbours of the best as long as that gets better, ..."""
MOST = 96
"""... up to so many in all."""
BETTER = 0.98
"""What of the best one's time a candidate must get below to be the best: two measurements of one differ by that."""
_LISTED = 8192  # points of a space that are looked at; a larger one is sampled


def points(row: Kernel, names: Mapping[str, int]) -> list[Point]:
    """The points of `row`'s space that its rules admit for `names` (the problem and the device's limits)."""
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
    except ValueError:  # not of its space
        return False


def size(row: Kernel, names: Mapping[str, int]) -> int:
    """How many points `proposals` proposes, at most."""
    return min(MOST, len(points(row, names)))


def proposals(row: Kernel, names: Mapping[str, int], seeds: Iterable[Point] = ()) -> Generator[Point, float, None]:
    """Points to try, each once: the catalog's, `seeds`, then as the size of the space suggests.

    Send the seconds of each one, infinity if it failed. The same seconds give the same points, so that a search that
    was interrupted goes on when what is known is sent again.
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
                break  # go there at once


def _neighbours(row: Kernel, point: Point) -> list[Point]:
    """One step up or down along each axis."""
    found = []
    for axis, values in row.space.items():
        at = values.index(point[axis])
        found += [{**point, axis: values[i]} for i in (at - 1, at + 1) if 0 <= i < len(values)]
    return found
