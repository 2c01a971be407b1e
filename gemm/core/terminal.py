"""The width of the terminal, and lines that fit it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO


def columns(stream: TextIO | None = None) -> int:
    """The width of the output: that of the terminal or $COLUMNS; no limit for files and pipes.

    stream: sys.stdout by default.
    """
    known = (stream or sys.stdout).isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if known else 1 << 16


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """`text`, each line of which is wrapped at the width of `stream`. Words are not broken, because a path or an
    address that is copied from the output must be whole. Further lines are indented by four more spaces.
    """
    width, lines = columns(stream), []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return "\n".join(lines)
