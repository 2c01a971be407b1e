"""Code that is shared by the scripts that compile OpenCL kernels for absent GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Formatter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemm.catalog import Kernel

PROGRAMS = ("", "PIECES", "SPLIT")
"""The programs that the host builds of a kernel, by the macro that is defined; "" is the plain program."""
BITS = {"float32": 32, "float64": 64, "float16": 16, "bfloat16": 16, "int32": 8}
"""Bits of an operand's element, by the type of the result. Kernels for int32 multiply int8 operands."""


class Failed(Exception):
    """A program is missing or failed. The text is shown to the user."""


def programs(row: Kernel) -> list[str]:
    """Those of PROGRAMS that the host builds of a kernel."""
    return [program for program in PROGRAMS if program != "SPLIT" or "split" in row.params]


def defines(row: Kernel, program: str) -> list[str]:
    """The options -D that the host gives to the compiler, for one of PROGRAMS, each without its "-D"."""
    values = {name: value for name, value in row.params.items() if name.isupper()}
    values |= {"PRECISION": BITS[row.dtype], "ORDERED": 0, "FUSED": 1} | ({program: 1} if program else {})
    values |= {"BFLOAT16": 1} if row.dtype == "bfloat16" else {}
    return [f"{name}={value}" for name, value in values.items()]


def measured(
    jobs: Iterable[tuple[Kernel, str]], measure: Callable[[Kernel, str], dict[str, Any]], columns: str
) -> list[dict[str, Any]]:
    """Measure all (kernel, device), some at the same time. Print and return the rows of the document. Raises Failed.

    columns: the printed columns as a format of a row, such as "{kernel:30}{device:9}{loop:6}". The names are the head.
    """
    fields = [(name, width.split(".")[0]) for _, name, width, _ in Formatter().parse(columns) if name and width]
    print("".join(f"{name:{'<' if at < 2 else '>'}{width}}" for at, (name, width) in enumerate(fields)))
    rows = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(lambda job: measure(*job), list(jobs)):
            rows.append(row)
            print(columns.format(**row), flush=True)
    return rows
