"""Fair timing of contestants in one process: interleaved, in rotating order, each after other threads have idled."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gemm.bench.contest import LONG, WAKING, settle, timed
from gemm.bench.peers import Loop, Peer
from gemm.bench.verdicts import ratios

_ONCE = 0.5
"""A contestant whose first call takes this many seconds or more is not called again: NumPy's integers take minutes."""
_PATIENCE, _LEAST = 3.0, 3
"""Seconds that all rounds of a product may take together, and the number of rounds that run in any case. Long samples
vary less."""


@dataclass
class Entry:
    """A contestant with a prepared product, and its measurements.

    Attributes:
        key: the name in the results.
        first: seconds of the first call.
        around: a context manager that is entered for each sample.
        seconds: seconds per product, one value for each sample.
        cores: CPU time ÷ wall time of each sample, over all threads of the process.
        settling: seconds that the process's threads kept running after each sample.
    """

    key: str
    peer: Peer
    loop: Loop
    out: np.ndarray
    threads: int
    first: float
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    repeats: int = 1
    seconds: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    settling: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def timed(self, times: int = 1) -> float:
        """Seconds per product, over `times` products."""
        return timed(partial(self.loop, times)) / times


def enter(peer: Peer, a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int, key: str = "") -> Entry:
    """A contestant after its first product, into a copy of `out`. Values of `out` that remain were not written."""
    out = out.copy()
    peer.set_threads(threads)
    entry = Entry(key or peer.name, peer, peer.prepare(a, b, out), out, threads, 0.0)
    if not peer.awake:
        entry.loop(1)
        peer.awake = True
    entry.first = entry.timed()
    return entry


def compete(entries: Sequence[Entry], rounds: int, sample: float) -> None:
    """Sample each entry once per round, for about `sample` seconds or one call. Long calls get fewer rounds.

    Each round starts with another entry, and every second round runs in reverse order. Thus no entry always follows the
    same other entry.
    """
    for entry in entries:
        entry.peer.set_threads(entry.threads)
        settle()
        if entry.first >= _ONCE:
            entry.seconds, entry.cores, entry.settling = [entry.first], [float(entry.threads)], [0.0]
        elif entry.first < LONG:
            entry.loop(1)
            entry.repeats = max(1, math.ceil(sample / max(entry.timed(3), 1e-8)))
    waiting = [entry for entry in entries if not entry.seconds]
    per_round = sum(entry.first + (max(sample, entry.first) if entry.first < LONG else 0.0) for entry in waiting)
    for turn in range(min(rounds, max(_LEAST, int(_PATIENCE / per_round))) if waiting else 0):
        at = turn % len(waiting)
        order = [*waiting[at:], *waiting[:at]]
        for entry in order if turn % 2 == 0 else reversed(order):
            entry.peer.set_threads(entry.threads)
            with entry.around():
                _warm(entry)
                cpu, start = time.process_time(), time.perf_counter()
                entry.seconds.append(entry.timed(entry.repeats))
                wall = time.perf_counter() - start
                entry.cores.append((time.process_time() - cpu) / wall)
            entry.settling.append(settle())


def _warm(entry: Entry) -> None:
    """Make untimed calls."""
    if entry.first >= LONG:
        return
    end = time.perf_counter() + (WAKING if entry.threads > 1 else 0.0)
    entry.loop(1)
    while time.perf_counter() < end:
        entry.loop(1)


def ratio(ours: Entry, theirs: Entry) -> float:
    """The peer's time ÷ our time, as the median over the rounds."""
    return statistics.median(ratios(theirs.seconds, ours.seconds))
