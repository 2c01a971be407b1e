"""Writes docs/kernels.md, the table of kernels, from gemm/catalog.py.

python docs/make_kernel_table.py            write it
python docs/make_kernel_table.py --check    exit 1 if it is not what would be written
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "kernels.md"

INTRODUCTION = """# Kernels

<!-- Made by docs/make_kernel_table.py from gemm/catalog.py: change that. -->

A kernel is a source file and a row of the catalog. `gemm(..., kernel="NAME")` runs one by name, `gemm info` shows which
can run on this machine, `gemm verify` checks them. *Needs*: features that a device must have, and rules on its limits.
*Parameters*: tiles and blocks; MR × NR, BM × BN and TM × TN are the outputs of a micro-kernel, a work-group and a
work-item. *Ordered*: `reproducible=True` gives the same bits as every other such kernel.
"""


def table(rows: tuple[Any, ...], backend: str) -> str:
    """The rows of one backend as Markdown."""
    lines = ["| kernel | dtype | needs | parameters | ordered | about |", "|---|---|---|---|---|---|"]
    for row in rows:
        if row.backend != backend:
            continue
        needs = ", ".join([*row.needs, *(f"`{rule}`" for rule in row.legal)])
        ordered = "yes" if row.ordered else "no"
        if row.ordered and row.ordered_needs:
            ordered = f"with {', '.join(row.ordered_needs)}"
        parameters = " ".join(f"{name}={value}" for name, value in row.params.items() if name.isupper())
        dtype = "any" if row.dtype == "*" else row.dtype
        name = f"[{row.name}](../{row.source})"
        lines.append(f"| {name} | {dtype} | {needs or '–'} | {parameters or '–'} | {ordered} | {row.about} |")
    return "\n".join(lines)


def document() -> str:
    """The text of docs/kernels.md. The catalog is run by its path, so that no dependency has to be installed."""
    catalog = runpy.run_path(str(ROOT / "gemm" / "catalog.py"))
    parts = [INTRODUCTION]
    parts += [f"## {backend}\n\n{table(catalog['KERNELS'], backend)}\n" for backend in catalog["BACKENDS"]]
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    args = parser.parse_args(argv)
    text = document()
    if not args.check:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print("docs/kernels.md is out of date: run python docs/make_kernel_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
