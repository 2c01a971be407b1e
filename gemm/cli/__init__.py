"""The command line, `python -m gemm` or `gemm`: info, doctor, bench, tune, verify, explain.

A sub-command is a module here with HELP, EXAMPLES, `add(parser)`, which declares its arguments, and `run(args)`, which
returns the exit status. Statuses: 0; 1 when a check failed; 2 for a mistake of the user or something that is not here;
130 when interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from gemm.cli import bench, doctor, explain, info, tune, verify
from gemm.cli.arguments import Mistake, check_environment
from gemm.core.errors import BackendUnavailable
from gemm.core.version import VERSION
from gemm.select import background

COMMANDS = {"info": info, "doctor": doctor, "bench": bench, "tune": tune, "verify": verify, "explain": explain}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = Parser(prog="gemm", description="Matrix products on whatever this machine has.")
    top.add_argument("--version", action="version", version=f"gemm {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.HELP, epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        module.add(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × and µ must not end a benchmark
    try:
        args = parser().parse_args(argv)
        if args.command != "doctor":  # which says more of that
            check_environment()
        with background.waiting():  # who asks here wants the last word
            status: int = args.run(args)
        sys.stdout.flush()
        return status
    except (Mistake, BackendUnavailable) as error:
        print(f"gemm: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"gemm: out of memory: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gemm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough; the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
