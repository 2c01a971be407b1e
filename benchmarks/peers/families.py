"""Time the products of all families and make their rows of results. benchmarks/cpu_vs_peers.py lists the families."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gemm.bench.peers import Unable
from gemm.bench.verdicts import ratios, spread

from . import duel, ours, roofs, theirs
from .busy import BusyProcess
from .duel import Entry
from .exact import worst_errors
from .shapes import DTYPES, Shape, dtype_of, operands
from .workers import Library, Makers, Product, load

Row = dict[str, Any]

_REAL = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32",
         "complex64": "float32", "complex128": "float64"}  # fmt: skip
"""{type: the real type whose fused multiply-adds do the work}."""
_IN_MEMORY = 48 << 20
"""Bytes of operands from which a matrix-vector product is compared with the memory's read rate. Smaller operands may be
in caches."""
_LOADED = 50
"""Factor that lengthens the samples under contention, so that each sample averages over many time slices of the
scheduler, which last some milliseconds."""


class Contest:
    """The contestants, and the settings of the timing.

    Attributes:
        peers, ours: {name: a peer in its process}. `ours` contains every way to call this package.
        levels: those of `ours` that the peers are compared with: gemm_run called from C, if a C compiler is available,
            and gemm.plan in Python.
        unable: {contestant: {operands: why it did not take part}}.
    """

    def __init__(self, makers: Makers, rounds: int, sample: float, quick: bool, precision: str) -> None:
        """quick: measure the machine's peaks quickly, with meaningless results. precision: of our products, as for
        `gemm.plan`. The peers offer no choice of a precision."""
        self.rounds, self.sample, self.quick, self.precision = rounds, sample, quick, precision
        numpys = {name: make for name, make in makers.items() if name in ("numpy", "openblas")}
        others = [{name: make} for name, make in makers.items() if name not in numpys]
        own, more = ours.makers(precision), theirs.MORE if "numpy" in numpys else {}
        self._makers = {"gemm": own["gemm"], **makers}
        found, absent = load([own, *[{**numpys, **more}][: len(numpys)], *others])
        self.ours = {name: found[name] for name in own if name in found}
        self.peers = {name: found[name] for name in makers if name in found}
        self._more = {name: found[name] for name in more if name in found}
        self.absent = {name: why for name, why in absent.items() if name in makers}
        self.levels = [self.ours[name] for name in ("gemm", "plan") if name in self.ours]
        self.unable: dict[str, dict[str, str]] = {}
        self._peaks: dict[tuple[str, int], dict[str, Any] | None] = {}
        self._reads: dict[tuple[int, int], float | None] = {}
        self._pairs: dict[frozenset[str], dict[str, Library]] = {}

    def rows(self, family: str, shapes: Sequence[Shape], dtype: str, threads: int) -> Iterator[Row]:
        """Yield a row of results for each shape of `family` that this package can multiply.

        threads: the number of threads; for "scaling", the largest number that is tried.
        """
        special = {"call": self._calls, "prepare": self._prepared, "rotation": self._rotation}
        special |= {"scaling": self._scaling, "beside": self._beside, "contention": self._contention}
        make = special.get(family, self._plain)
        if family == "beside":
            shapes = [s._replace(layout=f"beside {name}") for name in self._neighbours(threads) for s in shapes]
        for shape in shapes:
            able = [peer for peer in self.peers.values() if peer.batches or not shape.batch]
            able = [peer for peer in able if threads <= (peer.most_threads or threads)]
            try:
                row = make((shape, dtype), able, threads)
            except Unable:  # already recorded in `unable`
                continue
            except ImportError as error:
                self._note("gemm", dtype, error)
                continue
            yield {"family": family, "dtype": dtype, "threads": threads, **shape._asdict(), **row}

    def peak(self, dtype: str, threads: int) -> dict[str, Any] | None:
        """The FMA peak of `threads` cores for this type, measured once.

        None if other instructions may do the work, or if the peak cannot be measured.
        """
        key = _REAL.get(dtype, "") if self.precision == "highest" else "", threads
        if key[0] and key not in self._peaks:
            self._peaks[key] = roofs.fma_peak(*key, *((1,) if self.quick else ()))
        return self._peaks.get(key)

    def read(self, threads: int, size: int) -> float | None:
        """GB/s at which `threads` threads read `size` bytes, measured once; None if this cannot be measured."""
        key = threads, size
        if key not in self._reads:
            self._reads[key] = roofs.read_rate(threads, *((1 << 22, 1) if self.quick else (size,)))
        return self._reads[key]

    def roofs(self) -> Row:
        """`peaks` and `read_gbs` of the document, with the values measured so far."""
        peaks: Row = {}
        reads: Row = {}
        for (dtype, threads), peak in self._peaks.items():
            if peak:
                peaks.setdefault(dtype, {})[str(threads)] = peak
        for (threads, size), rate in self._reads.items():
            reads.setdefault(str(threads), {})[str(size)] = rate
        return {"peaks": peaks, "read_gbs": reads}

    def _note(self, name: str, what: str, why: Exception) -> None:
        self.unable.setdefault(name, {}).setdefault(what, str(why).partition("\n")[0])

    def _enter(
        self, x: Product, peers: Iterable[Library], threads: int, mark: str = "", before: str = ""
    ) -> list[Entry]:
        """The entries of those `peers` that can multiply x. The others are noted in `unable`.

        mark: follows the peer's name in the entry's key. before: as for Library.enter.
        """
        entries: list[Entry] = []
        for peer in peers:
            try:
                entries.append(peer.enter(x, threads, f"{peer.name}{mark}", before))
            except Unable as why:
                self._note(peer.name, f"{x[1]}{' transposed' * ('ᵀ' in x[0].layout)}", why)
        return entries

    def _enter_ours(self, x: Product, peers: Iterable[Library], threads: int, mark: str = "") -> list[Entry]:
        """The entries of this package. Raises Unable if there are none, because then there is no row."""
        if entries := self._enter(x, peers, threads, mark):
            return entries
        raise Unable("noted")

    def _timed(self, x: Product, entries: list[Entry], longer: int = 1) -> Row:
        """Time the entries. Return the figures that every row has. longer: factor that lengthens the samples."""
        duel.compete(entries, self.rounds, longer * self.sample)
        a, b, out = operands(*x)
        errors = worst_errors(a, b, entries)
        flops = (8.0 if out.dtype.kind == "c" else 2.0) * out.size * a.shape[-1]

        def each(value: Any) -> Row:
            return {entry.key: value(entry) for entry in entries}

        return {
            "kernel": str(ours.Plan(self.precision).plan(a, b, out).kernel), "seconds": each(lambda e: e.median),
            "gflops": each(lambda e: flops / e.median / 1e9),
            "cores": each(lambda e: statistics.median(e.cores)),
            "settling": each(lambda e: statistics.median(e.settling)), "repeats": each(lambda e: e.repeats),
            "worst_error": {key: error if math.isfinite(error) else None for key, error in errors.items()},
            "samples": each(lambda e: e.seconds),
        }  # fmt: skip

    def _plain(self, x: Product, able: list[Library], threads: int) -> Row:
        mine, others = self._enter_ours(x, self.levels, threads), self._enter(x, able, threads)
        row = self._timed(x, [*mine, *others]) | _against(mine, others)
        (m, n, k, batch, _), (kind_a, kind_b, _) = x[0], map(dtype_of, DTYPES[x[1]])
        peak, size = self.peak(x[1], threads), k * (m * kind_a.itemsize + n * kind_b.itemsize)
        vector = not batch and 1 in (m, n) and (self.quick or size >= _IN_MEMORY)
        read = self.read(threads, size) if vector else None
        row["percent_of_peak"] = 100 * row["gflops"][mine[0].key] / peak["gflops"] if peak else None
        row["percent_of_read"] = 100 * size / mine[0].median / 1e9 / read if read else None
        return row

    def _named(self, *names: str) -> list[Library]:
        """The available libraries of these names: ways to call this package, peers, and more ways to call NumPy."""
        every = {**self.ours, **self.peers, **self._more}
        return [every[name] for name in names if name in every]

    def _calls(self, x: Product, able: list[Library], threads: int) -> Row:
        """plan and gemm compared with np.matmul, with and without out=: the complete cost for users of Python."""
        mine = self._enter_ours(x, self._named("plan", "gemm()", "gemm(), new"), threads)
        others = self._enter(x, self._named("numpy", "numpy, new"), threads)
        row = self._timed(x, [*mine, *others]) | _against(mine[:1], others[:1])
        pairs = zip(mine[1:], others, strict=False)
        row["plain_ratios"] = {their.key: duel.ratio(our, their) for our, their in pairs}
        return row

    def _rotation(self, x: Product, able: list[Library], threads: int) -> Row:
        """Seconds per call with a new shape each call; and, of a single shape, with a new alpha each call."""
        mine = self._enter_ours(x, self._named("gemm(), rotation", "gemm(), alphas"), threads)
        others = self._enter(x, self._named("numpy, rotation"), threads)
        row = self._timed(x, [*mine, *others]) | _against(mine[:1], others)
        row["call_seconds"] = {key: seconds / math.prod(x[0][:3]) for key, seconds in row["seconds"].items()}
        return row

    def _prepared(self, x: Product, able: list[Library], threads: int) -> Row:
        """A right-hand side packed beforehand, compared with all peers and with the same call without packing."""
        mine = self._enter_ours(x, self._named("prepared"), threads)
        plain, others = self._enter(x, self._named("gemm(), cpu"), threads), self._enter(x, able, threads)
        row = self._timed(x, [*mine, *plain, *others]) | _against(mine, others)
        row["gain"] = duel.ratio(mine[0], plain[0]) if plain else None
        return row

    def _scaling(self, x: Product, able: list[Library], threads: int) -> Row:
        """Each contestant compared with itself on one thread. Its numbers of threads are powers of two, and `threads`.

        The keys are "NAME@THREADS".
        """
        counts = sorted({threads, *(1 << i for i in range(threads.bit_length()))})
        mine = [self._enter_ours(x, self.levels[:1], count, f"@{count}") for count in counts]
        others = [self._enter(x, able, count, f"@{count}") for count in counts]
        everyone = [[*our, *their] for our, their in zip(mine, others, strict=True)]
        row = self._timed(x, [entry for some in everyone for entry in some])
        row["speedup"] = {
            own[0].peer.name: {str(entry.threads): duel.ratio(entry, own[0]) for entry in own}
            for own in zip(*everyone, strict=True)
        }
        return row | _against(mine[-1], others[-1])

    def _neighbours(self, threads: int) -> list[str]:
        """The names of the peers that can use `threads` threads; none if gemm_run cannot be called from C.

        NumPy is left out if "openblas" is a peer, because NumPy's threads are OpenBLAS's.
        """
        able = [name for name, peer in self.peers.items() if threads <= (peer.most_threads or threads)]
        return [name for name in able if name != "numpy" or "openblas" not in able] if "gemm" in self.ours else []

    def _beside(self, x: Product, able: list[Library], threads: int) -> Row:
        """Contestants in one process with another library, which multiplies before each of their products.

        The layout names the other library, Y. An entry's key is "NAME" if NAME runs beside Y, "NAME alone" if it runs
        without another library, and "Y" if Y runs beside gemm.
        """
        neighbour = x[0].layout.removeprefix("beside ")
        mine: list[Entry] = []
        others: list[Entry] = []
        for name in ("gemm", *self._neighbours(threads)):
            other = "gemm" if name == neighbour else neighbour
            pair = self._pair(name, other)
            if {name, other} <= pair.keys():
                (mine if name == "gemm" else others).extend(self._enter(x, [pair[name]], threads, before=other))
        if not mine:
            raise Unable("noted")
        every = [*mine, *others]
        alone = self._enter(x, self._named(*(entry.key for entry in every)), threads, " alone")
        row = self._timed(x, [*every, *alone])
        by_name = {entry.peer.name: entry for entry in alone}
        row["slowdown"] = {e.key: duel.ratio(by_name[e.key], e) for e in every if e.key in by_name}
        return row | _against(mine, others)

    def _pair(self, *names: str) -> dict[str, Library]:
        """Load the two named libraries into one process, once. Return {name: Library}.

        A library that cannot be loaded is noted in `unable`, and the result lacks it.
        """
        key = frozenset(names)
        if key not in self._pairs:
            makers = {name: make for name, make in self._makers.items() if name in key}
            self._pairs[key], absent = load([makers])
            for name, why in absent.items():
                self._note(name, f"in the process of {' and '.join(names)}", Unable(why))
        return self._pairs[key]

    def _contention(self, x: Product, able: list[Library], threads: int) -> Row:
        """Each contestant with and without another process on one of the cores; keys "NAME" and "NAME idle"."""
        with BusyProcess() as busy:
            mine, others = self._enter_ours(x, self.levels[:1], threads), self._enter(x, able, threads)
            idle = self._enter(x, self._named(*(entry.key for entry in (*mine, *others))), threads, " idle")
            for entry in (*mine, *others):
                entry.around = busy.running
            pairs = list(zip(idle, [*mine, *others], strict=True))
            row = self._timed(x, [entry for pair in pairs for entry in pair], longer=_LOADED)
        row["slowdown"] = {loaded.key: duel.ratio(alone, loaded) for alone, loaded in pairs}
        return row | _against(mine, others)


def _against(mine: Sequence[Entry], others: Sequence[Entry]) -> Row:
    """The ratios of the peers' times to ours, their spreads, and the best peer with its ratio, the smallest.

    A ratio above 1 means that we are faster. A peer that is called from compiled code is compared with our entry that
    is called from compiled code, and a peer in Python with our entry in Python. If there is no such entry of ours, the
    peer is compared with our first entry.
    """
    by_level = {entry.peer.compiled: entry for entry in mine}
    rounds = {e.peer.name: ratios(e.seconds, by_level.get(e.peer.compiled, mine[0]).seconds) for e in others}
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
        lost, low = (sum(row["ratio"] < limit for row in some) for limit in (1, 0.9))
        means.append({"family": family, "dtype": dtype, "threads": threads, "rows": len(some), "peers": peers,
                      "best": best, "least": min(row["ratio"] for row in some), "lost": lost, "low": low})  # fmt: skip
    return means
