"""How much faster are many small products merged by gemm.batching or gemm.gemm_many, compared with single calls?

    python benchmarks/batching.py [--sizes 8,16,32,64] [--count 10000] [--rounds 9] [--json FILE]

Each contestant computes `count` products of square float32 matrices per call:

    one by one     gemm.gemm(a, b, out=c) for each product; the ratios refer to this contestant
    batching       the same calls inside gemm.batching()
    gemm_many      gemm.gemm_many(as, bs, out=cs)
    ..., new       "one by one" and "gemm_many" without out, so that each call allocates its results
    stack          gemm.gemm on stacked arrays: the cost for callers that store their matrices in stacks
    numpy, stack   np.matmul on stacked arrays
    numpy          np.matmul(a, b, out=c) for each product

The place of the operands is "separate" (separate host arrays) or "slices" (slices of one host array). With a CUDA GPU
there are further places: "host to cuda" (separate host arrays, with backend="cuda"), and "torch ..." and "cupy ..."
(arrays of these libraries on the GPU, if the libraries are installed). All contestants run in one process, interleaved,
in rotating order; times are medians. The arrays of 10 000 products of 16³ take 31 MB, more than most caches hold. With
--count 300 they fit.

The JSON document ("gemm-batching/1", seconds per product) contains

    date, command, commit, versions, machine, threads, rounds
    results     [{size, count, place, seconds {contestant: median}, ratios {contestant: "one by one" ÷ it}, spread}]
    quiet       the load by other processes during the run
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from peers.duel import compete
from peers.ours import entered

import gemm
from gemm.bench.contest import Watch
from gemm.bench.peers import looped
from gemm.bench.verdicts import spread
from gemm.cli.arguments import positive
from gemm.core import text

Call = Callable[[], Any]
FEW = 1000
"""The largest number of products in "host to cuda", where a single call takes tens of microseconds."""


def calls(a: Sequence[Any], b: Sequence[Any], out: Sequence[Any], finish: Call, **options: Any) -> dict[str, Call]:
    """The contestants for the products of `a` and `b`. `finish` waits for their enqueued work."""
    product, given = partial(gemm.gemm, **options), list(zip(a, b, out, strict=True))

    def one_by_one() -> None:
        for x, y, z in given:
            product(x, y, out=z)
        finish()

    def one_by_one_new() -> None:
        [product(x, y) for x, y, _ in given]
        finish()

    def batching() -> None:
        with gemm.batching():
            for x, y, z in given:
                product(x, y, out=z)
        finish()

    def many() -> None:
        gemm.gemm_many(a, b, out=out, **options)
        finish()

    def many_new() -> None:
        gemm.gemm_many(a, b, **options)
        finish()

    return {
        "one by one": one_by_one, "batching": batching, "gemm_many": many,
        "one by one, new": one_by_one_new, "gemm_many, new": many_new,
    }  # fmt: skip


def host(count: int, size: int) -> dict[str, dict[str, Call]]:
    """{place: contestants} for host arrays, on the CPU and on a CUDA GPU if there is one."""
    rng = np.random.default_rng(size)
    a, b = (rng.standard_normal((count, size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    apart = [[x.copy() for x in stack] for stack in (a, b, out)]

    def numpy_one_by_one(given: Sequence[Any]) -> None:
        for x, y, z in given:
            np.matmul(x, y, out=z)

    places = {"separate": calls(*apart, _nothing), "slices": calls(list(a), list(b), list(out), _nothing)}
    for place, lists in (("separate", apart), ("slices", [list(a), list(b), list(out)])):
        places[place] |= {
            "numpy": partial(numpy_one_by_one, list(zip(*lists, strict=True))),
            "stack": partial(gemm.gemm, a, b, out=out), "numpy, stack": partial(np.matmul, a, b, out=out),
        }  # fmt: skip
    if not gemm.backends()["cuda"]:
        few = [stack[:FEW] for stack in apart]
        places["host to cuda"] = calls(*few, _nothing, backend="cuda")
    return places


def resident(library: str, count: int, size: int) -> dict[str, dict[str, Call]]:
    """{place: contestants} for arrays of a library on the GPU; {} if the library is not installed."""
    try:
        module = importlib.import_module(library)
        make = partial(module.zeros, (count, size, size), dtype=module.float32)
        a, b, out = (make(device="cuda") if library == "torch" else make() for _ in range(3))
        wait = module.cuda.synchronize if library == "torch" else module.cuda.Device().synchronize
    except Exception as error:  # the library is not installed, or finds no GPU
        print(f"{library}: {error}", file=sys.stderr)
        return {}
    copied = [[x.clone() if library == "torch" else x.copy() for x in stack] for stack in (a, b, out)]
    places = {
        f"{library} slices": calls(list(a), list(b), list(out), wait),
        f"{library} separate": calls(*copied, wait),
    }
    for place in places.values():
        place["stack"] = _then(partial(gemm.gemm, a, b, out=out), wait)
    return places


def _then(call: Call, finish: Call) -> Call:
    def both() -> None:
        call()
        finish()

    return both


def _nothing() -> None:
    """Do not wait: products on the host are complete when the call returns."""


def contest(size: int, count: int, place: str, contestants: dict[str, Call], rounds: int) -> dict[str, Any]:
    """Time the contestants against each other. Return the row of results for this size and place, for the document."""
    entries = [entered(name, looped(call), np.empty(0)) for name, call in contestants.items()]
    compete(entries, rounds, 0.0)
    found = min(count, FEW) if place == "host to cuda" else count
    seconds = {entry.key: entry.median / (count if "stack" in entry.key else found) for entry in entries}
    return {
        "size": size, "count": found, "place": place, "seconds": seconds,
        "ratios": {name: seconds["one by one"] / value for name, value in seconds.items()},
        "spread": {entry.key: spread(entry.seconds) for entry in entries},
    }  # fmt: skip


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=9)
    parser.add_argument("--sizes", type=recorded.counts, default="8,16,32,64", help="sizes of the square matrices")
    parser.add_argument("--count", type=positive, default=10000, help="products per call")
    return parser


def main() -> int:
    """Time the contestants, print and write the results."""
    options = arguments().parse_args()
    watch, results = Watch(), []
    with text.Progress(len(options.sizes)) as progress:
        for size in options.sizes:
            progress.step(f"{options.count} × {size}³")
            places = host(options.count, size)
            if "host to cuda" in places:
                places |= resident("torch", options.count, size) | resident("cupy", options.count, size)
            results += [contest(size, options.count, *place, options.rounds) for place in places.items()]
    show(results)
    recorded.save(options.json, recorded.document(
        "gemm-batching/1", threads=gemm.get_num_threads(), rounds=options.rounds, results=results,
        quiet=watch.facts(recorded.spreads(results)),
    ))  # fmt: skip
    return 0


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print the table: nanoseconds per product, and the ratio to "one by one"."""
    for row in results:
        print(f"{row['count']} × {row['size']}³, {row['place']}:")
        for name, seconds in row["seconds"].items():
            print(f"  {name:16} {1e9 * seconds:9.0f} ns {row['ratios'][name]:8.2f}")


if __name__ == "__main__":
    sys.exit(main())
