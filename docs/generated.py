"""Functions shared by the scripts in this folder that write documents and draw charts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None, about: str | None, target: Path, document: Callable[[], str]) -> int:
    """Write document() to `target`, or with --check compare the two. Returns the exit status."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    args = parser.parse_args(argv)
    text = document()
    if not args.check:
        target.write_text(text, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        print(f"docs/{target.name} is out of date: run python docs/{Path(sys.argv[0]).name}", file=sys.stderr)
        return 1
    return 0


def between(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with `text` between the two lines `marks`."""
    head, _, rest = page.partition(marks[0])
    _, _, tail = rest.partition(marks[1])
    return f"{head}{marks[0]}\n{text}\n{marks[1]}{tail}"


def recorded(document: dict[str, Any]) -> str:
    """The date and the commit of a recorded run."""
    commit = (document["commit"] or "an unknown commit").replace("-dirty", " with changes")
    return f"{document['date'][:10]}, commit {commit[:12]}{commit[40:]}"


def pyplot() -> Any:
    """matplotlib.pyplot, configured to give the same file for the same results. Only charts need matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "gemm"
    mpl.rcParams["svg.fonttype"] = "none"  # keep text as text, which halves the size of the file
    from matplotlib import pyplot as plt

    return plt
