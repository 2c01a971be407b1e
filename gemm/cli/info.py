"""`gemm info`: the devices, drivers, instruction sets, caches and versions of this machine, and what is missing.

With --check the command runs CHECKS instead, which look for faults, and prints their findings and remedies.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gemm.cli.arguments import Mistake, save_json, writable
from gemm.cli.checks import Finding, drivers, installation
from gemm.core.text import wrapped
from gemm.frontend import inventory

HELP = "show devices, kernels, caches and versions, what is missing and how to get it; --check: find faults"
EXAMPLES = """examples:
  gemm info            for people; --all for reports of problems
  gemm info --json     for programs; --json FILE writes it there
  gemm info --check    find faults of this installation, with remedies
  cc program.c $(gemm info --cc)     a program in C with the package's libgemm

The exit status of --check is 0 if nothing is wrong, and 1 otherwise.
"""
CHECKS: Mapping[str, Callable[[], Iterator[Finding]]] = {
    "variables": installation.variables,
    "versions": installation.versions,
    "cache": installation.cache,
    "pyopencl's caches": installation.caches_of_others,
    "engine": installation.engine,
    "threads": installation.threads,
    "permissions": drivers.permissions,
    "Android": drivers.android,
    "OpenCL drivers": drivers.installed,
    "devices": drivers.devices,
    "verification": drivers.verification,
}
"""The checks, in the order in which they run."""
MARKS = {"error": "x", "warning": "!", "note": "i"}
"""{severity of a finding: the mark in front of it}."""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gemm info`."""
    parser.add_argument("--json", nargs="?", type=writable, const=Path("-"), metavar="FILE",
                        help="print JSON instead, or write it to FILE")  # fmt: skip
    parser.add_argument("--check", action="store_true", help="find faults and their remedies; with --json as JSON")
    parser.add_argument("--all", action="store_true",
                        help="list all kernels, with the devices that run them or why none does")  # fmt: skip
    parser.add_argument("--cc", action="store_true", help="only print the options that a C compiler needs for libgemm")


def run(args: argparse.Namespace) -> int:
    """Print what the arguments ask for, and return the exit status."""
    if args.cc and args.check:
        raise Mistake("--cc and --check exclude each other")
    if args.check:
        return _check(args.json)
    if args.cc:
        try:
            print(inventory.compiler_words())
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if args.json is None:
        inventory.show(every=args.all)
    else:
        _give(args.json, inventory.facts())
    return 0


def _give(to: Path, document: Mapping[str, Any]) -> None:
    """Print the document as JSON if `to` is "-", else write it to the file `to`."""
    if to == Path("-"):
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        save_json(to, document)


def _check(to: Path | None) -> int:
    """Run all checks and print their findings, or give them as JSON. Returns 1 if something is wrong, else 0.

    This takes seconds, because drivers are loaded in worker processes. Notes do not count as wrong.
    """
    found = {name: list(check()) for name, check in CHECKS.items()}
    wrong = sum(finding.severity != "note" for findings in found.values() for finding in findings)
    if to is not None:
        checks = {name: [finding.document() for finding in findings] for name, findings in found.items()}
        _give(to, {"wrong": wrong, "checks": checks})
        return int(wrong > 0)
    for name, findings in found.items():
        print(name if findings else f"  + {name}")
        for finding in findings:
            remedy = [f"remedy: {finding.remedy}"] if finding.remedy else []
            lines = [finding.why, *remedy, finding.document()["docs"]]
            print(wrapped("\n      ".join([f"  {MARKS[finding.severity]} {finding.what}", *lines])))
    print({0: "Nothing is wrong", 1: "One thing is wrong"}.get(wrong, f"{wrong} things are wrong"))
    return int(wrong > 0)
