"""Write docs/peers.md, the comparison of gemm with other libraries, from recorded runs.

python docs/make_peers_page.py            write the page
python docs/make_peers_page.py --check    exit with 1 if the page is out of date

RUNS names the recorded runs that the page shows; all figures are read from benchmarks/results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import generated

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "peers.md"
RUNS = {
    "Zen 3": "2026-11-21-zen3/cpu_vs_peers.json",
    "Xeon": "2026-11-21-xeon/cpu_vs_peers.json",
    "Xeon, high": "2026-11-21-xeon/cpu_vs_peers_high.json",
    "OpenCL": "2026-11-22-h200-opencl/opencl_vs_peers.json",
    "CUDA": "2026-11-23-h200-cuda/cuda_vs_cublas.json",
    "CUDA, odd": "2026-11-24-h200-auto/cuda_odd.json",
}
FAMILIES = ("square", "skinny", "thin", "random", "batched", "dtypes")
"""Families of the CPU runs that the page shows. The other families measure overheads, scaling and disturbances."""
NAMES = {"numpy": "NumPy", "openblas": "OpenBLAS", "torch": "PyTorch", "mkl": "MKL", "blis": "BLIS",
         "blis-wheel": "BLIS, PyPI", "amd-blis": "AMD's BLIS"}  # fmt: skip
SHAPES = (*((0, s, s, s) for s in (512, 1024, 2048, 4096, 8192)), (0, 64, 4096, 4096), (0, 256, 256, 16384),
          (64, 128, 128, 128))  # fmt: skip
"""(batch, m, n, k) of the products in the CUDA table. The chart and the record have all products."""

INTRODUCTION = """# Compared with other libraries

<!-- Made by docs/make_peers_page.py from benchmarks/results: change those. -->

This page compares gemm's speed with other libraries, from recorded runs, including products where gemm is slower. It is
for users who choose a library. Read the table for your device first.

Numbers without a unit are *ratios*: the other library's time ÷ gemm's time, for one product. Above 1 gemm is faster,
below 1 the other library is faster. gemm and the other libraries run in alternating rounds, on the same number of
threads. Every result is checked. A ratio is the median over the rounds. *Best* is the ratio to the library that was
fastest for that product.

Every run names its device, date and commit. On other devices, or with other versions, the numbers differ. There are no
numbers for Adreno and Intel GPUs, Arm, macOS and Windows, because no run was recorded there.
"""
CPU = """## On the CPU

`python benchmarks/cpu_vs_peers.py` measures these ratios, after `pip install ".[peers]"`. The numbers are geometric
means over the products of a family. *Least* is the lowest ratio to the best library, and *behind* is the number of
products with a ratio below 1. A dash means that the library does not multiply that type, or was not installed. The
site's gallery has the same numbers for each product.
"""
HIGH = """bfloat16 with AMX and `precision="high"`, in the same form:
"""
OPENCL = """## Through OpenCL

`python benchmarks/opencl_vs_peers.py` compares gemm with CLBlast 1.5.3 for whole float32 products of operands on the
device. CLBlast runs with the parameters of its database, and with the parameters that CLBlast's tuners found on this
device.
"""
CUDA = """## On CUDA

`python benchmarks/cuda_vs_cublas.py` compares gemm with cuBLAS, in the same memory and on the same stream. It calls
cuBLAS through PyTorch, CuPy and cublasLt; the ratio is to the fastest of the three. With `precision="high"`, gemm sums
float32 from several narrower products on tensor cores, and cuBLAS computes in float32. With `"medium"` both use TF32.
[CUDA](cuda.md#versions) explains where gemm is slower, and why.
"""
ODD = """bfloat16 products whose rows are not aligned, in TFLOP/s:
"""
AUTO = """## auto compared with the best choice

`python benchmarks/auto_regret.py` measures *regret* on random products: the time of the candidate that `backend="auto"`
chose ÷ the time of the best candidate. A regret of 1 means that `auto` chose the best candidate. The columns are the
median, the value that 95 of 100 products do not exceed, and the worst value. For operands on the host, `auto` chooses a
device. For operands in a device's memory, `auto` chooses a kernel. `gemm tune` ran before the runs called *tuned* and
before the run on the Zen 3.
"""
CALLS = """Time that a repeated product of 64 × 64 takes on the host, in µs:
"""


def read(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / RUNS[run]).read_text(encoding="utf-8"))
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def size(row: dict[str, Any]) -> str:
    batch, m, n, k = row.get("batch", 0), row["m"], row["n"], row["k"]
    return f"{batch} × " * bool(batch) + (f"{m}³" if m == n == k else f"{m} × {n} × {k}")


def caption(run: str) -> str:
    """The device, date and commit of a run, and its warnings."""
    document = read(run)
    device, file = document["device"], RUNS[run]
    cores = f", {device['limits']['cores']} cores" if "cores" in device["limits"] else ""
    driver = f", driver {device['driver']}" if device["driver"] else ""
    commit = (document["commit"] or "unknown").partition("-")
    changed = " with changes" * bool(commit[2])
    lines = [f"{device['name']}{cores}{driver}; {document['date'][:10]}, commit {commit[0][:7]}{changed}; "
             f"[{file}](../benchmarks/results/{file})."]  # fmt: skip
    if warnings := document.get("quiet", {}).get("warnings"):
        lines.append(f"The machine was not quiet: {'; '.join(warnings)}.")
    return " ".join(lines) + "\n"


def on_cpu(run: str) -> str:
    means = [row for row in read(run)["means"] if row["family"] in FAMILIES]
    peers = [name for name in NAMES if any(name in row["peers"] for row in means)]
    head = ["family", "dtype", "threads", "best", "least", "behind", *(NAMES[name] for name in peers)]
    return table(head, (
        [row["family"], row["dtype"], str(row["threads"]), ratio(row["best"]), ratio(row["least"]),
         f"{row['lost']} of {row['rows']}", *(ratio(row["peers"].get(name)) for name in peers)]
        for row in means
    ))  # fmt: skip


def versions(run: str) -> str:
    found = read(run)
    peers, shared = found["peers"], found["schema"] == "gemm-cpu-peers/2"
    where = "All libraries share one process." if shared else "Each library has its own process."
    if shared and {"mkl", "blis"} <= peers.keys():
        where += " There, the functions of Debian's BLIS called MKL's, so that the column BLIS shows MKL."
    return f"{where} Peers: {'; '.join(about for name, about in peers.items() if name in NAMES)}.\n"


def through_opencl() -> str:
    return table(["product", "gemm, TFLOP/s", "CLBlast", "CLBlast, tuned"], (
        [size(row), f"{row['gflops']['gemm'] / 1000:.3g}", ratio(row["ratios"]["CLBlast"]),
         ratio(row["ratios"]["CLBlast, tuned"])]
        for row in read("OpenCL")["results"]
    ))  # fmt: skip


def on_cuda() -> str:
    rows = {(r["family"], r["batch"], r["m"], r["n"], r["k"]): r for r in read("CUDA")["results"]}
    names = [size(dict(zip(("batch", "m", "n", "k"), shape, strict=True))) for shape in SHAPES]
    return table(["operands", *names], (
        [family, *(ratio(rows[(family, *shape)].get("ratio")) for shape in SHAPES)]
        for family in dict.fromkeys(key[0] for key in rows)
    ))  # fmt: skip


def odd() -> str:
    return table(["product", "gemm", "cuBLAS's best"], (
        [size(row), f"{row['tflops']['gemm']:.3g}", f"{row['tflops'][row['best']]:.3g}"]
        for row in read("CUDA, odd")["results"]
    ))  # fmt: skip


def calls() -> str:
    return table(["call", "µs"], ([name, f"{1e6 * seconds:.1f}"] for name, seconds in read("CUDA")["calls"].items()))


def auto() -> str:
    rows = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*-auto/auto_regret*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        name = f"{path.parent.name}/{path.name}"
        for place, found in run["regret"].items():
            if place.startswith("place "):
                figures = (f"{found[key]:.2f}" for key in ("median", "p95", "worst"))
                rows.append([f"[{name}](../benchmarks/results/{name})", run["commit"][:7], place.removeprefix("place "),
                             str(found["count"]), *figures])  # fmt: skip
    return table(["run", "commit", "operands on", "products", "median", "95 %", "worst"], rows)


def document() -> str:
    """The text of docs/peers.md."""
    small = {row["what"]: row["seconds"] for row in read("OpenCL")["small"]}
    gemm, clblast = (f"{1e6 * small['launch'][library]:.0f} µs" for library in ("gemm", "CLBlast"))
    launch = f"In a series of launches, a product of 16 × 16 takes {gemm} with gemm and {clblast} with CLBlast.\n"
    return "\n".join([
        INTRODUCTION, CPU,
        *(part for run in ("Zen 3", "Xeon") for part in (caption(run), on_cpu(run), versions(run))),
        HIGH, on_cpu("Xeon, high"), caption("Xeon, high"),
        OPENCL, through_opencl(), caption("OpenCL"), launch,
        CUDA, on_cuda(), caption("CUDA"), CALLS, calls(), ODD, odd(), caption("CUDA, odd"), AUTO, auto(),
    ]).rstrip() + "\n"  # fmt: skip


if __name__ == "__main__":
    sys.exit(generated.main(None, __doc__, TARGET, document))
