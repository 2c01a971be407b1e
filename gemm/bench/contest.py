"""Fair timing: contestants interleaved round by round in one process, their results checked, the machine watched.

A sample starts only when other libraries' threads have gone to sleep, and the threads of the contestant are awake.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemm.bench.products import Shape
from gemm.catalog import BACKENDS
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device

OWN = frozenset(BACKENDS) - {"numpy"}
"""Backends whose threads sleep soon after a product. Threads of other libraries keep spinning and slow down the
contestant that follows."""
SAMPLE = 5e-4
"""The shortest time of a sample in seconds. Shorter products are repeated within a sample."""
WAKING = 0.006
"""Seconds of untimed calls before a sample. The operating system may wake all threads on one core, and distribute them
over the cores only at its next scheduler tick, after 4 ms on many systems."""
LONG = 0.05
"""Calls of this many seconds or more need no warm-up: threads wake and caches fill in a small part of this time."""
_TASKS = Path("/proc/self/task")
_EXACT_WORK = 1 << 31
"""If a float64 product has at most this many multiply-adds, all elements are checked. Of larger products only some rows
are checked, because the check's longdouble product has no BLAS."""


@dataclass
class Contestant:
    """One way to multiply on one device, and its measurements for one shape.

    Attributes:
        call: one product from host memory to host memory.
        launch: one product on resident operands; None if the device has no memory of its own.
        offload: offload(n) sends the operands, multiplies n times and fetches the result; None if `launch` is None.
        out: the array that receives the results of `call`.
        fetch: return a host copy of the result of `launch` and `offload`; None if `offload` copies the result to `out`,
            or if `launch` is None.
        cold: seconds of the first call for the shape. That call compiles or loads the kernel if the kernel was not yet
            in use.
        host, resident: seconds per product, one value for each sample. `resident` is empty without `launch`.
        worst: the largest error of the checked elements in units of the bound; inf for NaN; None before the check.
        sha256: the hash of the result's bits.
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


def warm(call: Callable[[], Any]) -> None:
    """Call `call` untimed until WAKING seconds have passed; at least one call."""
    end = time.perf_counter() + WAKING
    call()
    while time.perf_counter() < end:
        call()


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


def compete(contestants: Sequence[Contestant], rounds: int, warmup: int, step: Callable[[str], None]) -> None:
    """Time the contestants in rounds. Each round samples every contestant, and starts with another contestant.

    Before the rounds, each contestant makes `warmup` untimed calls. `step` is called before each sample, with the names
    of the contestant's kernel and device.
    """
    waiting = []
    foreign_before = True  # other libraries' threads may still spin after the warm-up
    for one in contestants:
        for _ in range(warmup):
            one.call()
            if one.launch:
                one.launch()
        seconds = timed(one.call)
        waiting.append((one, seconds < LONG, _repeats(seconds), _repeats(timed(one.launch)) if one.launch else 0))
    for turn in range(rounds):
        at = turn % len(waiting)
        for one, brief, times, resident_times in waiting[at:] + waiting[:at]:
            step(f"{one.kernel} on {one.device.key}")
            foreign = one.device.backend not in OWN
            if foreign_before or foreign:
                settle()
            foreign_before = foreign
            if brief:
                warm(one.call)
            one.host.append(timed(one.call, times))
            if one.launch:
                one.resident.append(timed(one.launch, resident_times))


def _repeats(seconds: float) -> int:
    """The number of calls in a sample, for calls of this many seconds."""
    return max(1, round(SAMPLE / max(seconds, 1e-7)))


def check(contestants: Sequence[Contestant], shape: Shape, a: np.ndarray, b: np.ndarray) -> str:
    """Set `worst` and `sha256` of each contestant. Returns a text that says which elements were compared.

    The reference is NumPy's product, in float64 for float32 and in longdouble for float64. The error bound is that of
    the numerical contract, (k + 2)·u·|a|·|b| for each element. If longdouble is no wider than float64, the reference
    may have the same error as the result, so twice the bound is allowed.
    """
    x, y = shape.untransposed(a, b)
    wide: Any = np.float64 if a.dtype == np.float32 else np.longdouble
    every = 1 if a.dtype == np.float32 else int(shape.flops / 2 / _EXACT_WORK) + 1
    lines = np.unique([*range(0, shape.m, every), shape.m - 1])
    scope = f"{lines.size} of {shape.m} rows" if every > 1 else "every element"
    rows = x[..., lines, :]
    exact = matmul(rows.astype(wide), y.astype(wide))
    slack = 2.0 if np.finfo(wide).eps >= np.finfo(a.dtype).eps else 1.0
    bound = slack * (shape.k + 2) * np.finfo(a.dtype).eps / 2 * matmul(*(np.abs(x).astype(float) for x in (rows, y)))
    for one in contestants:
        one.worst = max(_worst(result[..., lines, :], exact, bound) for result in one.results())
        one.sha256 = hashlib.sha256(one.out.tobytes()).hexdigest()
    return scope


def _worst(result: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(result - exact)
        share = np.where(error == 0, 0, error / bound)
    return float("inf") if np.isnan(share).any() else float(share.max())


class Watch:
    """Measure the load by other processes since this object was made."""

    def __init__(self) -> None:
        self._load = _load()
        self._ticks, self._own, self._start = _ticks(), time.process_time(), time.monotonic()

    def facts(self, spreads: list[float], helper: float = 0.0) -> dict[str, Any]:
        """{load_before, load_after, others_cores, stolen, median_spread, warnings}. None: the value is not known.

        Args:
            spreads: the interquartile range ÷ the median of each row's ratios.
            helper: CPU seconds of processes that the benchmark itself started.
        """
        wall, own = time.monotonic() - self._start, time.process_time() - self._own + helper
        others = stolen = None
        after = _ticks()
        if self._ticks and after:
            busy, steal = (now - then for now, then in zip(after, self._ticks, strict=True))
            others, stolen = max(0.0, busy - own) / wall, steal / wall
        spread = statistics.median(spreads) if spreads else None
        limits = (
            (self._load[0] if self._load else None, 0.5, "the load average was {:.2f} before the first product"),
            (others, 0.05, "other processes used {:.2f} cores on average"),
            (stolen and 100 * stolen, 1, "the hypervisor withheld {:.1f} % of a core"),
            (spread and 100 * spread, 5, "the ratios of the median row spread by {:.0f} % (interquartile range)"),
        )
        warnings = [warning.format(value) for value, most, warning in limits if value is not None and value > most]
        return {"load_before": self._load, "load_after": _load(), "others_cores": others, "stolen": stolen,
                "median_spread": spread, "warnings": warnings}  # fmt: skip


def _load() -> list[float] | None:
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def _ticks() -> tuple[float, float] | None:
    """CPU seconds since boot: (used by all processes, withheld by a hypervisor). None on systems other than Linux."""
    try:
        with Path("/proc/stat").open() as file:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
    except (OSError, ValueError):  # not Linux
        return None
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / rate, steal / rate
