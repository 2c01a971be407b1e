"""A child process that takes the risk of touching drivers, which may abort, hang or compute garbage.

The child, `python -m MODULE`, calls `serve`: each request on its standard input is answered by lines of JSON. The
parent holds a `Child` and reads an answer under a time limit; a child that died or hung is replaced at the next
request, so that a bad step costs that step alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from gemm.core import threads

Line = dict[str, Any]

_MARK = "gemm-child "
_READY: Line = {"step": "ready"}
_END: Line = {"step": "end"}
STARTING = 120.0
"""Seconds that Python and the package may take to load in the child, before any driver is touched."""
_PACKAGES = Path(__file__).resolve().parents[2]


def timeout() -> float:
    """Seconds that a child may be silent, i.e. spend in one step: $GEMM_PROBE_TIMEOUT or 60. Raises ValueError."""
    return float(threads.setting("GEMM_PROBE_TIMEOUT", "a positive number of seconds", _seconds, 60.0))


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= threading.TIMEOUT_MAX:  # inf and nan are none that can be waited
        raise ValueError
    return seconds


class Child(contextlib.AbstractContextManager["Child"]):
    """A process that answers requests; started by the first, killed at the end: a driver may hang at exit, too."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def ask(self, request: Any, limit: float) -> Iterator[Line]:
        """The lines of the answer to `request`.

        A child that ends, or is silent for `limit` seconds, makes {"step": "died", "cause": ...} the last one; so does
        one that the system refuses to start, with "step": "refused".
        """
        patience = limit if self._process else max(limit, STARTING)
        try:
            process = self._process = self._process or self._start()
        except (OSError, RuntimeError) as error:  # no process, or no thread, can be had
            yield {"step": "refused", "cause": f"did not start: {error}"}
            return
        lines, finished = self._lines, False
        assert process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # it is dead: reading tells
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            while True:
                try:
                    text = lines.get(timeout=patience)
                    cause = "" if text is not None else f"ended with status {process.wait(limit)}"
                except (queue.Empty, subprocess.TimeoutExpired):
                    text, cause = None, "hung"
                if text is None:
                    break
                line, patience = json.loads(text), limit
                if line == _END:
                    finished = True
                    return
                if line != _READY:
                    yield line
        finally:
            if not finished:  # it died, or nobody wants the rest
                self.close()
        yield {"step": "died", "cause": cause}

    def close(self, patience: float = 5.0) -> None:
        """Kill the process, if there is one; the next request starts another. Its end is waited for so many seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a hung driver may hold it even now
            process.wait(patience)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        """Raises OSError, RuntimeError."""
        # Relative entries would name files of the current folder, which may be anyone's; so would "-m" (CWE-427).
        inherited = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        path = [str(_PACKAGES), *inherited]
        process = subprocess.Popen(
            [_interpreter(), "-c", _START, self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
        return process


_START = """\
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import runpy
runpy.run_module(sys.argv[1], None, "__main__")
"""
"""What "-m" does, without the current folder in the path; "-P" does so from Python 3.11 on only. sys is built in."""


def _interpreter() -> str:
    """The Python to start. Raises RuntimeError in a frozen program, whose executable would start that program again."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise RuntimeError("there is no Python interpreter beside a frozen program")
    return sys.executable


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Hand on the child's own lines, whatever drivers print among them, then None."""
    assert process.stdout is not None
    with process.stdout as output:
        for text in output:
            _, mark, line = text.partition(_MARK)
            if mark and line.endswith("\n"):  # a process that is killed may leave half a line
                lines.put(line)
    lines.put(None)


def serve(answer: Callable[[Any], Iterable[Line]]) -> None:
    """The child's side: answer each request until there are no more."""

    def say(line: Line) -> None:
        print(_MARK + json.dumps(line), flush=True)

    say(_READY)
    for text in sys.stdin:
        for line in chain(answer(json.loads(text)), [_END]):
            say(line)
