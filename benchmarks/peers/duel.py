"""Fair timing of contestants in one process: interleaved, rotated, each on threads and caches that it finds at rest."""

from __future__ import annotations

import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .base import Call, Peer

_TASKS = Path("/proc/self/task")
_LONG = 0.05
"""Seconds from which a call needs no other before it to wake its threads and warm the caches."""
_WAKING = 0.006
"""Seconds of calls before a sample on several threads: a scheduler may wake them all on one core, and spreads them at
its next tick, 4 ms apart on many systems."""
_EXACT_WORK = 1 << 25
"""Multiply-adds of the reference at most; longdouble has no BLAS."""


@dataclass
class Entry:
    """A contestant with its product prepared, and what it took.

    Attributes:
        key: of the results. around: entered for each sample.
        seconds: a product, a sample each. cores: CPU time ÷ wall time of each sample, whatever thread spent it.
        settling: seconds that the process's threads kept running after each sample.
    """

    key: str
    peer: Peer
    call: Call
    out: np.ndarray
    threads: int
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    repeats: int = 1
    seconds: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    settling: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def enter(peer: Peer, a: np.ndarray, b: np.ndarray, threads: int, key: str = "") -> Entry:
    """A contestant that has multiplied once, into NaNs, which would show what was not written."""
    out = np.full((*a.shape[:-1], b.shape[-1]), np.nan, a.dtype)
    peer.use(threads)
    entry = Entry(key or peer.name, peer, peer.prepare(a, b, out), out, threads)
    entry.call()
    return entry


def compete(entries: Sequence[Entry], rounds: int, sample: float) -> None:
    """Sample each entry once a round, for about `sample` seconds or one call.

    Each round starts with another one, every second runs backwards: none always follows the same rival.
    """
    for entry in entries:
        entry.peer.use(entry.threads)
        settle()
        entry.call()
        entry.repeats = max(1, math.ceil(sample / max(_timed(entry.call, 3), 1e-8)))
    for turn in range(rounds):
        at = turn % len(entries)
        order = [*entries[at:], *entries[:at]]
        for entry in order if turn % 2 == 0 else reversed(order):
            entry.peer.use(entry.threads)
            with entry.around():
                _warm(entry)
                cpu, start = time.process_time(), time.perf_counter()
                entry.seconds.append(_timed(entry.call, entry.repeats))
                wall = time.perf_counter() - start
                entry.cores.append((time.process_time() - cpu) / wall)
            entry.settling.append(settle())


def _warm(entry: Entry) -> None:
    """Calls that do not count."""
    if entry.seconds and entry.seconds[-1] >= _LONG:
        return
    end = time.perf_counter() + (_WAKING if entry.threads > 1 else 0.0)
    entry.call()
    while time.perf_counter() < end:
        entry.call()


def ratios(ours: Entry, theirs: Entry) -> list[float]:
    """How many times as fast as the peer we were, round by round: what disturbs a round disturbs both."""
    return [their / our for our, their in zip(ours.seconds, theirs.seconds, strict=True)]


def spread(values: Sequence[float]) -> float:
    """The interquartile range over the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def call_cost(call: Call, sample: float = 2e-3) -> float:
    """Seconds of a call that does next to nothing: the median of samples."""
    repeats = max(1, math.ceil(sample / max(_timed(call, 100), 1e-8)))
    return statistics.median(_timed(call, repeats) for _ in range(9))


def _timed(call: Call, times: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


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


def worst_errors(a: np.ndarray, b: np.ndarray, entries: Sequence[Entry]) -> dict[str, float]:
    """{key: the largest error of the rows compared, in units of the contract's bound (k + 2)·u·|a|·|b|; inf for NaN}.

    The reference is longdouble's product of some rows of some matrices; where that is no wider than the results it
    errs as they do, and twice the bound is allowed.
    """
    m, k = a.shape[-2:]
    cost = k * b.shape[-1]
    stack = slice(None) if a.ndim == 2 else slice(0, None, -(-len(a) * m * cost // _EXACT_WORK))
    rows = np.unique(np.linspace(0, m - 1, max(1, min(m, _EXACT_WORK // cost))).astype(int))
    if a.ndim == 3:
        a, b = a[stack], b[stack]
    x = a[..., rows, :]
    exact = np.matmul(x.astype(np.longdouble), b.astype(np.longdouble))
    slack = 2 if np.finfo(np.longdouble).eps >= np.finfo(a.dtype).eps else 1
    unit = slack * (k + 2) * np.finfo(a.dtype).eps / 2
    bound = unit * np.matmul(np.abs(x).astype(np.longdouble), np.abs(b).astype(np.longdouble))
    found = {}
    for entry in entries:
        result = (entry.out if a.ndim == 2 else entry.out[stack])[..., rows, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(result == exact, 0, np.abs(result - exact) / bound)
        found[entry.key] = math.inf if np.isnan(share).any() else float(share.max())
    return found
