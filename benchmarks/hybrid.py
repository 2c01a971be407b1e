"""Measure the gain of backend="hybrid": the time of the faster device alone ÷ the time of both, for host squares.

    python benchmarks/hybrid.py [--limit 90] [--rounds 5] [--sample 0.02] [--sizes 1024,…] [--dtypes float32,…]
                                [--json FILE]

Three contestants multiply the same n × n matrices: the CPU, the fastest other device (CUDA or OpenCL), and both with
backend="hybrid". All run in one process, interleaved, in rotating order; times are medians. The hybrid result is
compared with the CPU's result; integers must be equal.

    ratio = the CPU's median time ÷ the device's median time; marked if the two are within a factor of 10
    gain  = the shorter of these two median times ÷ hybrid's median time; near 1 if hybrid used only one of the two

The products with a predicted ratio within this factor of 10 come first, the shortest ones first. Next to a fast GPU the
CPU has such a ratio in two cases: transfers take longer than the arithmetic, or the CPU has its own units for small
types (AMX: int8, and bfloat16 with precision="high"). Products that would not finish within --limit seconds, by their
predicted times, are skipped and listed. If the device computes on the CPU's own cores, there is nothing to gain: hybrid
then uses only the faster of the two. A type is a name, or name:precision.

The JSON document ("gemm-hybrid/2", seconds) contains

    date, command, commit, versions, machine, devices, rounds, sample_s, limit_s, within (10)
    results     [{n, dtype, precision, device, times {cpu, device, hybrid}, spread, rows {device key: rows of the
                  result}, ratio, within (whether the ratio is within the factor), gain}]
    left_out    [{n, dtype, precision, why}]
    quiet       the load by other processes during the run
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from peers.duel import compete
from peers.exact import unit_roundoff
from peers.ours import entered
from peers.shapes import DTYPES as TYPES
from peers.shapes import Shape, dtype_of, operands

import gemm
from gemm import execute
from gemm.bench.contest import Watch
from gemm.bench.peers import looped
from gemm.bench.verdicts import spread
from gemm.catalog import HOST_BACKENDS
from gemm.cli.arguments import listed, positive
from gemm.core.problem import Problem, Split
from gemm.select import choice, probe

SIZES = (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
DTYPES = ("float32", "float64", "int32", "int8", "complex64", "complex128", "bfloat16", "bfloat16:high")
WITHIN = 10.0
"""The largest factor between the times of two devices with which the slower device may still help."""


class Product:
    """A product to measure.

    Attributes:
        device: the key of the device with the shortest predicted time among all devices except the CPU.
        ratio: the predicted time of the CPU ÷ that of the device.
        needed: seconds that the contest may take, by predicted times.
        why_not: why there is no contest, or "".
    """

    def __init__(self, n: int, name: str, options: argparse.Namespace) -> None:
        self.n, (self.dtype, _, precision) = n, name.partition(":")
        self.precision = precision or "highest"
        self.device, self.ratio, self.needed, self.why_not = "", math.inf, 0.0, ""
        a, b, result = TYPES[self.dtype]
        try:
            for each in (a, b, result):
                dtype_of(each)
        except ImportError as error:
            self.why_not = str(error)
            return
        inputs = () if a == b == result else (a, b)
        self.problem = Problem(result, n, n, n, precision=self.precision, inputs=inputs)
        weighed = [each for each in choice.candidates(self.problem, "hybrid") if each.seconds]
        cpu = min((each.seconds or 0.0 for each in weighed if each.kernel.backend == "cpu"), default=math.inf)
        others = [each for each in weighed if each.kernel.backend not in HOST_BACKENDS]
        if not others:
            self.why_not = f"there is no device besides the CPU for {self.dtype}"
            return
        best = min(others, key=lambda each: each.seconds or 0.0)
        self.device, other = best.device.key, best.seconds or 0.0
        self.ratio = cpu / other
        times = options.rounds + 3  # the number of calls of each contestant
        # The last two terms are for making the operands and comparing the results.
        self.needed = times * (cpu + other + min(cpu, other)) + 1e-7 * n * n + 1.0

    @property
    def facts(self) -> dict[str, Any]:
        """The identity of the product in the document."""
        return {"n": self.n, "dtype": self.dtype, "precision": self.precision}

    def contest(self, options: argparse.Namespace) -> dict[str, Any]:
        """Time the product. Returns a row of the document."""
        a, b, out = operands(Shape(self.n, self.n, self.n), self.dtype)
        entries = []
        for key, name in (("cpu", "cpu"), ("device", self.device), ("hybrid", "hybrid")):
            own = out.copy()
            call = partial(gemm.gemm, a, b, out=own, backend=name, precision=self.precision, dtype=own.dtype)
            entries.append(entered(key, looped(call), own))
        compete(entries, options.rounds, options.sample)
        cpu, _, both = entries
        if not agree(both.out, cpu.out, self.n):
            raise SystemExit(f"hybrid computes {self.n} × {self.n} × {self.n} {label(self.facts)} wrongly")
        times = {entry.key: entry.median for entry in entries}
        chosen = execute.choose(self.problem, "hybrid")
        sides = chosen.sides if isinstance(chosen, Split) else (chosen,)
        ratio = times["cpu"] / times["device"]
        return {
            **self.facts, "device": self.device, "times": times,
            "spread": {entry.key: spread(entry.seconds) for entry in entries},
            "rows": {side.device.key: side.problem.m for side in sides},
            "ratio": ratio, "within": within(ratio), "gain": min(times["cpu"], times["device"]) / times["hybrid"],
        }  # fmt: skip


def agree(found: np.ndarray, right: np.ndarray, k: int) -> bool:
    """Whether two results agree within rounding; integers must be equal.

    Each element is a sum of k terms with a magnitude of about 1, added in any order.
    """
    if found.dtype.kind in "iu":
        return np.array_equal(found, right)
    unit, sums = unit_roundoff(found.dtype), found.dtype
    if found.dtype.name == "bfloat16":
        sums = np.dtype(np.float32)
        found, right = found.astype(sums), right.astype(sums)
    return np.allclose(found, right, rtol=4 * unit, atol=8 * k * unit_roundoff(sums))


def within(ratio: float) -> bool:
    """Whether two times with this ratio are close enough for both devices to help."""
    return 1 / WITHIN <= ratio <= WITHIN


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=5, sample=0.02)
    parser.add_argument("--limit", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--sizes", type=listed, default=[str(n) for n in SIZES], metavar="N[,N…]")
    parser.add_argument("--dtypes", type=listed, default=list(DTYPES), metavar="NAME[,NAME…]")
    return parser


def main() -> int:
    """Time the products, print and write the results."""
    end, options = time.monotonic(), arguments().parse_args()
    end += options.limit
    probe.facts()  # choices need the probe's results, which a process otherwise gets at its first large product
    watch, results, left_out, keys = Watch(), [], [], set()
    products = [Product(positive(n), dtype, options) for n in options.sizes for dtype in options.dtypes]
    if all(product.why_not for product in products):
        raise SystemExit("; ".join(dict.fromkeys(product.why_not for product in products)) + "; see: gemm info")
    heads = f"{'cpu, ms':>9} {'device':>9} {'hybrid':>9} {'cpu ÷ dev':>10} {'gain':>6}  rows"
    print(f"{'product':>20} {'device':9} {heads}")
    for product in sorted(products, key=lambda product: (not within(product.ratio), product.needed)):
        why_not = product.why_not
        if not why_not and time.monotonic() + product.needed > end:
            why_not = "it would end beyond --limit"
        if why_not:
            left_out.append({**product.facts, "why": why_not})
            continue
        keys.add(product.device)
        results.append(product.contest(options))
        show(results[-1])
    if near := [row["gain"] for row in results if row["within"]]:
        gains = f"{min(near):.2f} to {max(near):.2f}, median {statistics.median(near):.2f}"
        print(f"* within {WITHIN:g} times of each other: {len(near)} of {len(results)} products, gain {gains}")
    for why in dict.fromkeys(row["why"] for row in left_out):
        names = ", ".join(f"{row['n']} {label(row)}" for row in left_out if row["why"] == why)
        print(f"left out, as {why}: {names}")
    recorded.save(options.json, recorded.document(
        "gemm-hybrid/2", rounds=options.rounds, sample_s=options.sample, limit_s=options.limit, within=WITHIN,
        devices=[recorded.device_of(key, key.partition(":")[0]) for key in sorted(keys)], results=results,
        left_out=left_out, quiet=watch.facts(recorded.spreads(results)),
    ))  # fmt: skip
    return 0


def label(row: dict[str, Any]) -> str:
    """The type in the form of --dtypes."""
    return str(row["dtype"]) if row["precision"] == "highest" else f"{row['dtype']}:{row['precision']}"


def show(row: dict[str, Any]) -> None:
    """Print a line of the table."""
    times = " ".join(f"{1e3 * row['times'][key]:9.2f}" for key in ("cpu", "device", "hybrid"))
    rows = ", ".join(f"{count} on {key}" for key, count in row["rows"].items())
    ratio = f"{row['ratio']:9.2f}{'*' if row['within'] else ' '}"
    print(f"{row['n']:>6} {label(row):>13} {row['device']:9} {times} {ratio} {row['gain']:6.2f}  {rows}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
