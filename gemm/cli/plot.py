"""Curves in a terminal, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MARKS = "●○◆◇■□▲△▼▽"
HEIGHT = 12
_GAP = 6


def curves(points: Mapping[str, Mapping[int, float]], *, unit: str, height: int = HEIGHT) -> list[str]:
    """Lines of text that plot positive values over sizes. The value axis is logarithmic; the sizes are evenly spaced.

    Args:
        points: {name: {size: value}}.
        unit: the unit of the values.
    """
    sizes = sorted({size for curve in points.values() for size in curve})
    values = [value for curve in points.values() for value in curve.values()]
    if not values:
        return []
    low, high = math.log(min(values)), math.log(max(values))
    step = max(high - low, 1e-9) / (height - 1)
    grid = [[" "] * (_GAP * len(sizes)) for _ in range(height)]
    for mark, curve in zip(_marks(points), points.values(), strict=True):
        for size, value in curve.items():
            line = grid[height - 1 - round((math.log(value) - low) / step)]
            at = _GAP * sizes.index(size) + _GAP // 2
            while at < len(line) - 1 and line[at] != " ":  # another mark has this place: move one to the right
                at += 1
            line[at] = mark
    labels = {0: high, height // 2: high - step * (height // 2), height - 1: low}
    lines = [f"{f'{math.exp(labels[at]):.3g}' if at in labels else '':>8} │{''.join(line)}".rstrip()
             for at, line in enumerate(grid)]  # fmt: skip
    lines.append(f"{unit:>8} └{'─' * _GAP * len(sizes)}")
    lines.append(" " * 10 + "".join(f"{size:^{_GAP}}" for size in sizes).rstrip())
    lines.append(" " * 10 + "  ".join(f"{mark} {name}" for mark, name in zip(_marks(points), points, strict=True)))
    return lines


def _marks(points: Mapping[str, object]) -> Sequence[str]:
    return [MARKS[at % len(MARKS)] for at in range(len(points))]
