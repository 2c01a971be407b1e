"""Compare the OpenCL backend with CLBlast on one device, and with our CPU backend if the device is the CPU.

    python benchmarks/opencl_vs_peers.py [--device opencl:0] [--clblast libclblast.so.1] [--tuned FOLDER] [--json FILE]
    python benchmarks/opencl_vs_peers.py --shapes 512,64x4096x4096 --dtype float32 --rounds 9 --all-kernels

Operands are pyopencl Arrays on the device. Our contestant is `gemm.gemm(a, b, out=out, backend=DEVICE)` with the kernel
that dispatch chooses; --all-kernels adds each available kernel by name. CLBlast is called through its C interface with
the parameters of its database. --tuned adds CLBlast with the parameters that its tuners (clblast_tuner_xgemm,
clblast_tuner_xgemm_direct, ...) wrote as JSON to FOLDER. Run the tuners there on the same device first.

Each round samples every contestant, in rotating order. A sample is as many products in a row as fill --sample seconds,
until the queue has finished. A time is that of the sample divided by the number of products. A ratio is the median over
the rounds of the peer's time ÷ our time. "call" is the time until the host's call of a 16 × 16 product returns.
"launch" is the time per product if many such products run one after another. Every contestant's result is first checked
against float64 sums of the same operands.

The JSON document ("gemm-opencl-peers/1", seconds):

    date, command, commit, versions, device {name, driver, platform}, rounds, sample_s
    peers       {name: parameters}
    results     [{dtype, m, n, k, kernel (the one dispatch chose), seconds {contestant: median}, gflops, ratios {peer:
                peer's time ÷ ours}, worst_error {contestant}}]
    small       [{what: "call" or "launch", seconds {contestant}}]
    means       {peer: geometric mean of the ratios over the squares}
    cpu         {shape: our time on the cpu backend ÷ our time on the opencl backend}, only for CPU devices
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

import gemm
from gemm.bench.peers import Absent
from gemm.bench.peers.devices import CLBlast
from gemm.core import text
from gemm.core.errors import BackendUnavailable

SQUARES = (256, 512, 1024, 2048, 4096, 8192)
SKINNY = ((64, 4096, 4096), (16, 8192, 8192), (1, 4096, 4096))
Run = Callable[[], Any]


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=7, sample=0.05)
    parser.add_argument("--device", default="opencl:0", help="key of an OpenCL device (see `gemm info`)")
    parser.add_argument("--clblast", default="libclblast.so.1", metavar="LIBRARY")
    parser.add_argument("--tuned", type=Path, metavar="FOLDER", help="folder of files that CLBlast's tuners wrote")
    parser.add_argument("--shapes", default=",".join([*map(str, SQUARES), *("x".join(map(str, s)) for s in SKINNY)]))
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--all-kernels", action="store_true")
    return parser


def main() -> int:
    """Run the comparison. Returns 1 if a result of the contestant "gemm" is wrong."""
    options = arguments().parse_args()
    device = recorded.device_of(options.device, "opencl")
    queue = device.handle.queue
    contestants: dict[str, Callable[[Any, Any, Any], Any]] = {
        "gemm": lambda a, b, out: gemm.gemm(a, b, out=out, backend=options.device)
    }
    if options.all_kernels:
        for row in gemm.kernels():
            if row.backend == "opencl" and row.dtype == options.dtype and not row.row.inputs and row.available:
                contestants[row.name] = lambda a, b, out, name=row.name: gemm.gemm(a, b, out=out, kernel=name)
    parameters: dict[str, Any] = {}
    try:
        plain = CLBlast(options.clblast, queue)
        contestants["CLBlast"], parameters["CLBlast"] = plain.multiply, "its database's"
    except Absent as error:
        print(f"CLBlast is left out: {error}")
    results = [_contest(shape, contestants, queue, options) for shape in _shapes(options.shapes)]
    small = _small(contestants, queue, options.dtype)
    if options.tuned and "CLBlast" in contestants:
        # CLBlast's parameters apply to the whole process, so the tuned parameters need rounds of their own. Our
        # contestant is timed again in these rounds.
        parameters["CLBlast, tuned"] = _tune(plain.library, device.handle.cl_device, options.tuned)
        pair = {"gemm": contestants["gemm"], "CLBlast, tuned": plain.multiply}
        for result in results:
            again = _contest((result["m"], result["n"], result["k"]), pair, queue, options)
            for field in ("seconds", "gflops", "ratios", "worst_error"):
                result[field] |= {name: value for name, value in again[field].items() if name != "gemm"}
    means = _means(results)
    _show(results, small, means)
    document = recorded.document(
        "gemm-opencl-peers/1", device=device, rounds=options.rounds, sample_s=options.sample, peers=parameters,
        results=results, small=small, means=means,
    )  # fmt: skip
    if device.kind == "cpu":
        document["cpu"] = _beside_the_cpu_engine(results, options.dtype)
    recorded.save(options.json, document)
    return 0 if all(result["worst_error"]["gemm"] <= 1 for result in results) else 1


def _tune(library: ctypes.CDLL, device: Any, folder: Path) -> dict[str, dict[str, int]]:
    """Give CLBlast, for a pyopencl device, the best parameters that its tuners (clblast_tuner_*) found.

    The tuners wrote them to the files clblast_*.json in `folder`.

    Returns:
        {family of kernels: its parameters}.

    Raises:
        ValueError: CLBlast refuses the parameters.
    """
    library.CLBlastClearCache()  # discard programs that were compiled with the old parameters
    best: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("clblast_*.json")):
        tuning = json.loads(file.read_text())
        # The tuner files "xgemm_11" and "xgemm_direct_2" belong to the kernel families Xgemm and XgemmDirect.
        family = re.sub(r"_\d+$", "", tuning["kernel_family"]).title().replace("_", "")
        if family not in best or float(tuning["best_time"]) < float(best[family]["best_time"]):
            best[family] = tuning
    parameters = {}
    for family, tuning in best.items():
        pairs = re.findall(r"(\w+)=(\d+)", tuning["best_parameters"])  # such as "KWG=32 MDIMC=8 ..."
        values = {name: int(value) for name, value in pairs if name != "PRECISION"}
        names = (ctypes.c_char_p * len(values))(*(name.encode() for name in values))
        numbers = (ctypes.c_size_t * len(values))(*values.values())
        status = library.CLBlastOverrideParameters(
            ctypes.c_void_p(device.int_ptr), family.encode(), int(tuning["precision"]), ctypes.c_size_t(len(values)),
            names, numbers,
        )  # fmt: skip
        if status:
            raise ValueError(f"CLBlast does not take the parameters of {family}: status {status}")
        parameters[family] = values
    return parameters


def _shapes(listed: str) -> list[tuple[int, int, int]]:
    sizes = [tuple(map(int, item.split("x"))) for item in listed.split(",")]
    return [(s[0], s[0], s[0]) if len(s) == 1 else (s[0], s[1], s[2]) for s in sizes]


def _contest(
    shape: tuple[int, int, int], contestants: dict[str, Any], queue: Any, options: argparse.Namespace
) -> dict[str, Any]:
    import pyopencl.array as cla

    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    x, y = (rng.standard_normal(s).astype(options.dtype) for s in ((m, k), (k, n)))
    a, b = cla.to_device(queue, x), cla.to_device(queue, y)
    rows = rng.choice(m, min(m, 64), replace=False)
    exact, bound = (f(x[rows].astype(np.float64)) @ f(y.astype(np.float64)) for f in (np.asarray, np.abs))
    bound *= (k + 2) * np.finfo(options.dtype).eps / 2
    runs: dict[str, Run] = {}
    errors: dict[str, float] = {}
    for name, multiply in contestants.items():
        out = cla.to_device(queue, np.full((m, n), np.nan, options.dtype))
        try:
            multiply(a, b, out)
        except (BackendUnavailable, ValueError) as error:
            print(f"{name} cannot do {m}x{n}x{k}: {error}")
            continue
        errors[name] = float(np.nan_to_num(np.abs(out.get()[rows] - exact) / bound, nan=np.inf).max())
        runs[name] = partial(multiply, a, b, out)
    repeats = {name: max(1, math.ceil(options.sample / _time(run, queue, 2))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(options.rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 == 0 else reversed(order):
            times[name].append(_time(runs[name], queue, repeats[name]))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    ratios = {
        name: statistics.median(p / o for p, o in zip(times[name], times["gemm"], strict=True))
        for name in names
        if name != "gemm"
    }
    kernel = gemm.plan(a, b, backend=options.device).kernel
    rates = ", ".join(f"{name} {2e-9 * m * n * k / s:.0f}" for name, s in seconds.items())
    print(f"{m}x{n}x{k} {kernel}: {rates}", flush=True)
    return {
        "dtype": options.dtype, "m": m, "n": n, "k": k, "kernel": kernel, "seconds": seconds,
        "gflops": {name: 2e-9 * m * n * k / s for name, s in seconds.items()}, "ratios": ratios,
        "worst_error": errors,
    }  # fmt: skip


def _time(run: Run, queue: Any, repeats: int) -> float:
    """Seconds per product, over `repeats` products in a row."""
    run()
    queue.finish()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    queue.finish()
    return (time.perf_counter() - start) / repeats


def _small(contestants: dict[str, Any], queue: Any, dtype: str) -> list[dict[str, Any]]:
    """`small` of the document: the time until the call of a tiny product returns, and the time per product of many."""
    import pyopencl.array as cla

    a, b, out = (cla.to_device(queue, np.ones((16, 16), dtype)) for _ in range(3))
    calls, launches = {}, {}
    for name, multiply in contestants.items():
        run = partial(multiply, a, b, out)
        launches[name] = statistics.median(_time(run, queue, 500) for _ in range(5))
        samples = []
        for _ in range(300):
            queue.finish()
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        calls[name] = statistics.median(samples)
    queue.finish()
    return [{"what": "call", "seconds": calls}, {"what": "launch", "seconds": launches}]


def _beside_the_cpu_engine(results: list[dict[str, Any]], dtype: str) -> dict[str, float]:
    """Time our cpu backend. Print and return {shape: its time ÷ our opencl backend's time on the same cores}."""
    found = {}
    for result in results:
        m, n, k = result["m"], result["n"], result["k"]
        a, b, out = (np.ones(s, dtype) for s in ((m, k), (k, n), (m, n)))
        times = []
        for _ in range(7):
            start = time.perf_counter()
            gemm.gemm(a, b, out=out, backend="cpu")
            times.append(time.perf_counter() - start)
        found[f"{m}x{n}x{k}"] = statistics.median(times) / result["seconds"]["gemm"]
    print("our opencl backend's speed relative to our cpu backend: "
          + ", ".join(f"{s} {r:.2f}" for s, r in found.items()))  # fmt: skip
    return found


def _means(results: list[dict[str, Any]]) -> dict[str, float]:
    squares = [r for r in results if r["m"] == r["n"] == r["k"]]
    names = dict.fromkeys(name for r in squares for name in r["ratios"])
    return {
        name: statistics.geometric_mean(r["ratios"][name] for r in squares if name in r["ratios"]) for name in names
    }


def _show(results: list[dict[str, Any]], small: list[dict[str, Any]], means: dict[str, float]) -> None:
    names = list(dict.fromkeys(name for r in results for name in r["seconds"]))
    lines = [
        [f"{r['m']} × {r['n']} × {r['k']}", r["kernel"], *(text.number(r["gflops"].get(name)) for name in names)]
        + [f"{r['ratios'][name]:.2f}" if name in r["ratios"] else "–" for name in names if name != "gemm"]
        for r in results
    ]
    head = ["product", "kernel", *names, *(f"{name} ÷ ours" for name in names if name != "gemm")]
    text.table(head, lines, numbers=range(2, len(head)), title="GFLOP/s, and peer's time ÷ ours")
    for row in small:
        print(f"{row['what']}: " + ", ".join(f"{name} {1e6 * s:.1f} µs" for name, s in row["seconds"].items()))
    print("geometric means over squares: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items()))


if __name__ == "__main__":
    sys.exit(main())
