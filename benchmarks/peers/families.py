"""What is multiplied, and the rows of results that come of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import duel
from .base import Peer
from .busy import BusyProcess
from .duel import Entry
from .ours import Ours, PlainCall

Row = dict[str, Any]
Shape = tuple[int, int, int, int]
"""m, n, k, batch (0: a single product)."""

_SQUARES = (8, 16, 24, 32, 33, 48, 64, 65, 96, 100, 127, 128, 192, 256, 384, 512, 768, 1000, 1024, 1536, 2048)
_SKINNY = ((16, 2000, 2000), (4, 1024, 1024), (1, 1024, 1024), (1, 4096, 4096), (4096, 1, 4096), (10000, 16, 16),
           (1024, 1024, 16), (64, 3136, 576), (128, 128, 8192))  # fmt: skip
_BATCHED = ((1000, 8), (1000, 16), (1000, 32), (10000, 4))

SHAPES: dict[str, list[Shape]] = {
    "square": [(n, n, n, 0) for n in _SQUARES],
    "skinny": [(m, n, k, 0) for m, n, k in _SKINNY],
    "batched": [(n, n, n, count) for count, n in _BATCHED],
    "call": [(n, n, n, 0) for n in (4, 8, 16, 32, 64)],
    "scaling": [(n, n, n, 0) for n in (256, 512, 1024, 2048)],
    "contention": [(n, n, n, 0) for n in (256, 512, 1024)],
}
QUICK: dict[str, list[Shape]] = {
    "square": [(8, 8, 8, 0), (33, 33, 33, 0), (64, 64, 64, 0)],
    "skinny": [(1, 128, 128, 0), (128, 1, 128, 0)],
    "batched": [(4, 4, 4, 100)],
    "call": [(8, 8, 8, 0)],
    "scaling": [(96, 96, 96, 0)],
    "contention": [(96, 96, 96, 0)],
}
CALL_BOUND = 64**3
"""Multiply-adds below which what calling costs is told beside the ratio."""
_IN_MEMORY = 48 << 20
"""Bytes of operands from which a matrix by a vector is set against the memory's read rate; fewer may lie in caches."""

_LOADED = 50
"""How many times as long samples are that are to see the scheduler's slices, of some milliseconds, in their mean."""


@dataclass
class Contest:
    """How to time, and with what. peaks: GFLOP/s a core by dtype; reads: GB/s by threads; empties: seconds of calls."""

    peers: list[Peer]
    rounds: int
    sample: float
    peaks: dict[str, float] = field(default_factory=dict)
    reads: dict[int, float] = field(default_factory=dict)
    ours: Ours = field(default_factory=Ours)
    empties: dict[tuple[str, str], float | None] = field(default_factory=dict)

    def rows(self, family: str, shapes: Sequence[Shape], dtype: str, threads: int) -> Iterator[Row]:
        """A row for each shape of `family`; threads: all of them, for "scaling" the most."""
        make = {"call": self._calls, "scaling": self._scaling, "contention": self._contention}.get(family, self._plain)
        for shape in shapes:
            a, b = _operands(shape, dtype)
            able = [peer for peer in self.peers if peer.batches or not shape[3]]
            able = [peer for peer in able if threads <= (peer.most_threads or threads)]
            row = dict(zip(("m", "n", "k", "batch"), shape, strict=True))
            yield {"family": family, "dtype": dtype, "threads": threads, **row, **make(a, b, able, threads)}

    def empty(self, peer: Peer, dtype: str) -> float | None:
        """Seconds of `peer`'s call itself, once measured."""
        if (peer.name, dtype) not in self.empties:
            call = peer.empty(dtype)
            self.empties[peer.name, dtype] = None if call is None else duel.call_cost(call)
        return self.empties[peer.name, dtype]

    def _timed(self, a: np.ndarray, b: np.ndarray, entries: list[Entry], longer: int = 1) -> Row:
        """The figures that every row has. longer: than usual are the samples."""
        duel.compete(entries, self.rounds, longer * self.sample)
        errors = duel.worst_errors(a, b, entries)
        flops = 2.0 * a.size * b.shape[-1]

        def each(value: Any) -> Row:
            return {entry.key: value(entry) for entry in entries}

        return {
            "seconds": each(lambda e: e.median), "gflops": each(lambda e: flops / e.median / 1e9),
            "cores": each(lambda e: statistics.median(e.cores)),
            "settling": each(lambda e: statistics.median(e.settling)), "repeats": each(lambda e: e.repeats),
            "worst_error": {key: error if math.isfinite(error) else None for key, error in errors.items()},
            "samples": each(lambda e: e.seconds),
        }  # fmt: skip

    def _plain(self, a: np.ndarray, b: np.ndarray, able: list[Peer], threads: int) -> Row:
        ours, *theirs = entries = [duel.enter(peer, a, b, threads) for peer in (self.ours, *able)]
        row = self._timed(a, b, entries) | _against(ours, theirs)
        dtype, work = a.dtype.name, a.size * b.shape[-1]
        peak, read = self.peaks.get(dtype), self.reads.get(threads)
        vector = a.ndim == 2 and 1 in (len(a), b.shape[-1]) and a.nbytes + b.nbytes >= _IN_MEMORY
        row["percent_of_peak"] = 100 * row["gflops"][ours.key] / peak / threads if peak else None
        row["percent_of_read"] = 100 * (a.nbytes + b.nbytes) / ours.median / 1e9 / read if vector and read else None
        small = work < CALL_BOUND and a.ndim == 2
        row["net"] = {e.key: self._net(ours, e, dtype) for e in theirs if small and e.peer.empty(dtype)}
        return row

    def _net(self, ours: Entry, theirs: Entry, dtype: str) -> float | None:
        """The ratio with each side's own call taken off; None if too little is left to be told from noise."""
        left = [entry.median - (self.empty(entry.peer, dtype) or 0.0) for entry in (ours, theirs)]
        if any(rest < 0.1 * entry.median for rest, entry in zip(left, (ours, theirs), strict=True)):
            return None
        return left[1] / left[0]

    def _calls(self, a: np.ndarray, b: np.ndarray, able: list[Peer], threads: int) -> Row:
        """plan and gemm against np.matmul: what Python users pay."""
        ours, *others = entries = [duel.enter(peer, a, b, threads) for peer in (self.ours, PlainCall(), *able)]
        row = self._timed(a, b, entries) | _against(ours, others[1:])
        row["plain_ratios"] = {e.key: statistics.median(duel.ratios(others[0], e)) for e in others[1:]}
        return row

    def _scaling(self, a: np.ndarray, b: np.ndarray, able: list[Peer], threads: int) -> Row:
        """Each contestant against itself on one thread, for powers of two and the most; keys "NAME@THREADS"."""
        counts = sorted({threads, *(1 << i for i in range(threads.bit_length()))})
        by_peer = {
            peer.name: [duel.enter(peer, a, b, count, f"{peer.name}@{count}") for count in counts]
            for peer in (self.ours, *able)
        }
        row = self._timed(a, b, [entry for entries in by_peer.values() for entry in entries])
        row["speedup"] = {
            name: {str(e.threads): statistics.median(duel.ratios(e, entries[0])) for e in entries}
            for name, entries in by_peer.items()
        }
        last = [entries[-1] for entries in by_peer.values()]
        return row | _against(last[0], last[1:])

    def _contention(self, a: np.ndarray, b: np.ndarray, able: list[Peer], threads: int) -> Row:
        """Each contestant with and without another process on one of the cores; keys "NAME", "NAME idle"."""
        with BusyProcess() as busy:
            entries = []
            for peer in (self.ours, *able):
                idle, loaded = (duel.enter(peer, a, b, threads, peer.name + mark) for mark in (" idle", ""))
                loaded.around = busy.running
                entries += [idle, loaded]
            row = self._timed(a, b, entries, longer=_LOADED)
        idles, loadeds = entries[::2], entries[1::2]
        pairs = zip(idles, loadeds, strict=True)
        row["slowdown"] = {loaded.key: statistics.median(duel.ratios(idle, loaded)) for idle, loaded in pairs}
        return row | _against(loadeds[0], loadeds[1:])


def _against(ours: Entry, theirs: Sequence[Entry]) -> Row:
    """ratios, spreads (of the ratios) and who the best peer is; > 1: we are faster."""
    rounds = {entry.peer.name: duel.ratios(ours, entry) for entry in theirs}
    ratios = {name: statistics.median(values) for name, values in rounds.items()}
    best = min(ratios, key=lambda name: ratios[name], default=None)
    return {"ratios": ratios, "spreads": {name: duel.spread(values) for name, values in rounds.items()},
            "best_peer": best, "ratio": None if best is None else ratios[best]}  # fmt: skip


def _operands(shape: Shape, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """a and b, uniform in [-1, 1), the same in every run."""
    m, n, k, batch = shape
    random = np.random.default_rng(shape)
    lead = (batch,) if batch else ()
    return random.uniform(-1, 1, (*lead, m, k)).astype(dtype), random.uniform(-1, 1, (*lead, k, n)).astype(dtype)


def summary(rows: Sequence[Row]) -> list[Row]:
    """The geometric means of each family's ratios, by dtype and threads."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row["ratios"]:
            groups.setdefault((row["family"], row["dtype"], row["threads"]), []).append(row)
    means = []
    for (family, dtype, threads), some in groups.items():
        names = dict.fromkeys(name for row in some for name in row["ratios"])
        each = {name: [row["ratios"][name] for row in some if name in row["ratios"]] for name in names}
        peers = {name: statistics.geometric_mean(values) for name, values in each.items()}
        best = statistics.geometric_mean(row["ratio"] for row in some)
        lost = sum(row["ratio"] < 1 for row in some)
        means.append({"family": family, "dtype": dtype, "threads": threads, "rows": len(some), "peers": peers,
                      "best": best, "least": min(row["ratio"] for row in some), "lost": lost})  # fmt: skip
    return means
