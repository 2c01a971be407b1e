"""The command line, `python -m gemm` or `gemm`: info, bench, tune, verify, explain.

Each sub-command is a module in this package. It has HELP, EXAMPLES, `add(parser)`, which declares its arguments, and
`run(args)`, which returns the exit status. Exit statuses:

    0      success
    1      a check failed
    2      wrong usage, or something is not available on this machine
    130    interrupted
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gemm.cli import bench, explain, info, tune, verify
from gemm.cli.arguments import Mistake, check_environment
from gemm.core import VERSION
from gemm.core.errors import BackendUnavailable, unknown
from gemm.core.text import wrapped
from gemm.select import worker

COMMANDS = {"info": info, "bench": bench, "tune": tune, "verify": verify, "explain": explain}
REPLACED = {"doctor": "info --check"}
"""{a command of earlier versions: what replaces it}."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples. A description, which is one line, is wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kind = argparse.RawDescriptionHelpFormatter if "\n" in text else argparse.HelpFormatter
        return kind._fill_text(self, text, width, indent)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line. For a misspelt option, the line suggests similar options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does, but report unknown arguments here.

        The parser of a sub-command thus reports them itself, and its message names the help of the sub-command.
        """
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            word, options = extra[0].partition("=")[0], self._option_string_actions
            if word.startswith("-"):
                self.error(unknown("option", word, options))
            example = ", such as -M 1024 -N 1024 -K 1024" if "-M" in options else ""
            self.error(f"argument {word!r} belongs to no option: this command takes options only{example}")
        return found, extra

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """The complete parser, with all sub-commands."""
    top = Parser(prog="gemm", description="Multiply matrices on the CPU and the GPUs of this machine.")
    top.add_argument("--version", action="version", version=f"gemm {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.HELP, epilog=module.EXAMPLES,
            formatter_class=HelpFormatter,
        )  # fmt: skip
        module.add(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the arguments of the process. Returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # no error on a terminal whose encoding lacks × or µ
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words and words[0] in REPLACED:
            raise Mistake(f"there is no command {words[0]!r} any more: use gemm {REPLACED[words[0]]}")
        if words and words[0] not in COMMANDS and not words[0].startswith("-"):
            raise Mistake(f"{unknown('command', words[0], COMMANDS)} (see gemm --help)")
        args = parser().parse_args(words)
        if not (args.command == "info" and args.check):  # --check itself reports wrong variables, in more detail
            check_environment()
        with worker.waiting():  # commands wait until background tasks, such as verifications, have finished
            status: int = args.run(args)
        sys.stdout.flush()
        return status
    except (Mistake, BackendUnavailable) as error:
        print(wrapped(f"gemm: {error}", sys.stderr), file=sys.stderr)
        return 2
    except MemoryError as error:
        print(wrapped(f"gemm: out of memory: {error}", sys.stderr), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gemm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the pipe's reader (head, ...) has closed it; Python's flush at exit must not fail as well
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
