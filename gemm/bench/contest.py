"""Fair timing: contestants interleaved round by round in one process, their results checked, the machine watched.

A sample starts only when other libraries' threads have gone to sleep, and the threads of the contestant are awake.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm.bench.products import Arithmetic, Shape
from gemm.catalog import BACKENDS
from gemm.core import threads
from gemm.core.problem import NARROW, Device
from gemm.select.verify.single import Case, shares

OWN = frozenset(BACKENDS) - {"numpy"}
"""Backends whose threads sleep soon after a product. Threads of other libraries keep spinning and slow down the
contestant that follows."""
SAMPLE = 5e-4
"""The shortest time of a sample in seconds. Shorter products are repeated within a sample."""
WAKING, PLACING, PLACED = 0.006, 0.3, 2.0
"""When the untimed calls before a sample end (`warm`): after WAKING seconds at the earliest, and then when a call takes
at most PLACED times as long as the contestant's fastest call. After PLACING seconds, they end in any case.

The calls give the operating system time to distribute the threads over the cores. It may first wake several threads on
one core, where a thread that spins takes time from a thread that computes. The scheduler's next tick, 4 ms later on
many systems, moves the threads to different cores."""
SETTLED, SETTLING = 0.02, 1.0
"""A GPU's clocks have settled when two successive medians (see `steady`) differ by at most the fraction SETTLED.
SETTLING is the longest time to wait for that, in seconds."""
LONG = 0.05
"""Calls of this many seconds or more need no warm-up: threads wake and caches fill in a small part of this time."""
SLOW, ENOUGH = 0.3, 3
"""Calls of SLOW seconds or more take part in the first ENOUGH rounds only. Fewer rounds permit no ratio. If n products
with operands sent once would take SLOW seconds, their time is extrapolated from one product."""
PATIENCE = 3.0
"""A contestant is sampled once, outside the rounds, if ENOUGH calls would take longer than the time of the rounds and
longer than this many seconds."""
LEAST = 5
"""The smallest number of rounds, however long they take."""
BEFORE = 1.0
"""Seconds for which the load of the machine is measured before the first product."""
BUSY, BUSY_SHARE, STOLEN, SPREAD = 0.05, 0.005, 0.01, 0.05
"""The machine is quiet if three conditions hold. Other processes use at most BUSY cores, or at most the fraction
BUSY_SHARE of all cores if that is more. The hypervisor withholds at most STOLEN cores. The median over all results of
the spread of the rounds' ratios is at most SPREAD."""
SPREADS = "the ratios of the median row spread by"
"""The first words of the warning about the spread (see `warnings`), by which gemm.bench.report recognises it."""
_TASKS = Path("/proc/self/task")
_EXACT_WORK = 1 << 31
"""A number of multiply-adds. It is a limit for types such as float64 and int32, whose reference NumPy computes slowly,
without BLAS. Of a larger product, only some rows are checked. Of other products, all elements are checked."""


class Pace(NamedTuple):
    """The number of rounds, and the approximate time that all rounds may take."""

    rounds: int
    seconds: float


@dataclass
class Contestant:
    """One way to multiply on one device, and its measurements for one shape.

    Attributes:
        call: one product from host memory to host memory.
        launch: one product on resident operands; None if the device has no memory of its own.
        offload: offload(n) sends the operands, multiplies n times and fetches the result; None if `launch` is None.
        out: the array that receives the results of `call`.
        fetch: fetch() returns a host copy of the result of `launch` and `offload`; None if `offload` copies the result
            to `out`, or if `launch` is None.
        cold: seconds of the first call for the shape. That call compiles or loads the kernel if the kernel was not yet
            in use.
        host, resident: seconds per product, one value for each sample. `resident` is empty without `launch`.
        fastest: seconds of the fastest untimed call.
        unsettled: the number of resident samples that were taken although the GPU's clocks had not settled.
        worst: the largest error of the checked elements in units of the bound; inf for NaN; None before the check.
        sha256: the SHA-256 hash of the bits of `out`; "" before the check.
    """

    device: Device
    kernel: str
    call: Callable[[], Any]
    out: np.ndarray
    launch: Callable[[], Any] | None = None
    offload: Callable[[int], Any] | None = None
    fetch: Callable[[], np.ndarray] | None = None
    cold: float = 0.0
    host: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    unsettled: int = 0
    fastest: float = math.inf
    worst: float | None = None
    sha256: str = ""

    def results(self) -> Iterator[np.ndarray]:
        """The results to check: the host array `out`, and a host copy of the device array if there is `fetch`."""
        yield self.out
        if self.fetch:
            yield self.fetch()


def timed(call: Callable[[], Any], times: int = 1) -> float:
    """Seconds per call, over `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def warm(call: Callable[[], Any], fastest: float = math.inf) -> float:
    """Call `call` at least once, and until the time that WAKING describes.

    fastest: seconds of the fastest earlier call. Returns the seconds of the fastest call, earlier calls included.
    """
    start = time.perf_counter()
    while True:
        last = timed(call)
        fastest = min(fastest, last)
        passed = time.perf_counter() - start
        if passed >= WAKING and (last <= PLACED * fastest or passed >= PLACING):
            return fastest


def settle() -> float:
    """Wait until no other thread of this process runs, for a second at most. Returns the seconds that passed.

    Threads of a BLAS keep spinning after a product, OpenBLAS's for 0.1 s, those of Intel's OpenMP for 0.2 s. Spinning
    threads would take cores away from the next contestant. Systems other than Linux do not report the states of
    threads; there the function waits 0.25 s.
    """
    start = time.perf_counter()
    if sys.platform != "linux":
        time.sleep(0.25)
        return 0.25
    idle = 0
    while idle < 2 and time.perf_counter() - start < 1.0:
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


def steady(sample: Callable[[], float], limit: float = SETTLING) -> bool:
    """Repeat `sample` until two successive medians of five agree within SETTLED, because a GPU raises and lowers its
    clocks with its load. Returns False if they do not agree within `limit` seconds of samples.
    """
    before, spent = 0.0, 0.0
    while spent < limit:
        samples = [sample() for _ in range(5)]
        spent += sum(samples)
        median = statistics.median(samples)
        if abs(median - before) <= SETTLED * median:
            return True
        before = median
    return False


def compete(contestants: Iterable[Contestant], pace: Pace, warmup: int, step: Callable[[str], None]) -> None:
    """Time the contestants in rounds. Each round samples every contestant, and starts with a different contestant.

    Before the rounds, each contestant makes `warmup` untimed calls. After LEAST rounds no round starts when the time of
    `pace` is over. Slow contestants take part in the first ENOUGH rounds only, so the first samples of all contestants
    are of the same rounds. `step` is called before each sample, with the names of the contestant's kernel and device.
    """
    entered = [(one, *found) for one in contestants if (found := _warmed_up(one, pace, warmup))]
    foreign_before = True  # other libraries' threads may still spin after the warm-up
    end = time.perf_counter() + pace.seconds
    for turn in range(pace.rounds):
        waiting = [each for each in entered if turn < ENOUGH or each[1] < SLOW]
        if not waiting or (turn >= LEAST and time.perf_counter() >= end):
            break
        at = turn % len(waiting)
        for one, seconds, resident in waiting[at:] + waiting[:at]:
            step(f"{one.kernel} on {one.device.key}")
            foreign = one.device.backend not in OWN
            if foreign_before or foreign:
                settle()
            foreign_before = foreign
            if seconds < LONG:
                one.fastest = warm(one.call, one.fastest)
                seconds = min(seconds, one.fastest)
            one.host.append(timed(one.call, _repeats(seconds)))
            if one.launch:
                sample = partial(timed, one.launch, _repeats(resident))
                if one.device.kind == "gpu" and not steady(sample):
                    one.unsettled += 1
                one.resident.append(sample())


def _warmed_up(one: Contestant, pace: Pace, warmup: int) -> tuple[float, float] | None:
    """Make the untimed calls before the rounds. Returns the approximate seconds of `one.call` and of `one.launch`.

    If the contestant is too slow for the rounds, the function stores its only sample and returns None.
    """
    seconds, resident = timed(one.call), timed(one.launch) if one.launch else 0.0
    if seconds * ENOUGH > max(pace.seconds, PATIENCE):
        one.host, one.resident = [seconds], [resident] if one.launch else []
        return None
    if seconds < SLOW:
        for _ in range(warmup):
            one.call()
            if one.launch:
                one.launch()
        seconds, resident = timed(one.call), timed(one.launch) if one.launch else 0.0
    return seconds, resident


def unsettled(contestants: Iterable[Contestant]) -> list[str]:
    """A line for each GPU whose clocks did not settle."""
    return [
        f"{one.kernel}: the clocks of {one.device.key} did not settle in {one.unsettled} of {len(one.resident)} rounds."
        for one in contestants if one.unsettled
    ]  # fmt: skip


def _repeats(seconds: float) -> int:
    """The number of calls in a sample, for calls of this many seconds."""
    return max(1, round(SAMPLE / max(seconds, 1e-7)))


def check(
    contestants: Sequence[Contestant], shape: Shape, a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic | None = None
) -> str:
    """Set `worst` and `sha256` of each contestant. Returns a text that says which elements were compared.

    The reference is that of `gemm verify`: NumPy's product in a wider type, and the numerical contract's bound.
    """
    how = arithmetic or Arithmetic(a.dtype.name)
    x, y = shape.untransposed(a, b)
    every = 1 if how.dtype in ("float32", "complex64", *NARROW) else int(shape.flops / 2 / _EXACT_WORK) + 1
    lines = np.unique([*range(0, shape.m, every), shape.m - 1])
    results = [(one, result[..., lines, :]) for one in contestants for result in one.results()]
    case = Case(shape.m, shape.n, shape.k)
    found = shares(np.stack([result for _, result in results]), x[..., lines, :], y, None, case, how) if results else ()
    for one in contestants:
        one.worst = max(float(share.max()) for (other, _), share in zip(results, found, strict=True) if other is one)
        one.sha256 = hashlib.sha256(one.out.tobytes()).hexdigest()
    return f"{lines.size} of {shape.m} rows" if every > 1 else "every element"


class Watch:
    """Measure the load by other processes: in the constructor for BEFORE seconds, then until `facts` is called."""

    def __init__(self) -> None:
        self._load, before = _load(), threads.OtherProcesses()
        if before.known:
            time.sleep(BEFORE)
        self._before, self._since = before.cores(), threads.OtherProcesses()

    def facts(self, spreads: list[float]) -> dict[str, Any]:
        """What the watch has measured so far. A value that is not known is None.

        Returns:
            {load_before, load_after: load averages, as of os.getloadavg; others_before, others_cores: the number of
            cores that other processes used, during BEFORE and since then; stolen_before, stolen: the number of cores
            that the hypervisor withheld, during BEFORE and since then; median_spread: the median of `spreads`;
            warnings: the result of `warnings`}.

        Args:
            spreads: for each result, the interquartile range of the rounds' ratios ÷ their median.
        """
        found = {
            "load_before": self._load, "load_after": _load(),
            **dict(zip(("others_before", "stolen_before"), self._before, strict=True)),
            **dict(zip(("others_cores", "stolen"), self._since.cores(), strict=True)),
            "median_spread": statistics.median(spreads) if spreads else None,
        }  # fmt: skip
        return found | {"warnings": warnings(found)}


def warnings(quiet: Mapping[str, Any]) -> list[str]:
    """Why the figures of a run with the facts `quiet` should not be quoted; [] if the machine was quiet.

    The load average, which lags a minute behind, counts only where nothing better is known.
    """
    load = quiet["load_before"][0] if quiet["load_before"] and quiet["others_cores"] is None else None
    busy = max(BUSY, BUSY_SHARE * (os.cpu_count() or 1))
    limits = (
        (load, 0.5, "the load average was {:.2f} before the first product"),
        (quiet["others_before"], busy, "other processes used {:.2f} cores before the first product"),
        (quiet["others_cores"], busy, "other processes used {:.2f} cores on average"),
        (quiet["stolen"], STOLEN, "the hypervisor withheld {:.0%} of a core"),
        (quiet["median_spread"], SPREAD, f"{SPREADS} {{:.0%}} (interquartile range)"),
    )
    return [warning.format(value) for value, most, warning in limits if value is not None and value > most]


def _load() -> list[float] | None:
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None
