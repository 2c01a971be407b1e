"""The arguments of `gemm bench --compare` and `--compare-to`. gemm.cli.comparing carries out the comparison."""

from __future__ import annotations

import argparse
from pathlib import Path

from gemm.bench.families import FAMILIES
from gemm.bench.field import PEERS
from gemm.cli.arguments import Mistake, listed, writable

COMPARISON_OPTIONS = ("quick", "families", "peers", "html", "plots")
"""Options that only a comparison takes."""
BENCHMARK_OPTIONS = ("M", "N", "K", "shapes", "kernel", "reproducible", "validate", "iterations", "warmup")
"""Options of a benchmark that a comparison does not take."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    group = parser.add_argument_group(
        "comparison", "families of products on every backend and in other libraries, offload thresholds, a report"
    )
    group.add_argument("--compare", action="store_true",
                       help="sweep families of products; with --sizes, only squares of these sizes, unless --families "
                       "names others")  # fmt: skip
    group.add_argument("--compare-to", type=Path, metavar="FILE",
                       help="repeat the products of FILE, written by --json, and show what became slower")  # fmt: skip
    group.add_argument("--quick", action="store_true", help="fewer products, in about a minute")
    group.add_argument(
        "--families", type=listed, metavar="LIST", help=f"comma-separated: {', '.join(FAMILIES)} (default: all)"
    )
    group.add_argument("--peers", type=listed, metavar="LIST",
                       help=f"comma-separated: {', '.join(PEERS)}, or none (default: all installed ones)")  # fmt: skip
    group.add_argument("--html", type=writable, metavar="FILE", help="write a report: one page that loads nothing")
    group.add_argument("--plots", type=Path, metavar="FOLDER", help="write the charts as SVG and PNG")


def wanted(args: argparse.Namespace) -> bool:
    """Whether the user asks for a comparison. Raises Mistake for options that exclude each other."""
    asked = args.compare or args.compare_to is not None
    for name in BENCHMARK_OPTIONS if asked else COMPARISON_OPTIONS:
        if getattr(args, name):
            option = f"-{name}" if len(name) == 1 else f"--{name}"
            raise Mistake(f"{option} {'does not go with --compare' if asked else 'belongs to --compare'}")
    if asked and (args.batch, args.trans) != (1, "NN"):
        raise Mistake("--batch and --trans do not go with --compare: its families say what is multiplied")
    if args.compare_to and (args.quick or args.families or args.sizes):
        raise Mistake("--quick, --families and --sizes do not go with --compare-to: its file says what is multiplied")
    return bool(asked)
