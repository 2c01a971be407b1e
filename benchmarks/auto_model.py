"""Replay recorded runs of auto_regret.py with the present cost model: how good would its choices have been?

    python benchmarks/auto_model.py FILE [FILE ...] [--probe FILE] [--worst 10]

The FILEs were written by `auto_regret.py --json`. The recording machine is not needed. For each recorded product of
device arrays, the script ranks all kernels as dispatch ranks them on that device. Among the kernels that were timed,
the kernel with the shortest predicted time counts as chosen.

    regret = time of the kernel with the shortest predicted time ÷ time of the fastest kernel

Times are the recorded medians. If several files contain a product, each file gives the ratio of a kernel's time to the
file's best time, and the median of these ratios counts. This removes the state of the host in one run, which affects
launches. Products with a single contestant are skipped, because they show nothing. Times of CUDA kernels are predicted
from the device's limits, which the files contain. Times of OpenCL kernels need measurements of the recording machine.
Pass them as --probe: an entry probe-* of the machine's cache, or the file `probe` next to the recorded runs.
Calibration by `gemm tune` is not applied.

The error of the model is the predicted time ÷ the measured time of a kernel. The table shows the median of the errors,
and the factor that two thirds of the errors stay within. Only kernels that took more than --least µs count.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from auto_regret import figures
from peers.shapes import DTYPES, dtype_of

from gemm.catalog import KERNELS
from gemm.cli.arguments import positive
from gemm.core.problem import Candidate, Device, Problem
from gemm.select import candidates, cost, probe


@dataclass
class Timed:
    """A product on a device: the kernels' times in each run, and the kernel that auto chose in the last run."""

    device: Device
    problem: Problem
    cold: bool
    runs: list[dict[str, float]] = field(default_factory=list)
    chosen: str = ""

    @cached_property
    def seconds(self) -> dict[str, float]:
        """{kernel: its time in seconds}.

        In each run, a kernel's time is divided by the run's shortest time. The result is the median of these ratios,
        times the median of the runs' shortest times.
        """
        ratios: dict[str, list[float]] = defaultdict(list)
        for run in self.runs:
            for name, seconds in run.items():
                ratios[name].append(seconds / min(run.values()))
        best = statistics.median(min(run.values()) for run in self.runs)
        return {name: best * statistics.median(some) for name, some in ratios.items()}

    def __str__(self) -> str:
        p = self.problem
        types = p.inputs[0] if p.inputs else p.dtype
        return f"{p.batch} × {p.m} × {p.n} × {p.k} {types} {'cold' if self.cold else 'hot'}"


def read(files: Iterable[Path]) -> list[Timed]:
    """The products of device arrays for which at least two kernels were timed.

    Raises ValueError if auto_regret.py did not write one of the files.
    """
    found: dict[tuple[str, Problem, bool], Timed] = {}
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("schema") != "gemm-auto-regret/1":
            raise ValueError(f"{file} was not written by auto_regret.py")
        devices = {facts["key"]: _device(facts) for facts in document["devices"]}
        for row in document["results"]:
            if row["place"] == "host" or len(row["times"]) < 2:
                continue
            device, problem = devices[row["place"]], _problem(row)
            timed = found.setdefault((device.key, problem, row["cold"]), Timed(device, problem, row["cold"]))
            timed.chosen = row["chosen"]
            timed.runs.append(row["times"])
    return list(found.values())


def _device(facts: dict[str, Any]) -> Device:
    return Device(**{**facts, "features": frozenset(facts["features"])})


def _problem(row: dict[str, Any]) -> Problem:
    a, b, out = (dtype_of(name).name for name in DTYPES[row["dtype"]])
    inputs = (a, b) if a != out else ()
    return Problem(out, row["m"], row["n"], row["k"], row["batch"], inputs=inputs, device=row["place"])


def weighed(timed: Timed, facts: probe.Facts | None) -> Iterator[Candidate]:
    """The kernels that dispatch can choose on the device, with their predicted times there."""
    device, problem = timed.device, timed.problem
    for row in KERNELS:
        if row.backend != device.backend or not row.chosen_on(device.kind, device.features):
            continue
        if cost.modelled(row, device) or (facts and facts.rates(row, device)):
            found = candidates.RowOnDevice(row, device, problem, facts, trusting=True).weigh(problem)
            if found.seconds is not None:
                yield found


def main() -> int:
    """Read the files, predict, print. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--probe", type=Path, metavar="FILE", help="an entry probe-* of the recording machine's cache")
    parser.add_argument("--worst", type=positive, default=10, help="number of products to list, the worst first")
    parser.add_argument("--least", type=float, default=30.0, metavar="µs", help="shortest time whose error counts")
    options = parser.parse_args()
    try:
        products = read(options.files)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    facts = None
    if options.probe:
        blob = options.probe.read_bytes()
        facts = probe.Facts(json.loads(blob[blob.index(b"[{") :]))  # skip the cache entry's header
    replayed: list[tuple[float, float, Timed, list[Candidate]]] = []
    for timed in products:
        field = sorted(weighed(timed, facts), key=lambda c: c.seconds or 0.0)
        known = [c for c in field if c.kernel.name in timed.seconds]
        if known:
            best = min(timed.seconds.values())
            then = timed.seconds[timed.chosen] / best
            replayed.append((timed.seconds[known[0].kernel.name] / best, then, timed, known))
    show(replayed, options.worst, 1e-6 * options.least)
    return 0


def show(replayed: list[tuple[float, float, Timed, list[Candidate]]], worst: int, least: float) -> None:
    """Print the `worst` products with the largest regrets; then, for each device, its regrets and the model's errors.

    least: the error of a kernel counts if the kernel took more than `least` seconds.
    """
    for now, then, timed, known in sorted(replayed, key=lambda row: -row[0])[:worst]:
        print(f"{now:5.2f}, recorded {then:.2f}: {timed} on {timed.device.key}")
        for c in known:
            seconds = timed.seconds[c.kernel.name]
            print(f"        {c.kernel.name:44} {1e6 * seconds:9.1f} µs, predicted {1e6 * (c.seconds or 0.0):9.1f}")
    print(f"\n{'regret':22} {'products':>8} {'median':>8} {'95 %':>8} {'worst':>8} {'error':>8} {'within':>8}")
    for key in dict.fromkeys(timed.device.key for _, _, timed, _ in replayed):
        rows = [row for row in replayed if row[2].device.key == key]
        errors = [
            math.log(c.seconds / timed.seconds[c.kernel.name])
            for _, _, timed, known in rows
            for c in known
            if timed.seconds[c.kernel.name] > least and c.seconds
        ]
        for name, values in ("recorded", [row[1] for row in rows]), ("model", [row[0] for row in rows]):
            x = figures(values)
            print(f"{f'{key}, {name}':22} {x['count']:8} {x['median']:8.3f} {x['p95']:8.3f} {x['worst']:8.3f}", end="")
            if name == "model" and errors:
                spread = sorted(abs(x) for x in errors)[2 * len(errors) // 3 - 1]
                print(f" {math.exp(statistics.median(errors)):8.2f} {math.exp(spread):8.2f}", end="")
            print()


if __name__ == "__main__":
    sys.exit(main())
