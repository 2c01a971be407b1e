"""Time contestants fairly: in turn, in an order that rotates. A sample starts when the others' threads are asleep."""

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
"""A contestant whose first call takes this many seconds or more is not called again: NumPy's products of integers take
minutes."""
_PATIENCE, _LEAST = 3.0, 3
"""All rounds of a product may take _PATIENCE seconds together, but _LEAST rounds run in any case. A few rounds suffice
for long calls, because long samples vary less."""


@dataclass
class Entry:
    """A contestant with a prepared product, and its measurements.

    Attributes:
        key: the name in the results.
        first: seconds of the first call.
        before: a loop of another library, which multiplies once, untimed, before each product of this contestant.
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
    before: Loop | None = None
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
        if self.before is None:
            return timed(partial(self.loop, times)) / times
        seconds = 0.0
        for _ in range(times):
            self.before(1)
            seconds += timed(partial(self.loop, 1))
        return seconds / times

    def calibrate(self, sample: float) -> int:
        """The number of products that take about `sample` seconds."""
        self.peer.set_threads(self.threads)
        self.loop(1)
        repeats = max(1, math.ceil(sample / max(self.timed(3), 1e-8)))
        settle()
        return repeats

    def take(self) -> tuple[float, float, float]:
        """Take a sample of `repeats` products. Return a value for each of `seconds`, `cores` and `settling`."""
        self.peer.set_threads(self.threads)
        self._warm()
        cpu, start = time.process_time(), time.perf_counter()
        seconds = self.timed(self.repeats)
        wall = time.perf_counter() - start
        return seconds, (time.process_time() - cpu) / wall, settle()

    def part(self, stack: slice, rows: np.ndarray) -> np.ndarray:
        """Some rows of some matrices of the result."""
        return (self.out[stack] if self.out.ndim == 3 else self.out)[..., rows, :]

    def _warm(self) -> None:
        """Make an untimed call. With several threads, call for WAKING seconds, so that all threads are awake.

        Do nothing if a call takes LONG seconds or more.
        """
        if self.first >= LONG:
            return
        end = time.perf_counter() + (WAKING if self.threads > 1 else 0.0)
        self.loop(1)
        while time.perf_counter() < end:
            self.loop(1)


def enter(peer: Peer, a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int, key: str = "") -> Entry:
    """Prepare a contestant and time its first product, into a copy of `out`.

    An element of the copy that still has its old value was not written.
    """
    out = out.copy()
    peer.set_threads(threads)
    entry = Entry(key or peer.name, peer, peer.prepare(a, b, out), out, threads, 0.0)
    if not peer.awake:
        entry.loop(1)
        peer.awake = True
    entry.first = entry.timed()
    settle()
    return entry


def compete(entries: Sequence[Entry], rounds: int, sample: float) -> None:
    """Sample each entry once per round, for about `sample` seconds or one call. Long calls get fewer rounds.

    Each round starts with another entry, and every second round runs in reverse order. Thus no entry always follows the
    same other entry.
    """
    for entry in entries:
        if entry.first >= _ONCE:
            entry.seconds, entry.cores, entry.settling = [entry.first], [float(entry.threads)], [0.0]
        elif entry.first < LONG:
            entry.repeats = entry.calibrate(sample)
    waiting = [entry for entry in entries if not entry.seconds]
    per_round = sum(entry.first + (max(sample, entry.first) if entry.first < LONG else 0.0) for entry in waiting)
    for turn in range(min(rounds, max(_LEAST, int(_PATIENCE / per_round))) if waiting else 0):
        at = turn % len(waiting)
        order = [*waiting[at:], *waiting[:at]]
        for entry in order if turn % 2 == 0 else reversed(order):
            with entry.around():
                for values, value in zip((entry.seconds, entry.cores, entry.settling), entry.take(), strict=True):
                    values.append(value)


def ratio(ours: Entry, theirs: Entry) -> float:
    """The peer's time ÷ our time, as the median over the rounds."""
    return statistics.median(ratios(theirs.seconds, ours.seconds))
