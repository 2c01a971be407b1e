"""`gemm doctor`: what is wrong with this installation, and the remedy of each thing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gemm.cli import checks
from gemm.cli.arguments import save_json, writable

HELP = "find what is wrong with drivers, permissions, caches, the engine and the environment, and how to put it right"
EXAMPLES = """examples:
  gemm doctor            exit status 0: nothing is wrong; 1: something is
  gemm doctor --json     for programs; --json FILE writes it there
"""
MARKS = {"error": "x", "warning": "!", "note": "-"}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", nargs="?", type=writable, const=Path("-"), metavar="FILE",
                        help="JSON instead, printed or written to FILE")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Examine and print."""
    report = checks.examine()
    if args.json is None:
        for check, findings in report.found.items():
            print(f"  + {check}" if not findings else f"{check}")
            for finding in findings:
                print(f"  {MARKS[finding.severity]} {finding.what}\n      {finding.why}")
                if finding.remedy:
                    print(f"      remedy: {finding.remedy}")
                print(f"      {finding.document()['docs']}")
        print({0: "Nothing is wrong", 1: "One thing is wrong"}.get(report.wrong, f"{report.wrong} things are wrong"))
    elif args.json == Path("-"):
        print(json.dumps(report.document(), indent=1, ensure_ascii=False))
    else:
        save_json(args.json, report.document())
    return int(report.wrong > 0)
