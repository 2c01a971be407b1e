"""`gemm info`: devices, drivers, instruction sets, caches and versions; what is missing and how to get it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gemm.cli.arguments import save_json, writable
from gemm.extras import libgemm
from gemm.frontend import report

HELP = "show devices, kernels, caches and versions, what is missing and how to get it"
EXAMPLES = """examples:
  gemm info            for people, and for reports of problems
  gemm info --json     for programs; --json FILE writes it there
  cc program.c $(gemm info --cc)     a program in C with the package's libgemm
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", nargs="?", type=writable, const=Path("-"), metavar="FILE",
                        help="JSON instead, printed or written to FILE")  # fmt: skip
    parser.add_argument("--cc", action="store_true", help="what a C compiler takes to find libgemm, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    if args.cc:
        try:
            print(libgemm.compiler_words())
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if args.json is None:
        for section in report.sections():
            print(section, flush=True)  # one by one: a driver that ends the process does not take the rest along
    elif args.json == Path("-"):
        print(json.dumps(report.facts(), indent=1, ensure_ascii=False))
    else:
        save_json(args.json, report.facts())
    return 0
