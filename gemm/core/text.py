"""Text for people: numbers, tables, lists, progress bars and curves, as wide as the terminal permits."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle, zip_longest
from typing import TextIO

WIDTH = 20
"""Characters of a progress bar."""
PAUSE = 60.0
"""Seconds between two lines about the progress of work if standard error is no terminal."""
MARKS = "●○◆◇■□▲△▼▽"
GAP = 5
"""Characters between two sizes of a plot."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 kernel, 3 kernels."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def faster(ratio: float) -> str:
    """The text "2.5 times as fast as" for the ratio 2.5; "as fast as" for a ratio below 1.02.

    The caller must invert a ratio below 1.
    """
    return "as fast as" if ratio < 1.02 else f"{number(ratio)} times as fast as"


def number(value: float | None) -> str:
    """A number as text: an integer from 1000 on, 3 significant digits below 1000, "–" for None."""
    return "–" if value is None else f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time as text, in a suitable unit; "–" for None."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * scale:
            return f"{number(value / scale)} {unit}"
    return f"{number(value / 1e-6)} µs"


def duration(left: float) -> str:
    """A time in words, for people: "about 40 seconds"."""
    if left < 5:
        return "a few seconds"
    if left < 95:
        return f"about {max(1, round(left / 10)) * 10} seconds"
    unit, length = ("minute", 60) if left < 5400 else ("hour", 3600) if left < 172800 else ("day", 86400)
    return f"about {counted(round(left / length), unit)}"


def columns(stream: TextIO | None = None) -> int:
    """The width of the output in characters: $COLUMNS if set, else the width of the terminal.

    Without $COLUMNS, files and pipes have no limit (65536). `stream` is the output, sys.stdout by default.
    """
    known = (stream or sys.stdout).isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if known else 1 << 16


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """Return `text` with each line wrapped at the width of `stream`.

    The continuation of a line is indented by four spaces more than the line. Words are not broken, because a path or an
    address that is copied from the output must be whole.
    """
    width, lines = columns(stream), []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return "\n".join(lines)


def say(*words: str) -> None:
    """Print each text as a paragraph of at most 110 columns, without breaking words.

    If a text begins with a space, all its lines but the first are indented by four spaces.
    """
    for each in words:
        indent = "    " if each.startswith(" ") else ""
        print(textwrap.fill(each, min(110, columns()), subsequent_indent=indent, break_long_words=False))


def shortened(line: str, indent: int = 0) -> str:
    """Return `line`, shortened to fit into the output, and into 110 columns, after `indent` spaces.

    " ..." replaces the end of a line that is too long.
    """
    most = min(110, columns()) - indent
    return line if len(line) <= most else f"{line[: most - 4].rstrip()} ..."


def percent(share: float | None) -> str:
    """A share as text; "–" for None."""
    return "–" if share is None else f"{share:.0%}"


def bullets(title: str, lines: Sequence[str]) -> None:
    """Print `title` and one line for each item; print nothing if there are no items."""
    if lines:
        print("\n".join([title, *(f"  {line}" for line in lines)]))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Container[int] = (), title: str = "",
    spare: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table that is no wider than the output, if possible. A heading may have several lines.

    Args:
        numbers: the columns, counted from 0, that are right-aligned.
        spare: headings of columns that are left out, the first one first, while the table is too wide. If the rest is
            still too wide, further columns follow in tables below, with the first column repeated.
    """
    lines, limit = [[cell.split("\n") for cell in line] for line in (head, *rows)], columns()
    widths = [max(len(part) for cell in column for part in cell) for column in zip(*lines, strict=True)]
    shown, left_out = list(range(len(head))), []
    for name in spare:
        if sum(widths[at] + 2 for at in shown) - 2 > limit:
            left_out.append(name.replace("\n", " "))
            shown.remove(head.index(name))
    if title:
        print(title)
    pieces = [shown[:1]]
    for at in shown[1:]:
        if len(pieces[-1]) > 1 and sum(widths[it] + 2 for it in pieces[-1]) + widths[at] > limit:
            pieces.append(shown[:1])
        pieces[-1].append(at)
    for piece in pieces:
        for cells in (*lines[:1], [["-" * width] for width in widths], *lines[1:]):
            for parts in zip_longest(*(cells[at] for at in piece), fillvalue=""):
                padded = [part.rjust(widths[at]) if at in numbers else part.ljust(widths[at])
                          for at, part in zip(piece, parts, strict=True)]  # fmt: skip
                print("  ".join(padded).rstrip())
    if left_out:
        say(f"(No room for the columns: {', '.join(left_out)}.)")


class Progress(AbstractContextManager["Progress"]):
    """A progress bar on standard error, with the remaining time; if standard error is no terminal, a line each PAUSE.

    Args:
        total: the number of steps.
        until: the value of time.monotonic() at which the work ends even if steps are left.
    """

    def __init__(self, total: int, until: float = math.inf) -> None:
        self._total, self._done, self._drawn, self._start = max(total, 1), 0, 0.0, time.monotonic()
        self._until, self._told = until, self._start

    def step(self, now: str, advance: int = 1) -> None:
        """Advance the bar by `advance` steps. `now` describes the step that follows."""
        self._done = min(self._done + advance, self._total)
        moment = time.monotonic()
        left = (moment - self._start) * (self._total / self._done - 1) if self._done else math.inf
        left = min(left, self._until - moment)
        words = f"{self._done}/{self._total}{'' if left == math.inf else f', {duration(left)} left'}: {now}"
        if not sys.stderr.isatty():
            if moment - self._told > PAUSE:
                self._told = moment
                print(words, file=sys.stderr, flush=True)
        elif self._done == self._total or moment - self._drawn > 0.1:
            self._drawn = moment
            line = f"[{'#' * (WIDTH * self._done // self._total):.<{WIDTH}}] {words}"
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the bar, for output in its place. The next step draws it again."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = 0.0

    def __exit__(self, *raised: object) -> None:
        self.clear()


def curves(points: Mapping[str, Mapping[int, float]], *, unit: str, height: int = 12) -> list[str]:
    """Plot positive values over sizes, as lines of text. The value axis is logarithmic; the sizes are evenly spaced.

    Args:
        points: {name: {size: value}}.
        unit: the unit of the values.
        height: the number of lines for the values.
    """
    values = [value for curve in points.values() for value in curve.values()]
    if not values:
        return []
    sizes = sorted({size for curve in points.values() for size in curve})
    marks = dict(zip(points, cycle(MARKS), strict=False))
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
        *textwrap.wrap("  ".join(f"{mark} {name}" for name, mark in marks.items()), min(110, columns()),
                       initial_indent=" " * 10, subsequent_indent=" " * 10),
    ]  # fmt: skip
