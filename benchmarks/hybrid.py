"""What backend="hybrid" gains: the time of the better side alone ÷ that of both at once, for squares of host arrays.

    python benchmarks/hybrid.py [--limit 90] [--rounds 5] [--sample 0.02] [--sizes 1024,…] [--dtypes float32,float64]
                                [--json FILE]

Three contestants multiply the same n × n matrices: the CPU, the other device that would do so soonest (CUDA or OpenCL),
and both as backend="hybrid" cuts them, after so many products that its cut has followed measured times. All in one
process, interleaved, in rotating order; times are medians, and the hybrid result is compared with the CPU's.

    gain = least median time of the two alone ÷ hybrid's; where hybrid chose one of them, it is near 1

Products that would not be done within --limit seconds, by their predicted times, are left out, and named. A device that
computes on the CPU's own cores has nothing to gain; then hybrid is the better one alone. The JSON document
("gemm-hybrid/1", seconds) holds

    date, command, commit, versions, machine, devices, rounds, sample_s, limit_s
    results     [{n, dtype, device, times {cpu, device, hybrid}, spread, rows {device key: rows of the result}, gain}]
    left_out    [{n, dtype}]
    quiet       what others did on the machine meanwhile
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.duel import Entry, compete, spread
from peers.shapes import Shape, operands

import gemm
from gemm import dispatch, report
from gemm.cli.arguments import listed, positive, save_json
from gemm.compare.peers.base import Loop, Peer
from gemm.compare.quiet import Watch
from gemm.dispatch import correction, probe, registry
from gemm.dispatch.entrants import HOST_BACKENDS
from gemm.dispatch.plan import Split
from gemm.problem import Problem

SIZES = (1024, 1536, 2048, 3072, 4096, 6144, 8192)
DTYPES = ("float32", "float64")
WARM = 3 * (1 + correction.TIMES)
"""Products after which hybrid has settled on what was measured."""


class Side(Peer):
    """gemm by one backend."""

    about = "gemm with backend= one name"

    def __init__(self, name: str) -> None:
        self.name = name

    def set_threads(self, count: int) -> None:
        gemm.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        call = partial(gemm.gemm, a, b, out=out, backend=self.name)

        def loop(times: int) -> None:
            for _ in range(times):
                call()

        return loop


def fastest(problem: Problem) -> str | None:
    """The key of the device, other than the CPU, that would compute `problem` soonest; None: there is none."""
    able = [c for c in dispatch.candidates(problem, "hybrid") if c.seconds and c.kernel.backend not in HOST_BACKENDS]
    return min(able, key=lambda c: c.seconds or 0.0).device.key if able else None


def contest(n: int, dtype: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """The result of one product, a row of the document."""
    a, b, out = operands(Shape(n, n, n), dtype)
    entries = []
    for key, name in (("cpu", "cpu"), ("device", device), ("hybrid", "hybrid")):
        peer, own = Side(name), out.copy()
        entry = Entry(key, peer, peer.prepare(a, b, own), own, gemm.get_num_threads(), 0.0)
        entry.loop(WARM if key == "hybrid" else 1)
        entry.first = entry.timed()
        entries.append(entry)
    compete(entries, options.rounds, options.sample)
    cpu, _, both = entries
    tolerance = 4 * n * float(np.finfo(out.dtype).eps)
    if not np.allclose(both.out, cpu.out, rtol=tolerance, atol=tolerance * n):
        raise SystemExit(f"hybrid computes {n} × {n} × {n} {dtype} wrongly")
    times = {entry.key: entry.median for entry in entries}
    chosen = dispatch.choose(Problem(dtype, n, n, n), "hybrid")
    sides = chosen.sides if isinstance(chosen, Split) else (chosen,)
    return {
        "n": n, "dtype": dtype, "device": device, "times": times,
        "spread": {entry.key: spread(entry.seconds) for entry in entries},
        "rows": {side.device.key: side.problem.m for side in sides},
        "gain": min(times["cpu"], times["device"]) / times["hybrid"],
    }  # fmt: skip


def needed(problem: Problem, device: str, options: argparse.Namespace) -> float:
    """Seconds that the product's contest may take, by predicted times."""
    cpu, other = (dispatch.choose(problem, name).seconds for name in ("cpu", device))
    return (options.rounds + 3) * (cpu + other) + (WARM + options.rounds + 3) * min(cpu, other) + 1.0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--sample", type=float, default=0.02, metavar="SECONDS")
    parser.add_argument("--sizes", type=listed, default=[str(n) for n in SIZES], metavar="N[,N…]")
    parser.add_argument("--dtypes", type=listed, default=list(DTYPES), metavar="NAME[,NAME…]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main() -> int:
    """Time, print, write."""
    end, options = time.monotonic(), arguments().parse_args()
    end += options.limit
    probe.facts(run=True)  # as after any first large product
    watch, results, left_out, keys = Watch(), [], [], set()
    print(f"{'product':>16} {'device':9} {'cpu, ms':>9} {'device':>9} {'hybrid':>9} {'gain':>6}  rows")
    for n, dtype in ((positive(size), dtype) for size in options.sizes for dtype in options.dtypes):
        problem = Problem(dtype, n, n, n)
        device = fastest(problem)
        if device is None:
            raise SystemExit(f"there is no device beside the CPU for {dtype}; see: gemm info")
        keys.add(device)
        if time.monotonic() + needed(problem, device, options) > end:
            left_out.append({"n": n, "dtype": dtype})
            continue
        results.append(contest(n, dtype, device, options))
        show(results[-1])
    if left_out:
        names = ", ".join(f"{row['n']} {row['dtype']}" for row in left_out)
        print(f"left out, as they would end beyond --limit: {names}")
    if options.json:
        devices = [device for key in sorted(keys) for device in registry.backend(key.partition(":")[0]).devices()]
        save_json(options.json, {
            "schema": "gemm-hybrid/1", **report.head(), "rounds": options.rounds, "sample_s": options.sample,
            "limit_s": options.limit, "devices": [report.device_facts(x) for x in devices if x.key in keys],
            "results": results, "left_out": left_out,
            "quiet": watch.facts([s for row in results for s in row["spread"].values()]),
        })  # fmt: skip
    return 0


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    times = " ".join(f"{1e3 * row['times'][key]:9.2f}" for key in ("cpu", "device", "hybrid"))
    rows = ", ".join(f"{count} on {key}" for key, count in row["rows"].items())
    print(f"{row['n']:>6} {row['dtype']:>9} {row['device']:9} {times} {row['gain']:6.2f}  {rows}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
