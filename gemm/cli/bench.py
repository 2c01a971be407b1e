"""`gemm bench`: time products on every backend of the machine, and compare the CPU with GPUs.

With --compare or --compare-to the command runs a comparison instead (gemm.compare). Without these options, --json
writes a document of the following form. Times are in seconds. A value that does not apply is null.

    schema      "gemm-bench/1"
    date, command, commit, versions, machine, environment    provenance; commit is null outside a checkout
    dtype, reproducible, iterations, warmup, method          method: what each time means, in words
    devices     [{key, backend, name, platform, driver, kind, unified, features, limits}]
    peaks       {device key: {gflops, basis}}; a device with an unknown peak is absent
    results     [{m, n, k, batch, trans, backend, device, kernel, cold_s, host_s, host_best_s, host_gflops, resident_s,
                  resident_best_s, resident_gflops, percent_of_peak, valid, worst_error, checked, sha256, error,
                  host_samples_s, resident_samples_s}]
    ratios      [{m, n, k, batch, trans, device, kernel, host, resident}]: the time of the cpu backend divided by the
                time of the contestant, as the median over the rounds

- host_s and resident_s are medians. If a backend computes in host memory, resident_* repeat host_*.
- percent_of_peak refers to the resident rate.
- worst_error is in units of the error bound; it is null if it is not finite.
- valid, worst_error, checked and sha256 are null without --validate.
- error says why a contestant has no times.

The CSV file has the columns of `results` except the samples.
"""

from __future__ import annotations

import argparse
import math
import statistics
import textwrap
from dataclasses import asdict
from typing import Any

from gemm.bench import contest, text, verdicts
from gemm.bench.contest import Contestant
from gemm.bench.contestants import Entry, enter, named
from gemm.bench.peaks import Peak, peak
from gemm.bench.products import Shape
from gemm.catalog import Kernel
from gemm.cli import compare
from gemm.cli.arguments import (
    LAYOUTS,
    Mistake,
    add_selection,
    add_shape,
    check_kernels,
    listed,
    look_for_devices,
    positive,
    save_csv,
    save_json,
    select,
    shape,
    shapes,
    writable,
)
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device
from gemm.frontend import inventory

HELP = "time products on every backend, CPU against GPU"
EXAMPLES = """examples:
  gemm bench -M 1024 -N 1024 -K 1024 --validate
  gemm bench --sizes 64,256,1024 --backends cpu,opencl,numpy
  gemm bench --shapes 64x4096x4096,4096x64x4096 --dtype float64 --json results.json
  gemm bench -M 640 -N 640 -K 640 --kernel sgemm_generic_naive --kernel sgemm_generic_local_16x16 --device opencl:0
  gemm bench --compare --html report.html --json today.json
  gemm bench --compare-to yesterday.json

The exit status is 1 when a result was wrong, a kernel failed, or a time is slower than in the file.
"""
METHOD = (
    "Times are medians over interleaved rounds in one process. cold: the first call for the shape, which compiles or "
    "loads the kernel if the kernel was not in use before. host-to-host: gemm.gemm(a, b, out=out) on NumPy arrays, "
    "transfers included. resident: the kernel on operands that are already on the device, until the kernel has "
    "finished; = if the device computes in host memory. Percent of peak refers to the resident rate. NumPy: "
    "np.matmul(a, b, out=out)."
)
ROUNDS, WARMUP = 10, 2
COLUMNS = (
    "m", "n", "k", "batch", "trans", "backend", "device", "kernel", "cold_s", "host_s", "host_best_s", "host_gflops",
    "resident_s", "resident_best_s", "resident_gflops", "percent_of_peak", "valid", "worst_error", "checked", "sha256",
    "error",
)  # fmt: skip
"""Columns of a result except its samples."""
Row = dict[str, Any]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_shape(parser)
    parser.add_argument("--shapes", type=shapes, metavar="LIST", help="MxNxK,MxNxK,...")
    parser.add_argument("--sizes", type=_sizes, metavar="LIST", help="N,N,... for N × N × N")
    parser.add_argument("--trans", choices=LAYOUTS, default="NN", help="layouts of a and b")
    add_selection(parser)
    parser.add_argument("--iterations", type=positive, metavar="COUNT", help=f"rounds (default: {ROUNDS})")
    parser.add_argument("--warmup", type=positive, metavar="COUNT", help=f"untimed calls first (default: {WARMUP})")
    parser.add_argument("--reproducible", action="store_true", help="with reproducible=True: the same bits everywhere")
    parser.add_argument("--validate", action="store_true", help="check every result against a wider type")
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write everything as JSON")
    parser.add_argument("--csv", type=writable, metavar="FILE", help="also write the results as CSV")
    compare.add(parser)


def _sizes(argument: str) -> list[tuple[int, int, int]]:
    return [(size, size, size) for size in map(positive, listed(argument))]


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print and write the results, and return the exit status."""
    if compare.wanted(args):
        return compare.run(args)
    args.iterations, args.warmup = args.iterations or ROUNDS, args.warmup or WARMUP
    products, kernels = _products(args), _kernels(args)
    devices, missing = select(args)
    entries = [
        Entry(device, name, args.reproducible)
        for device in devices
        for name in [row.name for row in kernels if row.backend == device.backend] or (None,)
    ]
    peaks = {device.key: known for device in devices if (known := peak(device, args.dtype))}
    print(f"{args.dtype}, {text.counted(args.iterations, 'round')}{', reproducible' if args.reproducible else ''}")
    _introduce(devices, missing)
    if not kernels and any(device.kind == "gpu" or device.backend == "opencl" for device in devices):
        look_for_devices()
    results: list[Row] = []
    ratios: list[Row] = []
    for product in products:
        try:
            some, more = _contest(args, product, entries, peaks)
        except MemoryError:
            raise Mistake(f"there is not enough memory for {product}") from None
        results += some
        ratios += more
    _conclude(peaks)
    if args.json:
        save_json(args.json, {
            "schema": "gemm-bench/1", **inventory.head(), "dtype": args.dtype, "reproducible": args.reproducible,
            "iterations": args.iterations, "warmup": args.warmup, "method": METHOD,
            "devices": list(map(inventory.device_facts, devices)),
            "peaks": {key: asdict(known) for key, known in peaks.items()}, "results": results, "ratios": ratios,
        })  # fmt: skip
    if args.csv:
        save_csv(args.csv, COLUMNS, results)
    return int(any(row["valid"] is False or row["error"] for row in results))


def _products(args: argparse.Namespace) -> list[Shape]:
    """The products that the arguments ask for, without duplicates; one of 1024³ by default."""
    given = shape(args)
    sizes = [*([given] if given else []), *(args.shapes or []), *(args.sizes or [])] or [(1024, 1024, 1024)]
    return [Shape(m, n, k, args.batch, args.trans) for m, n, k in dict.fromkeys(sizes)]


def _kernels(args: argparse.Namespace) -> list[Kernel]:
    """The kernels of --kernel. Raises Mistake if a kernel is unknown or has another type than --dtype."""
    kernels = check_kernels(args.kernel)
    if wrong := [row for row in kernels if row.dtype not in ("*", args.dtype)]:
        raise Mistake(f"--kernel {wrong[0].name} multiplies {wrong[0].dtype}: add --dtype {wrong[0].dtype}")
    return kernels


def _introduce(devices: list[Device], missing: dict[str, str]) -> None:
    """Print the devices that take part, and why others do not."""
    for device in devices:
        threads = f", {text.counted(device.limits['threads'], 'thread')}" if "threads" in device.limits else ""
        print(f"  {device.key:9} {named(device)}{threads}")
    for why in missing.values():
        print(f"  without {why}")


def _conclude(peaks: dict[str, Peak]) -> None:
    """Print the peaks and the method of the measurement."""
    print()
    for known in dict.fromkeys(peaks.values()):
        keys = ", ".join(key for key in peaks if peaks[key] == known)
        print(f"Peak of {keys}: {known.gflops:.4g} GFLOP/s, {known.basis}.")
    print(textwrap.fill(METHOD, 110))


def _contest(
    args: argparse.Namespace, product: Shape, entries: list[Entry], peaks: dict[str, Peak]
) -> tuple[list[Row], list[Row]]:
    """Time one product and print its table. Returns the results and the ratios."""
    a, b = product.operands(args.dtype)
    entered: list[Contestant] = []
    failed: list[Row] = []
    with text.Progress(len(entries) * (1 + args.iterations)) as progress:
        for entry in entries:
            progress.step(f"{product}: first call on {entry.device.key}", 0)
            try:
                entered.append(enter(entry, product, a, b))
            except (BackendUnavailable, KernelFailed) as error:
                failed.append(_row(product, entry.device, entry.kernel or "–", error=str(error)))
            progress.step(f"{product}: first call on {entry.device.key}")
        if entered:
            contest.compete(entered, args.iterations, args.warmup, lambda name: progress.step(f"{product}: {name}"))
        checked = contest.check(entered, product, a, b) if args.validate else None
    rows = [_result(product, one, peaks.get(one.device.key), checked) for one in entered] + failed
    ratios = _ratios(product, entered)
    _show(product, rows)
    _compare(entered, ratios)
    if args.reproducible and args.validate:
        _compare_bits([one for one in entered if one.device.backend != "numpy"])
    return rows, ratios


def _row(product: Shape, device: Device, kernel: str, **known: Any) -> Row:
    """A result with the values `known`; all other values are null."""
    return {
        **dict.fromkeys(COLUMNS), **asdict(product), "backend": device.backend, "device": device.key, "kernel": kernel,
        "host_samples_s": [], "resident_samples_s": [], **known,
    }  # fmt: skip


def _result(product: Shape, one: Contestant, peak: Peak | None, checked: str | None) -> Row:
    """The result of a contestant that ran."""
    known: Row = {}
    for name, samples in (("host", one.host), ("resident", one.resident or one.host)):
        median = statistics.median(samples)
        known |= {f"{name}_s": median, f"{name}_best_s": min(samples), f"{name}_gflops": product.flops / median / 1e9,
                  f"{name}_samples_s": samples}  # fmt: skip
    worst = one.worst if one.worst is not None and math.isfinite(one.worst) else None
    return _row(
        product, one.device, one.kernel, cold_s=one.cold, **known,
        percent_of_peak=100 * known["resident_gflops"] / peak.gflops if peak else None,
        valid=None if one.worst is None else one.worst <= 1, worst_error=worst, checked=checked,
        sha256=one.sha256 or None,
    )  # fmt: skip


def _ratios(product: Shape, entered: list[Contestant]) -> list[Row]:
    """For each contestant, the median over the rounds of (time of the cpu backend's fastest kernel ÷ its own time)."""
    cpu = _cpu(entered)
    if cpu is None:
        return []
    return [
        {**asdict(product), "device": one.device.key, "kernel": one.kernel, "host": _ratio(cpu, one.host),
         "resident": _ratio(cpu, one.resident or one.host)}
        for one in entered if one is not cpu
    ]  # fmt: skip


def _ratio(reference: Contestant, samples: list[float]) -> float:
    """The median over the rounds of (host-to-host time of `reference` ÷ time in `samples`)."""
    return statistics.median(verdicts.ratios(reference.host, samples))


def _cpu(entered: list[Contestant]) -> Contestant | None:
    ours = [one for one in entered if one.device.backend == "cpu"]
    return min(ours, key=lambda one: statistics.median(one.host), default=None)


def _show(product: Shape, rows: list[Row]) -> None:
    """Print the table of one product, then the failures."""
    checked = [row for row in rows if row["valid"] is not None]
    head = ["device", "kernel", "cold", "host-to-host", "GFLOP/s", "resident", "GFLOP/s", "of peak"]
    lines = []
    for row in rows:
        peak = row["percent_of_peak"]
        resident = [text.seconds(row["resident_s"]), text.number(row["resident_gflops"])]
        lines.append([
            row["device"], row["kernel"], text.seconds(row["cold_s"]), text.seconds(row["host_s"]),
            text.number(row["host_gflops"]),
            *(["=", "="] if row["resident_samples_s"] is row["host_samples_s"] else resident),
            "–" if peak is None else f"{peak:.0f} %",
            *([{None: "–", True: "ok", False: "WRONG"}[row["valid"]]] if checked else []),
        ])  # fmt: skip
    print()
    text.table([*head, *(["checked"] if checked else [])], lines, numbers=range(2, 8), title=str(product))
    for row in rows:
        name, worst = f"{row['kernel']} on {row['device']}", row["worst_error"]
        if row["error"]:
            print(f"FAILED {name}: {row['error']}")
        if row["valid"] is False:
            much = "not a number" if worst is None else f"{worst:.3g} times the bound"
            print(f"FAILED {name}: the result is wrong, its largest error {much}")
    if checked and all(row["valid"] for row in checked):
        worst = max(row["worst_error"] for row in checked)
        results = text.counted(len(checked), "result")
        print(f"Checked {checked[0]['checked']} of {results}: largest error {worst:.2g} of the bound.")


def _compare(entered: list[Contestant], ratios: list[Row]) -> None:
    """Print how the cpu backend compares with the other contestants, and which contestant is fastest."""
    cpu = _cpu(entered)
    others = [one for one in entered if one is not cpu]
    for one, ratio in zip(others, ratios, strict=False):  # `ratios` is empty if the cpu backend does not take part
        name, title = _names(one)
        line = f"CPU against {title}: {_against(ratio['host'], name)}"
        if one.resident:
            line += f" host-to-host; with resident operands, {_against(ratio['resident'], name)}"
        print(f"{line}.")
    if len(entered) > 1:
        reference = cpu or entered[0]
        ranked = sorted(((_ratio(reference, one.host), one) for one in entered), key=lambda pair: -pair[0])
        (best, first), (second, _) = ranked[:2]
        print(f"Fastest host-to-host: {first.kernel} on {first.device.key}, {text.faster(best / second)} the next.")


def _compare_bits(ordered: list[Contestant]) -> None:
    """Print whether the reproducible results have the same bits."""
    if len(ordered) > 1:
        same = len({one.sha256 for one in ordered}) == 1
        how = f"have the same bits, sha256 {ordered[0].sha256[:16]}" if same else "DIFFER"
        print(f"The reproducible results of {text.counted(len(ordered), 'contestant')} {how}.")


def _names(one: Contestant) -> tuple[str, str]:
    """The name and the title of a contestant, such as "the GPU" and "GPU (cuda:0, sgemm_cuda_tile)"."""
    device = one.device
    if device.backend in ("numpy", "cpu"):
        return 2 * ("NumPy" if device.backend == "numpy" else one.kernel,)
    name, title = ("the GPU", "GPU") if device.kind == "gpu" else (device.key, "OpenCL on the CPU")
    return name, f"{title} ({device.key}, {one.kernel})"


def _against(ratio: float, name: str) -> str:
    """A phrase that says which is faster, the cpu backend or the contestant `name`, and by which factor.

    ratio: the time of the cpu backend ÷ the time of the contestant.
    """
    if ratio >= 1:
        return f"{name} is {text.faster(ratio)} the cpu backend"
    return f"the cpu backend is {text.faster(1 / ratio)} {name}"
