"""Tables, progress bars and lists: formatted by rich on a terminal if rich is installed, else as plain text."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Container[int] = (), title: str = "") -> None:
    """Print a table. The columns in `numbers`, counted from 0, are right-aligned."""
    lines = [tuple(row) for row in rows]
    aligned = [column in numbers for column in range(len(head))]
    if sys.stdout.isatty() and _print_rich(head, lines, aligned, title):
        return
    widths = [max(len(row[i]) for row in (head, *lines)) for i in range(len(head))]
    if title:
        print(title)
    for line in (head, ["-" * width for width in widths], *lines):
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, aligned, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _print_rich(head: Sequence[str], rows: list[tuple[str, ...]], aligned: list[bool], title: str) -> bool:
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    shown = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for name, to_right in zip(head, aligned, strict=True):
        shown.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(cell.replace("[", r"\[") for cell in row))
    Console(highlight=False).print(shown)
    return True


class Progress(AbstractContextManager["Progress"]):
    """A progress bar on standard error. Nothing is drawn if standard error is not a terminal."""

    WIDTH = 30

    def __init__(self, total: int) -> None:
        self._total, self._done = max(total, 1), 0
        self._rich: Any = None
        self._shows = sys.stderr.isatty()
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        if self._shows:
            try:
                from rich import progress
                from rich.console import Console
            except ImportError:
                return self
            self._rich = progress.Progress(
                progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
                progress.TextColumn("{task.description}"), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._rich.start()
            self._rich.add_task("", total=self._total)
        return self

    def step(self, now: str, advance: int = 1) -> None:
        """Advance the bar by `advance` steps. `now` describes the step that follows."""
        self._done += advance
        if self._rich is not None:
            self._rich.update(0, completed=self._done, description=now.replace("[", r"\["))
        elif self._shows and (self._done >= self._total or time.monotonic() - self._drawn > 0.05):
            self._drawn = time.monotonic()
            bar = "#" * (self.WIDTH * min(self._done, self._total) // self._total)
            sys.stderr.write(f"\r\x1b[K[{bar:.<{self.WIDTH}}] {self._done}/{self._total} {now}")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()
        elif self._shows:
            sys.stderr.write("\r\x1b[K")


def bullets(title: str, lines: Iterable[str]) -> None:
    """Print `title` and one line for each item; print nothing if there are no items."""
    lines = list(lines)
    if lines:
        print("\n".join([title, *(f"  {line}" for line in lines)]))
