"""How right is backend="auto": the time of the backend it chooses ÷ that of the best one, over random products.

    python benchmarks/auto_regret.py [--problems 300] [--rounds 6] [--sample 0.002] [--seed 1] [--limit 3600]
                                      [--json FILE]

A problem is drawn from --seed: m, n and k log-uniform in 1 … 8192, one of the types in TYPES, in a quarter of the cases
a batch, operands on the host or (where there is such a device, as often) on a device, hot (the same arrays again and
again) or cold (as many copies in turn as no cache holds). What is beyond --work multiply-adds or --memory bytes is
drawn again; after --limit seconds no further one is begun. The problems of a machine without devices of their own
memory are all on the host.

Of a host problem every backend is timed that can compute it: each device by the kernel that dispatch chooses there,
NumPy by np.matmul. Of a resident one those kernels are, eight at most, that dispatch predicts to take up to --factor
times the least time, as the backend is given by where the operands are. All in one process, interleaved, in rotating
order, each round long enough to be measured; times are medians. A contestant whose first calls take over three times
the best's is not timed further, one that is predicted to take thirty times what auto chose (NumPy's loops: as long) not
at all.

What auto chooses for a hot problem is asked after some products of it, in which it may learn (GEMM_ADAPT); for a cold
one at once.

    regret = median time of what auto chose ÷ that of the best one; 1 where auto chose that one

The best one is found in half of the rounds, and the ratio is of the other half: the least of many noisy medians is
less than any of them is worth. A ratio below 1, of contestants that noise alone tells apart, counts as 1.

Besides: what a choice costs for a shape that is new (in host memory, and on a device) and one that is known, and a
process's first small product. The
JSON document ("gemm-auto-regret/1", seconds) holds

    date, command, commit, versions, machine, devices, problems, rounds, sample_s, seed
    results     [{m, n, k, batch, dtype, place, cold, chosen, best, regret, times {contestant: median}, spread}]
    regret      {all, and each kind of problem: {count, median, p95, worst}}
    decision    {new {median, p95, worst}, first_new, repeated, first_call, import}, and where arrays lay on devices
                new_resident
    quiet       what others did on the machine meanwhile
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

from peers.duel import Entry, compete, spread
from peers.ours import Engine, PlainCall
from peers.shapes import DTYPES, Shape, operands

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.bench.peers.base import Loop, Peer
from gemm.bench.peers.native import native
from gemm.bench.quiet import Watch
from gemm.cli import text
from gemm.cli.arguments import positive, save_json
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, Problem
from gemm.frontend import report
from gemm.frontend.arguments import Given, Options
from gemm.frontend.call import normalise
from gemm.select import calibration, probe

TYPES = {"float32": 8, "float64": 4, "float16": 2, "bfloat16": 2, "int8": 2, "complex64": 1, "int32": 1}
"""Element types, and how often each is drawn."""
BLAS = ("float32", "float64", "complex64")
"""Types that NumPy multiplies by its BLAS, others by loops, for which no prediction is known."""
LARGEST = 8192
BATCHED, MOST_BATCH = 0.25, 512
COLD_BYTES = 256 << 20
"""Bytes of operands that no cache holds."""
HOPELESS = 3.0
"""Times the best first call from which a contestant is not timed further."""
MOST = 8
"""Kernels of a resident problem that are timed: those that are predicted to be the soonest."""
FAR = 30.0
"""Times the prediction for what auto chose from which a contestant is not called at all: NumPy's loops take minutes."""


@dataclass(frozen=True)
class Drawn:
    """A random problem: what is multiplied, where it lies ("host" or a device's key), and whether caches are cold."""

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
        """Multiply-adds."""
        return self.shape.m * self.shape.n * self.shape.k * max(1, self.shape.batch)

    def __str__(self) -> str:
        batch = f"{self.shape.batch} × " if self.shape.batch else ""
        heat = "cold" if self.cold else "hot"
        return f"{batch}{self.shape.m} × {self.shape.n} × {self.shape.k} {self.dtype} on {self.place}, {heat}"


def draw(count: int, seed: int, places: Sequence[str], work: float, memory: float) -> list[Drawn]:
    """So many problems; the same for the same arguments."""
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


class Turns(Peer):
    """Calls in turn, each on operands of its own; `finish` waits for what they have enqueued."""

    name, about = "turns", "calls on several copies of the operands in turn"

    def __init__(self, calls: Sequence[Callable[[], Any]], finish: Callable[[], None] | None) -> None:
        self._calls, self._finish = cycle(calls), finish

    def set_threads(self, count: int) -> None:
        gemm.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        def loop(times: int) -> None:
            for _, call in zip(range(times), self._calls, strict=False):
                call()
            if self._finish is not None:
                self._finish()

        return loop


Operands = tuple[Any, Any, Any]


def contestants(
    drawn: Drawn, sets: Sequence[Operands], factor: float
) -> tuple[str, dict[str, list[Callable[[], Any]]]]:
    """Whom auto chooses, and everyone's calls, one for each set of operands."""
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
                continue  # it cannot compute such a product
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
    """Every device of the machine, NumPy's and the CPU's among them."""
    found: list[Device] = []
    for name in gemm.backends():
        try:
            found += probe.devices(name)
        except BackendUnavailable:
            continue
    return found


def own_memory(device: Device) -> Backend | None:
    """The device's backend, if operands can lie in memory of its own."""
    backend = registry.backend(device.backend)
    try:
        backend.to_device(np.ones((8, 8), np.float32), device)
    except (TypeError, KernelFailed):
        return None
    return backend


def contest(
    drawn: Drawn, options: argparse.Namespace, homes: dict[str, tuple[Backend, Device]]
) -> dict[str, Any] | None:
    """The result of one problem, a row of the document; None if nobody or only one can compute it."""
    a, b, out = operands(drawn.shape, drawn.dtype)
    copies = max(2, -(-COLD_BYTES // drawn.bytes)) if drawn.cold else 1
    copies = max(1, min(copies, 4096, int(options.memory // drawn.bytes)))
    sets: list[Operands] = [(a, b, out), *((a.copy(), b.copy(), out.copy()) for _ in range(copies - 1))]
    finish = None
    if drawn.place != "host":
        backend, device = homes[drawn.place]
        sets = [tuple(backend.to_device(x, device).owner for x in each) for each in sets]
        finish = partial(backend.synchronize, device)
    threads = gemm.get_num_threads()
    try:
        picked, calls = contestants(drawn, sets, options.factor)
    except TypeError:  # a type that this device's kernels do not multiply
        return None
    entries = []
    for name, each in calls.items():
        peer = Turns(each, finish)
        loop = peer.prepare(a, b, out)
        loop(1)
        entry = Entry(name, peer, loop, out, threads, 0.0)
        entry.first = entry.timed()
        entries.append(entry)
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
        "spread": {entry.key: spread(entry.seconds) for entry in entries},
    }  # fmt: skip


def summary(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of all problems and of each kind: {count, median, p95, worst}."""
    kinds = {"all": results}
    for key in ("place", "dtype", "cold", "chosen"):
        for value in sorted({str(row[key]) for row in results}):
            kinds[f"{key} {value}"] = [row for row in results if str(row[key]) == value]
    kinds["batched"] = [row for row in results if row["batch"] > 1]
    return {name: figures([row["regret"] for row in rows]) for name, rows in kinds.items() if rows}


def figures(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile (the least value that 95 of 100 do not exceed) and the greatest."""
    ordered = sorted(values)
    at = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return {"count": len(ordered), "median": statistics.median(ordered), "p95": ordered[at], "worst": ordered[-1]}


def decisions(problems: Sequence[Drawn]) -> dict[str, Any]:
    """Seconds that a choice takes: of shapes never seen; of known ones, all that Python adds to a product of 8³."""
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
    """Seconds that choices of kernels for resident products take, each of a shape never seen; none: {}.

    Asked after the kernels were verified that they choose.
    """
    where = {device.key: device for device in devices()}
    asked = {}
    for drawn in problems:
        if drawn.place in where:
            a, b, c = DTYPES[drawn.dtype]
            problem = Problem(c, *drawn.shape[:3], max(1, drawn.shape.batch), device=drawn.place,
                              inputs=() if a == b == c else (a, b))  # fmt: skip
            with suppress(BackendUnavailable, KernelFailed, TypeError, ValueError):
                execute.choose(problem, held_by=where[drawn.place])
                asked[problem] = where[drawn.place]
    execute.forget()
    new = []
    for problem, device in asked.items():
        start = time.perf_counter()
        execute.choose(problem, held_by=device)
        new.append(time.perf_counter() - start)
    return figures(new) if new else {}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=positive, default=300)
    parser.add_argument("--rounds", type=positive, default=6)
    parser.add_argument("--sample", type=float, default=0.002, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=float, default=1e11, help="multiply-adds of a problem at most")
    parser.add_argument("--memory", type=float, default=2e9, help="bytes of a problem's operands at most, copies too")
    parser.add_argument("--factor", type=float, default=2.0, help="of resident problems: times the least prediction")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main() -> int:
    """Draw, time, print, write."""
    options = arguments().parse_args()
    probe.facts(run=True)  # as after any first large product
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
    if options.json:
        save_json(options.json, {
            "schema": "gemm-auto-regret/1", **report.head(), "devices": [report.device_facts(d) for d in devices()],
            "problems": len(results), "rounds": options.rounds, "sample_s": options.sample, "seed": options.seed,
            "results": results, "regret": found, "decision": costs,
            "quiet": watch.facts([s for row in results for s in row["spread"].values()]),
        })  # fmt: skip
    return 0


def show(results: Sequence[dict[str, Any]], found: dict[str, dict[str, float]], costs: dict[str, Any]) -> None:
    """The tables."""
    print("Where auto lost most:")
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
