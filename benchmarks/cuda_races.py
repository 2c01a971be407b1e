"""Check products that overlap on one GPU for races, with shapes whose persistent blocks compute several tiles each.

    python benchmarks/cuda_races.py [--device cuda:0] [--only REGEX] [--rounds 8] [--single 40] [--json FILE]
    python benchmarks/cuda_races.py --like FILE          # use the kernels of an earlier document

The script needs PyTorch with CUDA. Each product is `gemm.gemm(a, b, out=out)` with the kernel that dispatch chooses, or
the kernel that the FILE of --like names. There are --rounds series of 8 launches of a product without waiting, into 8
outputs that are filled with NaN. Then --single launches follow, with a wait after each of them.

A result is *wrong* if an element is NaN or outside the error bound of the contract, compared with float64 on the GPU.
Integer results must be exact. A result *differs* if its bits are not those of the first correct result. Finally the
product is timed: the median of samples of launches in a row between two CUDA events. The exit status is 1 if a result
is wrong or differs.

The JSON document ("gemm-cuda-races/1", seconds):

    date, command, commit, versions, machine, environment, device, torch, rounds, single
    results     [{product, dtype, out, precision, m, n, k, trans_b, kernel, error ("", or why there is no result),
                in_a_row {results, wrong, differing}, single {results, wrong, differing}, worst (the largest error
                divided by the allowed error, null if not finite), seconds, tflops}]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

import gemm
from gemm.catalog import BY_NAME
from gemm.cli.arguments import positive
from gemm.core import text
from gemm.select.verify.single import unit

IN_A_ROW = 8
"""The number of launches in a series without waiting."""


@dataclass(frozen=True)
class Product:
    """One product. Types have PyTorch's names. trans_b: b is stored transposed, so that it is contiguous along k."""

    dtype: str
    out: str
    precision: str
    m: int
    n: int
    k: int
    trans_b: bool = False

    def __str__(self) -> str:
        types = self.dtype if self.dtype == self.out else f"{self.dtype}→{self.out}"
        return f"{types} {self.precision} {self.m}×{self.n}×{self.k}{' NT' * self.trans_b}"


FP8 = "float8_e4m3fn"
PRODUCTS = (
    Product("float32", "float32", "high", 896, 2112, 2240),
    Product(FP8, "bfloat16", "highest", 512, 4096, 14336, trans_b=True),
    Product("bfloat16", "bfloat16", "highest", 1408, 8640, 12160),
    Product("bfloat16", "bfloat16", "highest", 5120, 1280, 28672),
    Product("bfloat16", "bfloat16", "highest", 1024, 5120, 28672),
    Product("float16", "float16", "highest", 5120, 1280, 28672),
    Product("int8", "int32", "highest", 512, 4096, 14336, trans_b=True),
    Product("int8", "int32", "highest", 4096, 512, 32768, trans_b=True),
    Product("float32", "float32", "medium", 512, 5120, 14336),
    Product(FP8, "bfloat16", "medium", 512, 4096, 14336, trans_b=True),
    Product(FP8, "bfloat16", "medium", 4096, 512, 32768, trans_b=True),
)
"""Products for an H200: each is split into parts along k, and has more tiles than clusters can run at once."""


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__)
    parser.add_argument("--device", default="cuda:0", help="key of a CUDA device (see `gemm info`)")
    parser.add_argument("--only", default="", metavar="REGEX", help="select products, such as bfloat16")
    parser.add_argument("--rounds", type=positive, default=8, help=f"number of series of {IN_A_ROW} launches")
    parser.add_argument("--single", type=positive, default=40, help="number of launches with a wait after each")
    parser.add_argument("--samples", type=positive, default=15, help="number of timing samples")
    parser.add_argument("--like", type=Path, metavar="FILE", help="use the kernels of this file, written by --json")
    return parser


class Judge:
    """Decides whether the results of one product are right."""

    def __init__(self, torch: Any, product: Product, a: Any, b: Any, unit: float) -> None:
        self.torch, self.first, self.worst = torch, None, 0.0
        x, y = a.double(), b.double()
        y = y.T if product.trans_b else y
        self.exact = x @ y
        if product.out == "int32":
            self.allowed = torch.full_like(self.exact, 0.5)
        else:
            self.allowed = unit * (x.abs() @ y.abs())
            rounded = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(product.out)
            if rounded:  # the sums are float32, and are rounded once to the result's type
                self.allowed += rounded * (self.exact.abs() + self.allowed) + 2.0**-25

    def of(self, outs: list[Any]) -> dict[str, int]:
        """Check results of the product. Return {results: how many they are, wrong: how many, differing: how many}."""
        wrong = differing = 0
        for out in outs:
            share = ((out.double() - self.exact).abs() / self.allowed).nan_to_num(math.inf).max().item()
            right = share <= 1
            self.worst = max(self.worst, share)
            wrong += not right
            bits = out.view(self.torch.uint8)
            if self.first is None and right:
                self.first = bits.clone()
            differing += self.first is None or not self.torch.equal(bits, self.first)
        return {"results": len(outs), "wrong": wrong, "differing": differing}


def operands(torch: Any, product: Product, place: str) -> tuple[Any, Any]:
    """Random a and b on the device `place`."""
    random = torch.Generator(device=place).manual_seed(product.m * product.n + product.k)
    kind = getattr(torch, product.dtype)
    found = []
    for shape in ((product.m, product.k), (product.n, product.k) if product.trans_b else (product.k, product.n)):
        if product.dtype == "int8":
            found.append(torch.randint(-127, 128, shape, generator=random, device=place, dtype=kind))
        else:
            found.append(torch.randn(shape, generator=random, device=place).to(kind))
    return found[0], found[1]


def measure(torch: Any, product: Product, options: argparse.Namespace, kernel: str | None) -> dict[str, Any]:
    """Launch, check and time one product. Return its entry of `results`. kernel: its kernel's name, or None."""
    place = options.device
    a, b = operands(torch, product, place)
    outs = [torch.empty((product.m, product.n), device=place, dtype=getattr(torch, product.out))
            for _ in range(IN_A_ROW)]  # fmt: skip
    chosen = {"backend": options.device, "precision": product.precision, "trans_b": product.trans_b, "kernel": kernel}
    if product.out == "int32":
        chosen["dtype"] = "int32"

    def multiply(out: Any) -> None:
        gemm.gemm(a, b, out=out, **chosen)

    def poison() -> None:
        for out in outs:
            out.view(torch.uint8).fill_(0xFF)  # NaN in floating-point types

    multiply(outs[0])  # the first call compiles and caches
    name = gemm.plan(a, b, **chosen).kernel
    judge = Judge(torch, product, a, b, unit(BY_NAME[name], np.dtype(np.float32), product.k))
    torch.cuda.synchronize(place)
    found = {"in_a_row": [], "single": []}
    for _ in range(options.rounds):
        poison()
        for out in outs:
            multiply(out)
        torch.cuda.synchronize(place)
        found["in_a_row"].append(judge.of(outs))
    for _ in range(options.single):
        poison()
        torch.cuda.synchronize(place)
        multiply(outs[0])
        torch.cuda.synchronize(place)
        found["single"].append(judge.of(outs[:1]))
    seconds = timed(torch, lambda: multiply(outs[0]), options.samples)
    return {
        "kernel": name, "error": "", **{kind: _sum(each) for kind, each in found.items()},
        "worst": judge.worst if math.isfinite(judge.worst) else None, "seconds": seconds,
        "tflops": 2e-12 * product.m * product.n * product.k / seconds,
    }  # fmt: skip


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    return {key: sum(each[key] for each in counts) for key in counts[0]}


def timed(torch: Any, run: Any, samples: int) -> float:
    """Seconds per product: the median over samples of 10 launches in a row."""
    count, found = 10, []
    for _ in range(samples + 2):  # the first two samples warm up
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        found.append(1e-3 * start.elapsed_time(end) / count)
    return statistics.median(found[2:])


def main() -> int:
    """Run and judge all products. Returns 1 if a result is wrong, differs or is missing."""
    options = arguments().parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch is not here: {error}")
    device = recorded.device_of(options.device, "cuda")
    kernels = {}
    if options.like:
        kernels = {row["product"]: row["kernel"] for row in json.loads(options.like.read_text("utf-8"))["results"]}
    document = recorded.document(
        "gemm-cuda-races/1", device=device, torch=torch.__version__, rounds=options.rounds, single=options.single,
        results=[],
    )  # fmt: skip
    for product in PRODUCTS:
        if not re.search(options.only, str(product)):
            continue
        row = {"product": str(product), **asdict(product)}
        try:
            row |= measure(torch, product, options, kernels.get(str(product)) or None)
        except (ArithmeticError, ImportError, RuntimeError, TypeError, ValueError) as error:
            row |= {"kernel": "", "error": str(error).splitlines()[0]}
        document["results"].append(row)
        said = row["error"] or f"{row['in_a_row']['wrong']} and {row['single']['wrong']} wrong"
        print(f"{product}: {said}", flush=True)
        recorded.save(options.json, document)  # after each product, so that an interrupted run leaves its results
    show(document["results"])
    results = document["results"]
    return 1 if not results or any(row["error"] or _wrong(row) for row in results) else 0


def _wrong(row: dict[str, Any]) -> int:
    return sum(row[kind]["wrong"] + row[kind]["differing"] for kind in ("in_a_row", "single"))


def show(results: list[dict[str, Any]]) -> None:
    """Print a line for each product: its counts, its time and its rate."""
    lines = []
    for row in results:
        if row["error"]:
            lines.append((row["product"], row["error"], *[""] * 6))
            continue
        counts = [f"{row[kind][what]}/{row[kind]['results']}" for kind in ("in_a_row", "single")
                  for what in ("wrong", "differing")]  # fmt: skip
        lines.append((row["product"], row["kernel"], *counts, text.seconds(row["seconds"]),
                      text.number(row["tflops"])))  # fmt: skip
    head = ("product", "kernel", "wrong in a row", "differing", "wrong alone", "differing", "time", "TFLOP/s")
    if lines:
        text.table(head, lines, numbers=range(2, len(head)))


if __name__ == "__main__":
    sys.exit(main())
