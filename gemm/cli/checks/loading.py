"""The child that loads libraries, `python -m gemm.cli.checks.loading`: one that aborts or hangs takes only it along."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from gemm.select.worker import Child, Line, serve, timeout


def answer(request: Line) -> Iterator[Line]:
    """Whether the library that the request names can be loaded."""
    try:
        ctypes.CDLL(request["library"])
        yield {"step": "loaded", "cause": ""}
    except OSError as error:
        yield {"step": "failed", "cause": str(error)}


def load(library: str) -> str:
    """Why `library` cannot be loaded, as a child found it; "" if it can."""
    with Child(__name__) as child:
        lines = list(child.ask({"library": library}, timeout()))
    line = lines[-1]  # the last one says how it ended
    return f"its process {line['cause']}" if line["step"] == "died" else str(line["cause"])


if __name__ == "__main__":
    serve(answer)
