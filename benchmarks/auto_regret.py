"""How good is backend="auto"? The time of the backend that it chooses ÷ the time of the best, for random products.

    python benchmarks/auto_regret.py [--problems 300] [--rounds 6] [--sample 0.002] [--seed 1] [--limit 3600]
                                      [--json FILE]

Problems are drawn at random from --seed. m, n and k are log-uniform in 1 … 8192; the type is one of TYPES; a quarter of
the problems have a batch. The operands are on the host, or on a device with equal probability if the machine has a
device with its own memory. A problem is hot (it uses the same arrays repeatedly) or cold (it cycles through so many
copies that no cache holds them). A problem above --work multiply-adds or --memory bytes is drawn again. After --limit
seconds no further problem is started.

Contestants for host arrays: every backend that can compute the product, each device with the kernel that dispatch
chooses there, NumPy with np.matmul. Contestants for device arrays: the kernels of that device whose predicted times are
at most --factor times the shortest predicted time, at most eight kernels.

All contestants are timed in one process, interleaved, in rotating order. Each sample is long enough to be measured, and
times are medians. A contestant takes no part if its predicted time exceeds thirty times that of auto's choice. A
contestant leaves after its first products if they take more than three times as long as those of the fastest one. For
types that NumPy multiplies in loops without a BLAS, NumPy takes part only if its predicted time does not exceed that of
auto's choice. Auto's choice itself always takes part.

For a hot problem, auto's choice is determined after some products, from which auto may learn (GEMM_ADAPT). For a cold
problem, auto's choice is determined at once.

    regret = median time of auto's choice ÷ median time of the best contestant; 1 if auto chose the best

The best contestant is found in half of the rounds, and the ratio is computed from the other half. Otherwise noise would
favour the best contestant, because the smallest of many noisy medians is biased. A ratio below 1 counts as 1: only
noise distinguishes such contestants.

The script also measures how long auto takes to choose: for a new shape in host memory, for a new shape on a device, and
for a known shape. It also measures the time of a process's first small product.

The JSON document ("gemm-auto-regret/1", seconds) contains

    date, command, commit, versions, machine, devices, problems, rounds, sample_s, seed
    results     [{m, n, k, batch, dtype, place, cold, chosen, best, regret, times {contestant: median}, spread}]
    regret      {all, and each kind of problem: {count, median, p95, worst}}
    decision    {new {median, p95, worst}, first_new, repeated, first_call, import}; also new_resident if arrays were on
                devices
    quiet       the load by other processes during the run
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from peers.duel import Entry, compete
from peers.ours import Engine, PlainCall, entered
from peers.shapes import DTYPES, Shape, operands

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.bench.contest import Watch
from gemm.bench.peers import Loop
from gemm.bench.peers.cblas import native
from gemm.bench.verdicts import spread
from gemm.cli.arguments import positive
from gemm.core import text
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, Problem
from gemm.frontend.arguments import Given, Options, normalise
from gemm.select import calibration, probe

TYPES = {"float32": 8, "float64": 4, "float16": 2, "bfloat16": 2, "int8": 2, "complex64": 1, "int32": 1}
"""Element types, and the relative frequency of each."""
BLAS = ("float32", "float64", "complex64")
"""Types that NumPy multiplies by its BLAS. NumPy multiplies other types in loops, whose predicted times are poor."""
LARGEST = 8192
BATCHED, MOST_BATCH = 0.25, 512
COLD_BYTES = 256 << 20
"""Bytes of all copies of a cold problem's operands together. No cache holds so many."""
HOPELESS = 3.0
"""A contestant is not timed further if its first timed call takes longer than the shortest one by this factor."""
MOST = 8
"""At most this many kernels are timed for a problem on a device: those with the shortest predicted times."""
FAR = 30.0
"""A contestant is not called at all if its predicted time exceeds that of auto's choice by this factor. Such a call
could take minutes, as NumPy's loops do."""


@dataclass(frozen=True)
class Drawn:
    """A random problem: the product, the place of its operands ("host" or a device's key), and cold or hot caches."""

    shape: Shape
    dtype: str
    place: str
    cold: bool

    @property
    def bytes(self) -> int:
        m, n, k, batch, _ = self.shape
        a, b, c = (np.dtype(name).itemsize if name != "bfloat16" else 2 for name in DTYPES[self.dtype])
        return max(1, batch) * (a * m * k + b * k * n + c * m * n)

    @property
    def work(self) -> int:
        """The number of multiply-adds."""
        return self.shape.m * self.shape.n * self.shape.k * max(1, self.shape.batch)

    def __str__(self) -> str:
        batch = f"{self.shape.batch} × " if self.shape.batch else ""
        heat = "cold" if self.cold else "hot"
        return f"{batch}{self.shape.m} × {self.shape.n} × {self.shape.k} {self.dtype} on {self.place}, {heat}"


def draw(count: int, seed: int, places: Sequence[str], work: float, memory: float) -> list[Drawn]:
    """`count` random problems, the same for the same arguments."""
    source, found = random.Random(seed), []

    def size(most: int) -> int:
        return round(2 ** source.uniform(0, math.log2(most)))

    while len(found) < count:
        batch = size(MOST_BATCH) if source.random() < BATCHED else 0
        shape = Shape(size(LARGEST), size(LARGEST), size(LARGEST), batch)
        dtype = source.choices([*TYPES], [*TYPES.values()])[0]
        place = source.choice(["host", source.choice(places)]) if places else "host"
        one = Drawn(shape, dtype, place, source.random() < 0.5)
        if one.work <= work and one.bytes <= memory:
            found.append(one)
    return found


def turns(calls: Sequence[Callable[[], Any]], finish: Callable[[], None] | None) -> Loop:
    """A loop that cycles through calls with different operands, then waits until the enqueued work is finished."""
    endless = cycle(calls)

    def loop(times: int) -> None:
        for _, call in zip(range(times), endless, strict=False):
            call()
        if finish is not None:
            finish()

    return loop


Operands = tuple[Any, Any, Any]


def contestants(
    drawn: Drawn, sets: Sequence[Operands], factor: float
) -> tuple[str, dict[str, list[Callable[[], Any]]]]:
    """The contestant that auto chooses, and for each contestant its calls, one for each set of operands."""
    a, b, out = sets[0]
    kind = out.dtype
    for _ in range(0 if drawn.cold else 2 + calibration.TIMES):
        gemm.gemm(a, b, out=out, dtype=kind)
    chosen = gemm.plan(a, b, out=out, dtype=kind)
    options: dict[str, dict[str, Any]] = {}
    if drawn.place == "host":
        for device in devices():
            asked = {"backend": device.key if device.backend not in ("cpu", "numpy") else device.backend}
            far = FAR if device.backend != "numpy" or drawn.dtype in BLAS else 1.0
            try:
                if gemm.plan(a, b, out=out, dtype=kind, **asked).seconds <= far * chosen.seconds:
                    options[device.key] = asked
            except (BackendUnavailable, KernelFailed, TypeError, ValueError):
                continue  # the backend cannot compute this product
        picked = chosen.device
    else:
        able = sorted((c for c in chosen.candidates if c.seconds), key=lambda c: c.seconds or 0)
        near = [c.kernel.name for c in able if c.seconds <= factor * able[0].seconds]
        options = {name: {"kernel": name} for name in near[:MOST]}
        picked = chosen.kernel
    calls: dict[str, list[Callable[[], Any]]] = {}
    for name, asked in options.items():
        try:
            gemm.gemm(a, b, out=out, dtype=kind, **asked)
        except (BackendUnavailable, KernelFailed, MemoryError, TypeError, ValueError):
            continue
        if name == "numpy:0" and drawn.dtype in (*BLAS, "int32"):
            calls[name] = [partial(np.matmul, x, y, out=z) for x, y, z in sets]
        else:
            calls[name] = [partial(gemm.gemm, x, y, out=z, dtype=kind, **asked) for x, y, z in sets]
    return picked, calls


def devices() -> list[Device]:
    """All devices of the machine, including NumPy's and the CPU's."""
    found: list[Device] = []
    for name in gemm.backends():
        try:
            found += probe.devices(name)
        except BackendUnavailable:
            continue
    return found


def own_memory(device: Device) -> Backend | None:
    """The device's backend, or None if the device has no memory of its own."""
    backend = registry.backend(device.backend)
    try:
        backend.to_device(np.ones((8, 8), np.float32), device)
    except (TypeError, KernelFailed):
        return None
    return backend


def contest(
    drawn: Drawn, options: argparse.Namespace, homes: dict[str, tuple[Backend, Device]]
) -> dict[str, Any] | None:
    """Time the contestants of one problem. Return its row of the document, or None if its device lacks the type."""
    a, b, out = operands(drawn.shape, drawn.dtype)
    copies = max(2, -(-COLD_BYTES // drawn.bytes)) if drawn.cold else 1
    copies = max(1, min(copies, 4096, int(options.memory // drawn.bytes)))
    sets: list[Operands] = [(a, b, out), *((a.copy(), b.copy(), out.copy()) for _ in range(copies - 1))]
    finish = None
    if drawn.place != "host":
        backend, device = homes[drawn.place]
        sets = [tuple(backend.to_device(x, device).owner for x in each) for each in sets]
        finish = partial(backend.synchronize, device)
    try:
        picked, calls = contestants(drawn, sets, options.factor)
    except TypeError:  # this device has no kernel for the type
        return None
    entries = [entered(name, turns(each, finish), out) for name, each in calls.items()]
    if picked not in calls:
        raise SystemExit(f"auto chose {picked} for {drawn}, which then did not compute it")
    least = min(entry.first for entry in entries)
    entries = [entry for entry in entries if entry.first <= HOPELESS * least + 1e-4 or entry.key == picked]
    if len(entries) > 1:
        compete(entries, options.rounds, options.sample)
    times = {entry.key: entry.seconds or [entry.first] for entry in entries}
    finding, judging = (
        {key: statistics.median(seconds[half::2] or seconds) for key, seconds in times.items()} for half in (0, 1)
    )
    best = min(finding, key=finding.__getitem__)
    return {
        **drawn.shape._asdict(), "batch": drawn.shape.batch or 1, "dtype": drawn.dtype, "place": drawn.place,
        "cold": drawn.cold, "chosen": picked, "best": best, "regret": max(1.0, judging[picked] / judging[best]),
        "times": {key: statistics.median(seconds) for key, seconds in times.items()},
        "spread": {key: spread(seconds) for key, seconds in times.items()},
    }  # fmt: skip


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """{count, median, p95, worst} of the regret, for all problems and for each kind of problem."""
    kinds = {"all": results}
    for key in ("place", "dtype", "cold", "chosen"):
        for value in sorted({str(row[key]) for row in results}):
            kinds[f"{key} {value}"] = [row for row in results if str(row[key]) == value]
    kinds["batched"] = [row for row in results if row["batch"] > 1]
    return {name: figures([row["regret"] for row in rows]) for name, rows in kinds.items() if rows}


def figures(values: Sequence[float]) -> dict[str, float]:
    """The number of values, their median, 95th percentile and maximum.

    The 95th percentile is the smallest of the values that at least 95 of 100 values do not exceed.
    """
    ordered = sorted(values)
    at = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return {"count": len(ordered), "median": statistics.median(ordered), "p95": ordered[at], "worst": ordered[-1]}


def decisions(problems: Sequence[Drawn]) -> dict[str, Any]:
    """The entry `decision` of the document: the times of a choice, of a process's first product and of the import.

    `repeated`, the time of a choice for a known shape, is an upper bound: the time that gemm.gemm takes for a product
    of 8³, minus the time that the engine takes for it.
    """
    asked = []
    for drawn in problems:
        if drawn.place == "host":
            m, n, k, batch, _ = drawn.shape
            stack = (batch,) if batch else ()
            a, b, c = (
                np.broadcast_to(np.zeros(1, x.dtype), (*stack, *size))
                for x, size in zip(operands(Shape(1, 1, 1), drawn.dtype), ((m, k), (k, n), (m, n)), strict=True)
            )
            asked.append(normalise(Given(a, b), Options(dtype=c.dtype)).problem)
    execute.forget()
    new = []
    for problem in dict.fromkeys(asked):
        start = time.perf_counter()
        execute.choose(problem)
        new.append(time.perf_counter() - start)
    a, b, out = operands(Shape(8, 8, 8), "float32")
    native()
    entries = [
        Entry(name, peer, peer.prepare(a, b, out), out, 1, 1e-6)
        for name, peer in (("call", PlainCall()), ("engine", Engine()))
    ]
    threads = gemm.get_num_threads()
    compete(entries, 9, 0.01)
    gemm.set_num_threads(threads)
    call, engine = (entry.median for entry in entries)
    code = (
        "import time; s = time.perf_counter(); import numpy as np; import gemm; e = time.perf_counter();"
        "a = np.ones((16, 16), np.float32); f = time.perf_counter(); gemm.gemm(a, a);"
        "print(e - s, time.perf_counter() - f)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(9)]
    loaded, first = (statistics.median(x) for x in zip(*(map(float, run.stdout.split()) for run in runs), strict=True))
    return {"new": figures(new), "first_new": new[0], "repeated": call - engine, "first_call": first, "import": loaded}


def resident_decisions(problems: Sequence[Drawn]) -> dict[str, float]:
    """{count, median, p95, worst} of the seconds that a choice of a kernel takes, for problems on devices.

    Each shape is new when the choice is timed. The result is {} if there are no such problems.

    Each choice is first made untimed, so that the timed choices contain no verification of kernels.
    """
    where = {device.key: device for device in devices()}
    asked = {}
    for drawn in problems:
        if drawn.place in where:
            a, b, c = DTYPES[drawn.dtype]
            problem = Problem(c, *drawn.shape[:3], max(1, drawn.shape.batch), device=drawn.place,
                              inputs=() if a == b == c else (a, b))  # fmt: skip
            with suppress(BackendUnavailable, KernelFailed, TypeError, ValueError):
                execute.choose(problem, holder=where[drawn.place])
                asked[problem] = where[drawn.place]
    execute.forget()
    new = []
    for problem, device in asked.items():
        start = time.perf_counter()
        execute.choose(problem, holder=device)
        new.append(time.perf_counter() - start)
    return figures(new) if new else {}


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=6, sample=0.002)
    parser.add_argument("--problems", type=positive, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=float, default=1e11, help="multiply-adds per problem at most")
    parser.add_argument("--memory", type=float, default=2e9, help="bytes of a problem's operands and copies at most")
    parser.add_argument("--factor", type=float, default=2.0, help="resident kernels: limit ÷ shortest predicted time")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="SECONDS")
    return parser


def main() -> int:
    """Draw problems, time them, print and write the results."""
    options = arguments().parse_args()
    probe.facts()  # choices need the probe's results, which a process otherwise gets at its first large product
    watch = Watch()
    homes = {device.key: (backend, device) for device in devices() if (backend := own_memory(device))}
    problems = draw(options.problems, options.seed, list(homes), options.work, options.memory)
    costs = decisions(problems)
    results, until = [], time.monotonic() + options.limit
    with text.Progress(len(problems)) as progress:
        for drawn in problems:
            progress.step(str(drawn))
            if time.monotonic() > until:
                break
            if (row := contest(drawn, options, homes)) is not None:
                results.append(row)
    if resident := resident_decisions(problems[: len(results)]):
        costs["new_resident"] = resident
    found = summary(results)
    show(results, found, costs)
    recorded.save(options.json, recorded.document(
        "gemm-auto-regret/1", devices=devices(), problems=len(results), rounds=options.rounds, sample_s=options.sample,
        seed=options.seed, results=results, regret=found, decision=costs,
        quiet=watch.facts(recorded.spreads(results)),
    ))  # fmt: skip
    return 0


def show(results: Sequence[dict[str, Any]], found: dict[str, dict[str, float]], costs: dict[str, Any]) -> None:
    """Print the problems with the largest regrets, the regrets of each kind of problem, and the times of a choice."""
    print("Largest regrets:")
    for row in sorted(results, key=lambda row: -row["regret"])[:15]:
        shape = f"{row['batch']} × {row['m']} × {row['n']} × {row['k']}"
        heat = "cold" if row["cold"] else "hot"
        times = ", ".join(f"{name} {1e6 * seconds:.1f} µs" for name, seconds in row["times"].items())
        print(f"  {row['regret']:6.2f}  {shape:26} {row['dtype']:9} {row['place']:9} {heat:4} {row['chosen']}: {times}")
    print(f"\n{'regret':26} {'problems':>8} {'median':>8} {'95 %':>8} {'worst':>8}")
    for name, x in found.items():
        print(f"{name:26} {x['count']:8} {x['median']:8.3f} {x['p95']:8.3f} {x['worst']:8.3f}")
    new = costs["new"]
    resident = f", {1e6 * costs['new_resident']['median']:.1f} µs on a device" if "new_resident" in costs else ""
    print(
        f"\nA choice: {1e6 * new['median']:.1f} µs for a new shape (95 %: {1e6 * new['p95']:.1f} µs){resident}, "
        f"at most {1e6 * costs['repeated']:.2f} µs for a known one.\n"
        f"A process's first product of 16³: {1e3 * costs['first_call']:.2f} ms after an import of "
        f"{1e3 * costs['import']:.0f} ms."
    )


if __name__ == "__main__":
    sys.exit(main())
