"""Load a library in a worker process, so that a crash or a hang affects only the worker.

The worker is `python -m gemm.cli.checks.loading`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from gemm.select.worker import Child, Line, serve, timeout


def answer(request: Line) -> Iterator[Line]:
    """Try to load the library that the request names."""
    try:
        ctypes.CDLL(request["library"])
        yield {"step": "loaded", "cause": ""}
    except OSError as error:
        yield {"step": "failed", "cause": str(error)}


def load(library: str) -> str:
    """Try to load `library` in a worker process. Returns the cause of the failure, or "" if the library loads."""
    with Child(__name__) as process:
        lines = list(process.ask({"library": library}, timeout()))
    line = lines[-1]  # the last line has the outcome
    return f"its process {line['cause']}" if line["step"] == "died" else str(line["cause"])


if __name__ == "__main__":
    serve(answer)
