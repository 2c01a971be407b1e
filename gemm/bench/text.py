"""Text for people: numbers, tables, lists, progress bars and curves. Tables and bars use rich if it is installed."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

WIDTH = 30
"""Characters of a progress bar without rich."""
MARKS = "●○◆◇■□▲△▼▽"
GAP = 6
"""Characters between two sizes of a plot."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 kernel, 3 kernels."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def faster(ratio: float) -> str:
    """A ratio as text: "2.5 times as fast as"; "as fast as" below 1.02. The caller inverts ratios below 1."""
    return "as fast as" if ratio < 1.02 else f"{ratio:.3g} times as fast as"


def number(value: float | None) -> str:
    """A rate as text, with 3 or 4 digits; "–" for None."""
    return "–" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time as text, in a suitable unit; "–" for None."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def bullets(title: str, lines: Sequence[str]) -> None:
    """Print `title` and one line for each item; print nothing if there are no items."""
    if lines:
        print("\n".join([title, *(f"  {line}" for line in lines)]))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Container[int] = (), title: str = "") -> None:
    """Print a table. The columns in `numbers`, counted from 0, are right-aligned."""
    lines = list(rows)
    if sys.stdout.isatty() and _print_rich(head, lines, numbers, title):
        return
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    if title:
        print(title)
    for line in (head, ["-" * width for width in widths], *lines):
        cells = (f"{cell:{'>' if at in numbers else '<'}{widths[at]}}" for at, cell in enumerate(line))
        print("  ".join(cells).rstrip())


def _print_rich(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[int], title: str) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    shown = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for at, name in enumerate(head):
        shown.add_column(name, justify="right" if at in numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    Console(highlight=False, markup=False).print(shown)
    return True


class Progress(AbstractContextManager["Progress"]):
    """A progress bar on standard error. Nothing is drawn if standard error is not a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._drawn = max(total, 1), 0, 0.0
        self._shows = sys.stderr.isatty()
        self._rich = _rich_bar(self._total) if self._shows else None

    def __enter__(self) -> Progress:
        if self._rich:
            self._rich.start()
        return self

    def step(self, now: str, advance: int = 1) -> None:
        """Advance the bar by `advance` steps. `now` describes the step that follows."""
        self._done += advance
        if self._rich:
            self._rich.update(0, completed=self._done, description=now)
        elif self._shows and (self._done >= self._total or time.monotonic() - self._drawn > 0.05):
            self._drawn = time.monotonic()
            bar = "#" * (WIDTH * min(self._done, self._total) // self._total)
            print(f"\r\x1b[K[{bar:.<{WIDTH}}] {self._done}/{self._total} {now}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *raised: object) -> None:
        if self._rich:
            self._rich.stop()
        elif self._shows:
            print("\r\x1b[K", end="", file=sys.stderr)


def _rich_bar(total: int) -> Any:
    """A progress bar of rich, with one task whose id is 0; None if rich is not installed."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    bar = progress.Progress(
        progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    bar.add_task("", total=total)
    return bar


def curves(points: Mapping[str, Mapping[int, float]], *, unit: str, height: int = 12) -> list[str]:
    """Lines of text that plot positive values over sizes. The value axis is logarithmic; the sizes are evenly spaced.

    Args:
        points: {name: {size: value}}.
        unit: the unit of the values.
    """
    values = [value for curve in points.values() for value in curve.values()]
    if not values:
        return []
    sizes = sorted({size for curve in points.values() for size in curve})
    marks = dict(zip(points, itertools.cycle(MARKS), strict=False))
    low, high = math.log(min(values)), math.log(max(values))
    step = max(high - low, 1e-9) / (height - 1)
    grid = [[" "] * (GAP * len(sizes)) for _ in range(height)]
    for name, curve in points.items():
        for size, value in curve.items():
            line = grid[height - 1 - round((math.log(value) - low) / step)]
            at = GAP * sizes.index(size) + GAP // 2
            while at < len(line) - 1 and line[at] != " ":  # another mark has this place: move one to the right
                at += 1
            line[at] = marks[name]
    labels = {at: f"{math.exp(high - step * at):.3g}" for at in (0, height // 2, height - 1)}
    return [
        *(f"{labels.get(at, ''):>8} │{''.join(line)}".rstrip() for at, line in enumerate(grid)),
        f"{unit:>8} └{'─' * GAP * len(sizes)}",
        " " * 10 + "".join(f"{size:^{GAP}}" for size in sizes).rstrip(),
        " " * 10 + "  ".join(f"{mark} {name}" for name, mark in marks.items()),
    ]
