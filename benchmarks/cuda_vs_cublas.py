"""Compare the CUDA backend with cuBLAS on one GPU. cuBLAS is called through PyTorch, CuPy and cublasLt, if installed.

    python benchmarks/cuda_vs_cublas.py [--device cuda:0] [--rounds 9] [--sample 0.02] [--json FILE]
    python benchmarks/cuda_vs_cublas.py --only "float32$" --shapes 4096,64x4096x4096 --all-kernels
    python benchmarks/cuda_vs_cublas.py --quick          # tiny products, to test the script itself

Operands are random, because zeros would save power, and are on the device. All contestants work on the same memory and
the same stream. Our contestant is `gemm.gemm(a, b, out=out)` with the kernel that dispatch chooses; --all-kernels adds
each kernel by name. PyTorch multiplies by cuBLAS and by cublasLt, without TF32 except where the table says TF32.
cublasLt uses the fastest of the algorithms that its heuristics propose.

A sample is a series of products that takes about --sample seconds, between two CUDA events. If possible, a CUDA graph
replays the products, so that delays by the host are not timed. Each round samples all contestants, in rotating order. A
time is the median, and a ratio is the median over the rounds of the peer's time ÷ our time. Before timing, some rows of
each contestant's result are checked against float64.

The JSON document ("gemm-cuda-cublas/1", seconds):

    date, command, commit, versions, machine, device, clocks {before, after}, rounds, sample_s
    peers       {name: "" or why it is missing}
    copy_gbs    rate of a copy on the device, read and written
    results     [{family, batch, m, n, k, kernel, seconds {contestant}, graph {contestant}, tflops, ratios {peer}, best
                (the fastest peer), ratio (to that peer), goal, goal_met, copy_share (if m <= 32: the rate at which b
                is read ÷ copy_gbs), worst_error {contestant}, allowed_error}]
    calls       {call: seconds}, for 64 × 64 matrices
    transfers   [{dtype, m, n, k, seconds, copies, compute, ratio, upload_gbs, download_gbs}]

benchmarks/cuda_accuracy.py measures the errors of the arithmetics of float32 and float64.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from cublas import host
from cublas.clock import Clock, compete, ratio
from cublas.contestants import UNABLE, Contestant, ours, peers
from cublas.products import FAMILIES, Family, Product, allowed, dtype_of, goal, label, operands, products, worst_error

import gemm
from gemm.backends.cuda.arrays import DeviceArray
from gemm.core import text

_CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,clocks_event_reasons.active"


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=9, sample=0.02)
    parser.add_argument("--device", default="cuda:0", help="key of a CUDA device (see `gemm info`)")
    parser.add_argument("--only", default="", metavar="REGEX", help="select families, calls and transfers")
    parser.add_argument("--shapes", default="", help="such as 512,64x4096x4096,64x128x128x128 (a stack of 64)")
    parser.add_argument("--all-kernels", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tiny products, two rounds")
    return parser


def main() -> int:
    """Run the comparison. Returns 1 if one of our results is wrong."""
    options = arguments().parse_args()
    if options.quick:
        options.rounds, options.sample = min(options.rounds, 2), 0.0
    device = recorded.device_of(options.device, "cuda")
    clock = Clock(device.handle)
    found = dict(peers(clock, device))
    present: dict[str, Contestant] = {name: peer for name, peer in found.items() if not isinstance(peer, str)}
    absent = {name: peer if isinstance(peer, str) else "" for name, peer in found.items()}
    for name, why in absent.items():
        print(f"{name}: {why or 'here'}")

    def wanted(part: str) -> bool:
        return re.search(options.only, part) is not None

    document = recorded.document(
        "gemm-cuda-cublas/1", device=device, clocks={"before": _clocks(device)}, rounds=options.rounds,
        sample_s=options.sample, peers=absent, copy_gbs=host.copy_rate(clock, device, quick=options.quick) / 1e9,
        results=[],
    )  # fmt: skip

    def save() -> None:
        document["clocks"]["after"] = _clocks(device)
        recorded.save(options.json, document)

    for family in filter(lambda family: wanted(family.name), FAMILIES):
        try:
            dtype_of(family.dtype)
        except ImportError as error:
            print(f"{family.name} is left out: {error}")
            continue
        rows = [_contest(clock, device, present, family, product, options, document["copy_gbs"])
                for product in _shapes(options.shapes) or products(family, quick=options.quick)]  # fmt: skip
        rows = [row for row in rows if row]
        document["results"] += rows
        if rows:
            _show(family, rows)
        save()  # save after each family, so that an interrupted run leaves its results
    if wanted("calls"):
        document["calls"] = host.calls(clock, device, quick=options.quick)
        for name, taken in document["calls"].items():
            print(f"{name}: {1e6 * taken:.2f} µs")
    if wanted("transfers"):
        sizes = [96] if options.quick else [256, 1024, 2048, 4096, 8192]
        document["transfers"] = host.transfers(clock, device, sizes, quick=options.quick)
    save()
    return 0 if all(_right(row) for row in document["results"]) else 1


def _shapes(listed: str) -> list[Product]:
    """Parse a list such as 512 (a square), 64x4096x4096 (m, n, k), 64x128x128x128 (a stack of 64)."""
    found: list[Product] = []
    for item in filter(None, listed.split(",")):
        sizes = [*map(int, item.split("x"))] * (1 if "x" in item else 3)
        m, n, k = sizes[-3:]
        found.append((sizes[0] if len(sizes) == 4 else 0, m, n, k))
    return found


def _contest(
    clock: Clock, device: Any, present: dict[str, Contestant], family: Family, product: Product,
    options: argparse.Namespace, copy_gbs: float,
) -> dict[str, Any]:  # fmt: skip
    """Time all contestants on one product. Return its row of `results`; {} if gemm cannot compute the product."""
    batch, m, n, k = product
    a, b = operands(family, product)
    x, y = (DeviceArray(array.shape, array.dtype, device) for array in (a, b))
    x.copy_from_host(a)
    y.copy_from_host(b)
    shape = (batch, m, n) if batch else (m, n)
    contestants: dict[str, Contestant] = {"gemm": ours(clock, device.key)}
    for row in gemm.kernels() if options.all_kernels or family.precision == "high" else ():
        fits = row.row.multiplies(family.out, () if family.dtype == family.out else (family.dtype,) * 2)
        named = options.all_kernels or row.row.precision == "high"
        if row.backend == "cuda" and fits and row.available and named:
            contestants[row.name] = ours(clock, device.key, row.name)
    contestants |= present
    runs, errors, outs = {}, {}, {}
    for name, prepare in contestants.items():
        out = outs[name] = DeviceArray(shape, dtype_of(family.out), device)
        try:
            run = prepare(family, product, x, y, out)
            clock.seconds(run)
            errors[name] = worst_error(family, product, a, b, out.copy_to_host())
            runs[name] = run
        except UNABLE as error:
            print(f"{name} cannot do {family.name} {label(product)}: {str(error).splitlines()[0]}")
    if "gemm" not in runs:
        return {}
    times = compete(clock, runs, options.rounds, options.sample)
    ratios = {name: ratio(times["gemm"], times[name]) for name in times if name in present}
    best = min(ratios, key=ratios.__getitem__, default=None)
    seconds = {name: times[name]["seconds"] for name in times}
    aim = goal(family, product)
    kernel = gemm.plan(x, y, backend=device.key, precision=family.precision, trans_b=family.turned,
                       dtype=dtype_of(family.out)).kernel  # fmt: skip
    result = {
        "family": family.name, "batch": batch, "m": m, "n": n, "k": k, "kernel": kernel, "seconds": seconds,
        "graph": {name: times[name]["graph"] for name in times},
        "tflops": {name: 2e-12 * max(batch, 1) * m * n * k / s for name, s in seconds.items()},
        "ratios": ratios, "best": best, "ratio": ratios[best] if best else None, "goal": aim,
        "goal_met": None if aim is None or best is None else ratios[best] >= aim,
        "worst_error": {name: min(error, 1e30) for name, error in errors.items()}, "allowed_error": allowed(family, k),
    }  # fmt: skip
    if m <= 32 and not batch:
        result["copy_share"] = b.nbytes / seconds["gemm"] / 1e9 / copy_gbs
    return result


def _right(row: dict[str, Any]) -> bool:
    return all(error <= row["allowed_error"] for name, error in row["worst_error"].items() if "gemm" in name)


def _show(family: Family, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    lines = [
        [label((row["batch"], row["m"], row["n"], row["k"])), row["kernel"]]
        + [text.number(row["tflops"].get(name)) for name in names]
        + [f"{row['ratio']:.2f}" if row["ratio"] else "–", f"{row['goal']:.2f}" if row["goal"] else "",
           "" if _right(row) else "WRONG"]
        for row in rows
    ]  # fmt: skip
    head = ["product", "kernel", *names, "best ÷ ours", "goal", ""]
    text.table(head, lines, numbers=range(2, len(head)), title=f"\n{family.name}, TFLOP/s; cuBLAS's best ÷ ours")


def _clocks(device: Any) -> dict[str, str]:
    """nvidia-smi's present figures of the GPU; {} if nvidia-smi is missing."""
    command = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader,nounits", f"--id={device.handle.ordinal}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_CLOCKS.split(","), map(str.strip, done.stdout.split(",")), strict=False))


if __name__ == "__main__":
    sys.exit(main())
