"""Measure the speedup of several GPUs of a host: the time of one product on one GPU and on all GPUs.

    python benchmarks/multi_gpu.py [--size 32768] [--dtypes bfloat16,float32] [--rounds 5] [--json FILE]

The script multiplies n × n matrices in host memory, on one GPU and, with backend="cuda:all", on all GPUs. The results
are in host memory, too. A time is the median of --rounds products after one warm-up, measured until every GPU has
finished. $CUDA_VISIBLE_DEVICES selects the GPUs.

    speedup = gemm's median time on one GPU ÷ gemm's median time on these GPUs

The peer is PyTorch on one GPU, if installed. Its time includes the transfers of operands and result. Some elements of
every result of gemm are compared with float64 sums. The document ("gemm-multi-gpu/1", seconds) contains

    date, command, commit, versions, machine, environment, devices, rounds
    results     [{n, dtype, gpus, contestant (gemm or torch), times, median, tflops, speedup (null for the peer)}]
    absent      {peer: why it is missing}
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from peers.exact import unit_roundoff
from peers.shapes import Shape, dtype_of, operands

import gemm
from gemm.backends import registry
from gemm.cli.arguments import listed, positive
from gemm.core.errors import BackendUnavailable

CHECKED = 8
"""The number of rows, and of columns, of a result that are selected. The elements where they cross are recomputed."""

Row = dict[str, Any]


class Machine:
    """The GPUs of the machine, and the results so far."""

    def __init__(self, rounds: int) -> None:
        self.backend = registry.backend("cuda")
        self.devices = self.backend.devices()
        self.rounds, self.results = rounds, list[Row]()

    def synchronize(self) -> None:
        """Wait until every GPU has finished."""
        for device in self.devices:
            self.backend.synchronize(device)

    def timed(self, call: Callable[[], Any]) -> list[float]:
        """Seconds of `call` in each round, after one warm-up."""
        found = []
        for _ in range(self.rounds + 1):
            self.synchronize()
            begun = time.perf_counter()
            call()
            self.synchronize()
            found.append(time.perf_counter() - begun)
        return found[1:]

    def note(self, n: int, dtype: str, gpus: int, times: list[float], contestant: str = "gemm") -> None:
        """Store a result and print it."""
        row: Row = {"n": n, "dtype": dtype, "gpus": gpus, "contestant": contestant, "times": times}
        row["median"] = statistics.median(times)
        row["tflops"] = 2e-12 * n**3 / row["median"]
        alone = next((x for x in (*self.results, row) if x["gpus"] == 1 and x["dtype"] == dtype), row)
        row["speedup"] = alone["median"] / row["median"] if contestant == "gemm" else None
        self.results.append(row)
        shown = "" if row["speedup"] is None else f"{row['speedup']:8.2f}"
        line = f"{n:>6} {dtype:>9} {gpus:>4} {contestant:>9} {1e3 * row['median']:10.3f} {row['tflops']:9.2f}"
        print(line, shown, flush=True)

    def host(self, n: int, dtype: str) -> None:
        """Time a product of host arrays, by one GPU and by all."""
        a, b, out = operands(Shape(n, n, n), dtype)
        for gpus, backend in self.backends():
            times = self.timed(lambda backend=backend: gemm.gemm(a, b, out=out, backend=backend))
            check(a, b, out)
            self.note(n, dtype, gpus, times)

    def backends(self) -> Iterator[tuple[int, str]]:
        """Yield (number of GPUs, name of the backend that uses them): one GPU, and all GPUs if there are several."""
        yield 1, self.devices[0].key
        if len(self.devices) > 1:
            yield len(self.devices), "cuda:all"

    def torch(self, n: int, dtype: str) -> None:
        """Time PyTorch on one GPU, from host to host."""
        import torch

        a, b = (torch.randn(n, n).to(getattr(torch, dtype)) for _ in range(2))
        self.note(n, dtype, 1, self.timed(lambda: torch.mm(a.cuda(), b.cuda()).cpu()), "torch")


def check(a: np.ndarray, b: np.ndarray, found: np.ndarray) -> None:
    """Recompute some elements of a·b in float64. Exit if `found` differs there by more than rounding errors."""
    k = a.shape[1]
    rows, columns = (np.random.default_rng(1).integers(0, n, CHECKED) for n in found.shape)
    x, y = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
    unit = unit_roundoff(found.dtype)
    sums = unit_roundoff(np.dtype(np.float32)) if found.dtype.itemsize < 4 else unit
    allowed = (k + 2) * sums * (abs(x) @ abs(y)) + unit * abs(x @ y)
    if not (abs(found[np.ix_(rows, columns)].astype(np.float64) - x @ y) <= allowed).all():
        raise SystemExit(f"a {found.shape} product of {found.dtype} is wrong")


def missing() -> dict[str, str]:
    """{peer: why it is missing}."""
    found = {}
    try:
        import torch

        if not torch.cuda.is_available():
            found["torch"] = "this PyTorch finds no GPU"
    except ImportError:
        found["torch"] = "not installed"
    return found


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=5)
    parser.add_argument("--size", type=positive, default=32768)
    parser.add_argument("--dtypes", type=listed, default=["bfloat16", "float32"], metavar="NAME[,NAME…]")
    return parser


def main() -> int:
    """Time the products, print and write the results."""
    options = arguments().parse_args()
    try:
        machine = Machine(options.rounds)
    except BackendUnavailable as error:
        raise SystemExit(str(error)) from error
    absent, n = missing(), options.size
    print(f"{'n':>6} {'dtype':>9} {'GPUs':>4} {'':>9} {'ms':>10} {'TFLOP/s':>9}  speedup")
    for dtype in options.dtypes:
        dtype_of(dtype)
        machine.host(n, dtype)
        if "torch" not in absent:
            machine.torch(n, dtype)
    for peer, why in absent.items():
        print(f"without {peer}: {why}")
    recorded.save(options.json, recorded.document(
        "gemm-multi-gpu/1", rounds=options.rounds, devices=machine.devices, results=machine.results, absent=absent
    ))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
