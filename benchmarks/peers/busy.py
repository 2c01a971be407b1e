"""A process that keeps one core busy on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = """
import os, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    pass
"""


class BusyProcess:
    """A context manager that starts a process. At its exit, the process is killed.

    The process keeps `core` busy inside `with running():` and is suspended (SIGSTOP) at other times.
    """

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        self.core = cores[-1]

    def __enter__(self) -> BusyProcess:
        self._process = subprocess.Popen([sys.executable, "-c", _BUSY, str(self.core)])
        time.sleep(0.5)  # until the new process is bound to its core
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(0.01)  # until the scheduler has moved both processes
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)
