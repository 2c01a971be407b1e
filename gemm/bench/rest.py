"""What a fair sample of a time begins with: others' threads at rest, one's own awake."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAKING = 0.006
"""Seconds of calls before a sample: a scheduler may wake all threads on one core, and spreads them at its next tick,
4 ms apart on many systems."""

LONG = 0.05
"""Seconds from which a call needs no other before it to wake its threads and warm the caches."""

_TASKS = Path("/proc/self/task")


def warm(call: Callable[[], Any]) -> None:
    """Calls that do not count, once at least."""
    end = time.perf_counter() + WAKING
    call()
    while time.perf_counter() < end:
        call()


def settle(limit: float = 1.0) -> float:
    """Wait until no other thread of this process runs; the seconds it took.

    Threads of a BLAS go on spinning after a product, of OpenBLAS for 0.1 s, of Intel's OpenMP for 0.2 s: a core less
    for whoever is next. Where the system does not tell their states, a fixed 0.25 s.
    """
    start = time.perf_counter()
    if sys.platform != "linux":
        time.sleep(0.25)
        return 0.25
    idle = 0
    while idle < 2 and time.perf_counter() - start < limit:
        idle = 0 if _running() else idle + 1
        time.sleep(2e-4)
    return time.perf_counter() - start


def _running() -> bool:
    own = str(threading.get_native_id())
    for task in os.listdir(_TASKS):
        try:
            state = "" if task == own else (_TASKS / task / "stat").read_text()
        except OSError:  # it has ended
            continue
        if state.rpartition(")")[2].startswith(" R"):
            return True
    return False
