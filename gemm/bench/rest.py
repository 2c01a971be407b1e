"""Fair conditions before a sample: other libraries' threads have gone to sleep, one's own threads are awake."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAKING = 0.006
"""Seconds of untimed calls before a sample. A scheduler may wake all threads on one core; it distributes them at its
next tick, after 4 ms on many systems."""

LONG = 0.05
"""Calls of this many seconds or more need no warm-up: they are long compared with waking threads and filling caches."""

_TASKS = Path("/proc/self/task")


def warm(call: Callable[[], Any]) -> None:
    """Make untimed calls for WAKING seconds, at least one."""
    end = time.perf_counter() + WAKING
    call()
    while time.perf_counter() < end:
        call()


def settle(limit: float = 1.0) -> float:
    """Wait until no other thread of this process runs. Returns the seconds that passed.

    Threads of a BLAS keep spinning after a product, OpenBLAS's for 0.1 s, those of Intel's OpenMP for 0.2 s. They
    would take a core away from the next contestant. If the system does not report thread states, wait 0.25 s.
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
        except OSError:  # the thread has ended
            continue
        if state.rpartition(")")[2].startswith(" R"):
            return True
    return False
