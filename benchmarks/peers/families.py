"""The contests of all families, and their rows of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemm.bench.peers import Absent, Peer, Unable
from gemm.bench.verdicts import ratios, spread

from . import duel, roofs
from .busy import BusyProcess
from .duel import Entry
from .exact import worst_errors
from .ours import Engine, NewResult, PlainCall, Plan, Prepared
from .shapes import Shape, operands
from .theirs import NumPyNew

Row = dict[str, Any]
Operands = tuple[np.ndarray, np.ndarray, np.ndarray]

_REAL = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32",
         "complex64": "float32", "complex128": "float64"}  # fmt: skip
"""{type: the real type whose fused multiply-adds do the work}."""
_IN_MEMORY = 48 << 20
"""Bytes of operands from which a matrix-vector product is compared with the memory's read rate. Smaller operands may be
in caches."""
_LOADED = 50
"""Factor that lengthens the samples under contention, so that each sample averages over many time slices of the
scheduler, which last some milliseconds."""
_UNABLE = (Absent, Unable, TypeError, ValueError, RuntimeError, ImportError)


def ours(precision: str) -> list[Plan]:
    """This package as a peer: gemm_run called from C first, if a C compiler is available, then gemm.plan in Python."""
    try:
        return [Engine(precision), Plan(precision)]
    except Absent:
        return [Plan(precision)]


@dataclass
class Contest:
    """The contestants, and the settings of the timing.

    Attributes:
        quick: measure the machine's peaks quickly, with meaningless results.
        precision: of our products, as for `gemm.plan`. The peers have a single precision.
        unable: {contestant: {operands: why it did not take part}}.
        peaks: {(dtype, threads): result of roofs.fma_peak}, measured on demand.
        reads: {(threads, bytes): GB/s}, measured on demand.
    """

    peers: list[Peer]
    rounds: int
    sample: float
    quick: bool = False
    precision: str = "highest"
    ours: list[Plan] = field(init=False)
    unable: dict[str, dict[str, str]] = field(default_factory=dict)
    peaks: dict[tuple[str, int], dict[str, Any] | None] = field(default_factory=dict)
    reads: dict[tuple[int, int], float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ours = ours(self.precision)

    def rows(self, family: str, shapes: Sequence[Shape], dtype: str, threads: int) -> Iterator[Row]:
        """A row for each shape of `family` that we can multiply. threads: for "scaling", the largest number."""
        special = {"call": self._calls, "prepare": self._prepared, "scaling": self._scaling}
        make = {**special, "contention": self._contention}.get(family, self._plain)
        for shape in shapes:
            try:
                able = [peer for peer in self.peers if peer.batches or not shape.batch]
                able = [peer for peer in able if threads <= (peer.most_threads or threads)]
                row = make(operands(shape, dtype), able, threads)
            except Unable:  # already recorded in `unable`
                continue
            except ImportError as error:
                self._note("gemm", dtype, error)
                continue
            yield {"family": family, "dtype": dtype, "threads": threads, **shape._asdict(), **row}

    def peak(self, dtype: str, threads: int) -> dict[str, Any] | None:
        """The FMA peak of `threads` cores for this type, measured once; None if other instructions may do the work."""
        key = _REAL.get(dtype, "") if self.precision == "highest" else "", threads
        if key[0] and key not in self.peaks:
            self.peaks[key] = roofs.fma_peak(*key, *((1,) if self.quick else ()))
        return self.peaks.get(key)

    def read(self, threads: int, size: int) -> float | None:
        """GB/s at which `threads` threads read `size` bytes, measured once."""
        key = threads, size
        if key not in self.reads:
            self.reads[key] = roofs.read_rate(threads, *((1 << 22, 1) if self.quick else (size,)))
        return self.reads[key]

    def roofs(self) -> Row:
        """`peaks` and `read_gbs` of the document, with the values measured so far."""
        peaks: Row = {}
        reads: Row = {}
        for (dtype, threads), peak in self.peaks.items():
            if peak:
                peaks.setdefault(dtype, {})[str(threads)] = peak
        for (threads, size), rate in self.reads.items():
            reads.setdefault(str(threads), {})[str(size)] = rate
        return {"peaks": peaks, "read_gbs": reads}

    def _note(self, name: str, what: str, why: Exception) -> None:
        self.unable.setdefault(name, {}).setdefault(what, str(why).partition("\n")[0])

    def _enter(self, x: Operands, peers: Sequence[Peer], threads: int, mark: str = "") -> list[Entry]:
        """The entries of those `peers` that can multiply x."""
        entries = []
        for peer in peers:
            try:
                entries.append(duel.enter(peer, *x, threads, f"{peer.name}{mark}"))
            except _UNABLE as why:
                self._note(peer.name, "·".join(dict.fromkeys(each.dtype.name for each in x[:2])), why)
        return entries

    def _enter_ours(self, x: Operands, peers: Sequence[Peer], threads: int, mark: str = "") -> list[Entry]:
        """The entries of this package. Raises Unable if there are none, because then there is no row."""
        if entries := self._enter(x, peers, threads, mark):
            return entries
        raise Unable("noted")

    def _timed(self, x: Operands, entries: list[Entry], longer: int = 1) -> Row:
        """The figures that every row has. longer: factor that lengthens the samples."""
        duel.compete(entries, self.rounds, longer * self.sample)
        a, b, out = x
        errors = worst_errors(a, b, entries)
        flops = (8.0 if out.dtype.kind == "c" else 2.0) * out.size * a.shape[-1]

        def each(value: Any) -> Row:
            return {entry.key: value(entry) for entry in entries}

        return {
            "kernel": str(self.ours[0].plan(*x).kernel), "seconds": each(lambda e: e.median),
            "gflops": each(lambda e: flops / e.median / 1e9),
            "cores": each(lambda e: statistics.median(e.cores)),
            "settling": each(lambda e: statistics.median(e.settling)), "repeats": each(lambda e: e.repeats),
            "worst_error": {key: error if math.isfinite(error) else None for key, error in errors.items()},
            "samples": each(lambda e: e.seconds),
        }  # fmt: skip

    def _plain(self, x: Operands, able: list[Peer], threads: int) -> Row:
        mine = self._enter_ours(x, self.ours, threads)
        theirs = self._enter(x, able, threads)
        row = self._timed(x, [*mine, *theirs]) | _against(mine, theirs)
        a, b, out = x
        peak, size = self.peak(a.dtype.name, threads), a.nbytes + b.nbytes
        vector = a.ndim == 2 and 1 in out.shape and (self.quick or size >= _IN_MEMORY)
        read = self.read(threads, size) if vector else None
        row["percent_of_peak"] = 100 * row["gflops"][mine[0].key] / peak["gflops"] if peak else None
        row["percent_of_read"] = 100 * size / mine[0].median / 1e9 / read if read else None
        return row

    def _calls(self, x: Operands, able: list[Peer], threads: int) -> Row:
        """plan and gemm compared with np.matmul, with and without out=: the complete cost for users of Python."""
        mine = self._enter_ours(x, (Plan(), PlainCall(), NewResult()), threads)
        theirs = self._enter(x, [*able, *([NumPyNew()] if able else [])], threads)
        row = self._timed(x, [*mine, *theirs]) | _against(mine[:1], theirs[:1])
        pairs = zip(mine[1:], theirs, strict=False)
        row["plain_ratios"] = {their.key: duel.ratio(our, their) for our, their in pairs}
        return row

    def _prepared(self, x: Operands, able: list[Peer], threads: int) -> Row:
        """A right-hand side packed beforehand, compared with all peers and with the same call without packing."""
        mine = self._enter_ours(x, (Prepared(),), threads)
        plain, theirs = self._enter(x, (PlainCall(backend="cpu"),), threads), self._enter(x, able, threads)
        row = self._timed(x, [*mine, *plain, *theirs]) | _against(mine, theirs)
        row["gain"] = duel.ratio(mine[0], plain[0]) if plain else None
        return row

    def _scaling(self, x: Operands, able: list[Peer], threads: int) -> Row:
        """Each contestant compared with itself on one thread, for powers of two and for `threads`.

        The keys are "NAME@THREADS".
        """
        counts = sorted({threads, *(1 << i for i in range(threads.bit_length()))})
        mine = [self._enter_ours(x, self.ours[:1], count, f"@{count}") for count in counts]
        theirs = [self._enter(x, able, count, f"@{count}") for count in counts]
        everyone = [[*ours, *others] for ours, others in zip(mine, theirs, strict=True)]
        row = self._timed(x, [entry for some in everyone for entry in some])
        row["speedup"] = {
            own[0].peer.name: {str(entry.threads): duel.ratio(entry, own[0]) for entry in own}
            for own in zip(*everyone, strict=True)
        }
        return row | _against(mine[-1], theirs[-1])

    def _contention(self, x: Operands, able: list[Peer], threads: int) -> Row:
        """Each contestant with and without another process on one of the cores; keys "NAME" and "NAME idle"."""
        with BusyProcess() as busy:
            mine, theirs = self._enter_ours(x, self.ours[:1], threads), self._enter(x, able, threads)
            idle = self._enter(x, [entry.peer for entry in (*mine, *theirs)], threads, " idle")
            for entry in (*mine, *theirs):
                entry.around = busy.running
            pairs = list(zip(idle, [*mine, *theirs], strict=True))
            row = self._timed(x, [entry for pair in pairs for entry in pair], longer=_LOADED)
        row["slowdown"] = {loaded.key: duel.ratio(alone, loaded) for alone, loaded in pairs}
        return row | _against(mine, theirs)


def _against(ours: Sequence[Entry], theirs: Sequence[Entry]) -> Row:
    """ratios, spreads of the ratios, and the best peer. Above 1, we are faster than the peer at its level."""
    by_level = {entry.peer.compiled: entry for entry in ours}
    rounds = {e.peer.name: ratios(e.seconds, by_level.get(e.peer.compiled, ours[0]).seconds) for e in theirs}
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    best = min(medians, key=lambda name: medians[name], default=None)
    return {"ratios": medians, "spreads": {name: spread(values) for name, values in rounds.items()},
            "best_peer": best, "ratio": None if best is None else medians[best]}  # fmt: skip


def summary(rows: Sequence[Row]) -> list[Row]:
    """The geometric means of each family's ratios, by dtype and number of threads."""
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
