"""Measure how products of dask arrays scale over worker processes, compared with dask's own matmul on NumPy.

    python benchmarks/scale.py [--workers 1,2] [--size 4096] [--dtype float32] [--rounds 5] [--json FILE]

The operands are square random matrices in the memory of the workers. Their chunks are those that gemm.dask chooses for
the largest number of workers. The result stays in the workers' memory. Strong scaling uses the same product on more
workers. Weak scaling uses the size --size · workers^(1/3), which gives each worker the same work. Every worker has one
thread; dask sets this for NumPy's BLAS as well. The time of a contestant's call includes building the graph and
computing all blocks:

    gemm          gemm.dask.matmul(a, b, contraction="sum"), with the same tasks as dask's matmul
    gemm, auto    gemm.dask.matmul(a, b)
    gemm, chain   gemm.dask.matmul(a, b, reproducible=True, contraction="chain")
    dask          da.matmul(a, b), whose tasks call NumPy

The contestants alternate, in rotating order; times are medians. A random projection checks each result. The script also
measures the constants of benchmarks/scale_model.py.

The JSON document ("gemm-scale/1") contains

    date, command, commit, versions, machine
    constants   rate {dtype: FLOP/s per thread}, task {scheduler: seconds}, bandwidth: bytes/s between two workers
    results     [{scaling, workers, size, side, dtype, seconds {contestant: median}, ratios {contestant: dask ÷ it},
                spread, gflops, efficiency {contestant: relative to the smallest number of workers}}]
    quiet       the load by other processes during the run
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

import gemm
import gemm.dask
from gemm.bench.contest import Watch
from gemm.bench.verdicts import spread
from gemm.cli.arguments import positive
from gemm.core import text
from gemm.dask.chunks import Cut, Limits, choose, least_side

CONTESTANTS: dict[str, Callable[[Any, Any], Any]] = {
    "gemm": partial(gemm.dask.matmul, contraction="sum", chunks=None), "gemm, auto": gemm.dask.matmul,
    "gemm, chain": partial(gemm.dask.matmul, reproducible=True, contraction="chain", chunks=None), "dask": da.matmul,
}  # fmt: skip


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """A client of a local cluster of `workers` processes with one thread each."""
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as made, distributed.Client(made) as client:
        client.wait_for_workers(workers)
        yield client


def operands(size: int, side: int, dtype: str) -> list[Any]:
    """Two random matrices in the memory of the workers."""
    rng = da.random.default_rng(size)
    made = dask.persist(*(rng.random((size, size), chunks=side, dtype=dtype) for _ in range(2)))
    distributed.wait(made)
    return list(made)


def check(a: Any, b: Any, c: Any, dtype: str) -> None:
    """Raise ArithmeticError unless c is a · b, tested with a random vector."""
    size = a.shape[0]
    vector = np.random.default_rng(0).choice([-1.0, 1.0], size)
    left, right = dask.compute(c.astype(float) @ vector, a.astype(float) @ (b.astype(float) @ vector))
    # The elements of c are at most `size`, and a row has `size` elements with random signs.
    bound = (size + 2) * np.finfo(dtype).eps * size * np.sqrt(size)
    if not abs(left - right).max() <= bound:
        raise ArithmeticError(f"the result is off by {abs(left - right).max():.3g}; {bound:.3g} are allowed")


def contest(size: int, side: int, dtype: str, rounds: int) -> dict[str, list[float]]:
    """Time all contestants. Return {contestant: its seconds in each round}.

    Raises ArithmeticError if a result of the first, untimed round is wrong.
    """
    a, b = operands(size, side, dtype)
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    names = list(CONTESTANTS)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            product = CONTESTANTS[name](a, b).persist()
            distributed.wait(product)
            if turn:
                seconds[name].append(time.perf_counter() - start)
            else:  # the first round warms up, and its results are checked
                check(a, b, product, dtype)
            del product
    return seconds


def rates() -> dict[str, float]:
    """{dtype: FLOP/s of one thread}, for a product whose size suits the caches."""
    found, n = {}, 1536
    gemm.set_num_threads(1)
    for dtype in ("float32", "float64"):
        a = np.random.default_rng(1).random((n, n)).astype(dtype)
        out, samples = np.empty_like(a), []
        for _ in range(6):
            start = time.perf_counter()
            gemm.gemm(a, a, out=out, backend="cpu")
            samples.append(time.perf_counter() - start)
        found[dtype] = 2 * n**3 / statistics.median(samples)
    gemm.set_num_threads(None)
    return found


def _nothing(number: int) -> int:
    return number


def task_seconds(count: int = 2000) -> dict[str, float]:
    """Seconds per empty task, with dask's threads ("local") and with two worker processes ("distributed")."""
    graph = {("nothing", number): (_nothing, number) for number in range(count)}
    start = time.perf_counter()
    dask.threaded.get(graph, list(graph))
    found = {"local": (time.perf_counter() - start) / count}
    with cluster(2) as client:
        client.gather(client.map(_nothing, range(count), pure=False))
        start = time.perf_counter()
        distributed.wait(client.map(_nothing, range(count), pure=False))
        found["distributed"] = (time.perf_counter() - start) / count
    return found


def bandwidth(megabytes: int = 64, count: int = 8) -> float:
    """Bytes/s of blocks that one worker fetches from another through this machine's loopback interface."""
    with cluster(2) as client:
        here, there = client.scheduler_info()["workers"]
        blocks = [client.submit(np.ones, megabytes << 17, workers=[here], pure=False) for _ in range(count)]
        distributed.wait(blocks)
        start = time.perf_counter()
        distributed.wait([client.submit(len, block, workers=[there], pure=False) for block in blocks])
        return count * (megabytes << 20) / (time.perf_counter() - start)


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=5)
    parser.add_argument("--workers", type=recorded.counts, default="1,2", help="numbers of processes")
    parser.add_argument("--size", type=positive, default=4096, help="rows of the operands")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    return parser


def main() -> int:
    """Time the contestants, print and write the results."""
    options = arguments().parse_args()
    workers = options.workers
    watch, results = Watch(), []
    constants = {"rate": rates(), "task": task_seconds(), "bandwidth": bandwidth()}
    first: dict[tuple[str, str], tuple[int, float]] = {}
    for count in workers:
        with cluster(count):
            for scaling, size in (("strong", options.size), ("weak", round(options.size * count ** (1 / 3)))):
                least = least_side(size**3, workers[-1], "distributed")
                cells = (128 << 20) // np.dtype(options.dtype).itemsize
                side = choose(Cut(size, size, size, 1), Limits(cells, workers[-1], least), fused=False).m
                samples = contest(size, side, options.dtype, options.rounds)
                seconds = {name: statistics.median(own) for name, own in samples.items()}
                efficiency = {}
                for name, own in seconds.items():
                    fewest, then = first.setdefault((scaling, name), (count, own))
                    efficiency[name] = then / own * (fewest / count if scaling == "strong" else 1)
                results.append({
                    "scaling": scaling, "workers": count, "size": size, "side": side, "dtype": options.dtype,
                    "seconds": seconds, "ratios": {name: seconds["dask"] / own for name, own in seconds.items()},
                    "spread": {name: spread(own) for name, own in samples.items()},
                    "gflops": {name: 2e-9 * size**3 / own for name, own in seconds.items()}, "efficiency": efficiency,
                })  # fmt: skip
    show(constants, results)
    recorded.save(options.json, recorded.document(
        "gemm-scale/1", dask=dask.__version__, constants=constants, rounds=options.rounds, results=results,
        quiet=watch.facts(recorded.spreads(results)),
    ))  # fmt: skip
    return 0


def show(constants: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Print the constants and the table."""
    print(", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in constants["rate"].items()), "a thread;",
          ", ".join(f"{1e6 * seconds:.0f} µs a task ({name})" for name, seconds in constants["task"].items()),
          f"; {constants['bandwidth'] / 1e9:.2f} GB/s between workers")  # fmt: skip
    head = ["scaling", "workers", "size", "contestant", "s", "GFLOP/s", "efficiency", "dask ÷ it"]
    text.table(head, [
        [row["scaling"], str(row["workers"]), str(row["size"]), name, f"{own:.3f}", f"{row['gflops'][name]:.0f}",
         f"{row['efficiency'][name]:.2f}", f"{row['ratios'][name]:.2f}"]
        for row in results for name, own in row["seconds"].items()
    ], numbers=range(4, 8))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
