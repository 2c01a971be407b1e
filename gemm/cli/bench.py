"""`gemm bench`: time products on every backend of the machine, and compare the CPU with GPUs.

With --compare or --compare-to the command runs a comparison instead (gemm.compare). Without these options, --json
writes a document of the following form. Times are in seconds. A value that does not apply is null.

    schema      "gemm-bench/1"
    date, command, commit, versions, machine, environment    provenance; commit is null outside a checkout
    dtype, inputs, precision, reproducible                   see gemm.bench.products.Arithmetic
    iterations, seconds, warmup, method                      method: what each time means, in words
    devices     [{key, backend, name, platform, driver, kind, unified, features, limits}]
    peaks       {device key: {gflops, basis}}; a device with an unknown peak is absent
    results     [{m, n, k, batch, trans, backend, device, kernel, cold_s, host_s, host_best_s, host_spread,
                  host_gflops, resident_s, resident_best_s, resident_spread, resident_unsettled, resident_gflops,
                  percent_of_peak, valid, worst_error, checked, sha256, error, host_samples_s, resident_samples_s}]:
                one for each contestant, which is a kernel on a device, or NumPy
    ratios      [{m, n, k, batch, trans, device, kernel, host, resident, host_spread, resident_spread}]: the time of
                the cpu backend divided by the time of the contestant, as the median over the rounds
    links       {device key: transfer rates and the latency of a launch; see gemm.bench.peaks.link}
    quiet       see gemm.bench.contest.Watch: if it has warnings, the ratios are not worth quoting

- iterations is the number of rounds that were made.
- cold_s is the time of the contestant's first call. host_* measure from host memory to host memory, transfers included.
  resident_* measure with operands that are already on the device; for a backend in host memory, they equal host_*.
- In `results`, host_s and resident_s are the medians of the samples, and host_spread and resident_spread are the
  samples' interquartile ranges ÷ these medians. In `ratios`, the spreads are those of the rounds' ratios. A spread is
  null for fewer than three samples.
- resident_unsettled: the number of resident samples of a GPU that were taken although its clocks had not settled.
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
from dataclasses import asdict
from typing import Any

from gemm.bench import contest, verdicts
from gemm.bench.contest import Contestant, Pace, Watch
from gemm.bench.contestants import Entry, enter, named
from gemm.bench.peaks import Peak, links, peak
from gemm.bench.peers import Unable
from gemm.bench.products import Shape
from gemm.catalog import Kernel
from gemm.cli import compare
from gemm.cli.arguments import (
    LAYOUTS,
    Mistake,
    add_selection,
    add_shape,
    arithmetic,
    check_kernels,
    listed,
    pace,
    positive,
    save_csv,
    save_json,
    select,
    shape,
    shapes,
    writable,
)
from gemm.core import text
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device
from gemm.frontend import inventory
from gemm.select import probe

HELP = "time products on every backend, CPU against GPU"
EXAMPLES = """examples:
  gemm bench -M 1024 -N 1024 -K 1024 --validate
  gemm bench --sizes 64,256,1024 --backends cpu,opencl,numpy
  gemm bench --shapes 64x4096x4096,4096x64x4096 --dtype float64 --json all.json
  gemm bench --sizes 640 --kernel sgemm_generic_naive --device opencl:0
  gemm bench --compare --html report.html --json today.json
  gemm bench --compare-to yesterday.json

The exit status is 1 when a result was wrong, a kernel failed, or a time is
slower than in the file.
"""
METHOD = (
    "Times are medians over interleaved rounds in one process; IQR is the interquartile range ÷ the median. Calls of "
    "0.3 s or more take part in three rounds, and the longest are timed once, which permits no ratio. cold: the first "
    "call for the shape, which compiles or loads the kernel if the kernel was not in use before. host to host: "
    "gemm.gemm(a, b, out=out) on NumPy arrays, transfers included. resident: the kernel on operands that are already "
    "on the device, until the kernel has finished, on a GPU once its clocks have settled or a second has passed; = if "
    "the device computes in host memory. Percent of peak refers to the resident rate. NumPy: np.matmul(a, b, out=out)."
)
PACE, WARMUP = Pace(10, 20.0), 2
COLUMNS = (
    "m", "n", "k", "batch", "trans", "backend", "device", "kernel", "cold_s", "host_s", "host_best_s", "host_spread",
    "host_gflops", "resident_s", "resident_best_s", "resident_spread", "resident_unsettled", "resident_gflops",
    "percent_of_peak", "valid", "worst_error", "checked", "sha256", "error",
)  # fmt: skip
"""The columns of a result in the CSV file: all values except the samples."""
CPU = "the cpu backend"
Row = dict[str, Any]


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gemm bench`, including those of a comparison."""
    add_shape(parser)
    parser.add_argument("--shapes", type=shapes, metavar="LIST", help="MxNxK,MxNxK,...")
    parser.add_argument("--sizes", type=_sizes, metavar="LIST", help="N,N,... for N × N × N")
    parser.add_argument("--trans", choices=LAYOUTS, default="NN", help="layouts of a and b")
    add_selection(parser)
    parser.add_argument("--iterations", type=positive, metavar="COUNT", help=f"rounds (default: {PACE.rounds})")
    parser.add_argument("--seconds", type=positive, metavar="COUNT",
                        help="time for the rounds of each product: at least 5 rounds, more if they fit")  # fmt: skip
    parser.add_argument("--warmup", type=positive, metavar="COUNT",
                        help=f"untimed calls before the timed ones (default: {WARMUP})")  # fmt: skip
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
    args.warmup, args.pace, how = args.warmup or WARMUP, pace(args, PACE), arithmetic(args)
    products, kernels = _products(args), _kernels(args)
    devices, missing = select(args)
    entries = [
        Entry(device, name, how)
        for device in devices
        for name in [row.name for row in kernels if row.backend == device.backend] or (None,)
    ]
    print(how)
    _introduce(devices, missing)
    if not kernels and any(device.kind == "gpu" or device.backend == "opencl" for device in devices):
        probe.facts()
    peaks = {device.key: known for device in devices if (known := peak(device, how.dtype))}
    between = links(devices)
    watch = Watch()
    results, ratios = _contests(args, products, entries, peaks, watch)
    _conclude(peaks, between)
    if args.json:
        save_json(args.json, {
            "schema": "gemm-bench/1", **inventory.head(), **asdict(how),
            "iterations": max(len(row["host_samples_s"]) for row in results), "seconds": args.pace.seconds,
            "warmup": args.warmup, "method": METHOD, "devices": list(map(inventory.device_facts, devices)),
            "peaks": {key: asdict(known) for key, known in peaks.items()}, "results": results, "ratios": ratios,
            "links": between,
            "quiet": watch.facts([row["host_spread"] for row in ratios if row["host_spread"] is not None]),
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
        text.say(f"  {device.key:9} {named(device)}{threads}")
    text.say(*(f"  without {why}" for why in missing.values()))


def _conclude(peaks: dict[str, Peak], links: dict[str, dict[str, float]]) -> None:
    """Print the peaks, the links between host and devices, and the method of the measurement."""
    print()
    for known in dict.fromkeys(peaks.values()):
        keys = ", ".join(key for key in peaks if peaks[key] == known)
        text.say(f"Peak of {keys}: {known.gflops:.4g} GFLOP/s, {known.basis}.")
    compare.show_links(links)
    text.say(METHOD)


def _contests(
    args: argparse.Namespace, products: list[Shape], entries: list[Entry], peaks: dict[str, Peak], watch: Watch
) -> tuple[list[Row], list[Row]]:
    """The results and the ratios of all products. Raises Mistake if there are no results."""
    results: list[Row] = []
    ratios: list[Row] = []
    unable: list[str] = []
    for product in products:
        try:
            some, more, whys = _contest(args, product, entries, peaks, watch)
        except MemoryError:
            raise Mistake(f"there is not enough memory for {product}") from None
        results += some
        ratios += more
        unable += whys
    if not results:
        raise Mistake(f"nothing could be measured: {'; '.join(dict.fromkeys(unable))}")
    return results, ratios


def _contest(
    args: argparse.Namespace, product: Shape, entries: list[Entry], peaks: dict[str, Peak], watch: Watch
) -> tuple[list[Row], list[Row], list[str]]:
    """Time one product and print its table. Returns the results, the ratios, and why devices could not take part."""
    how = entries[0].arithmetic
    a, b = product.operands(*how.types)
    entered: list[Contestant] = []
    failed: list[Row] = []
    unable: list[str] = []
    with text.Progress(len(entries) * (1 + min(args.pace.rounds, PACE.rounds))) as progress:
        for entry in entries:
            progress.step(f"{product}: first call on {entry.device.key}", 0)
            try:
                entered.append(enter(entry, product, a, b))
            except Unable as error:  # the device has no kernel for these types
                unable.append(f"{entry.device.key}: {error}")
            except (BackendUnavailable, KernelFailed) as error:
                failed.append(_row(product, entry.device, entry.kernel or "–", error=str(error)))
            progress.step(f"{product}: first call on {entry.device.key}")
        contest.compete(entered, args.pace, args.warmup, lambda name: progress.step(f"{product}: {name}"))
        checked = contest.check(entered, product, a, b, how) if args.validate else None
    rows = [_result(product, one, peaks.get(one.device.key), checked) for one in entered] + failed
    ratios = _ratios(product, entered)
    if rows:
        _show(product, rows)
    text.say(*(f"  without {why}" for why in unable), *contest.unsettled(entered))
    _compare(entered, watch)
    if how.reproducible and args.validate:
        _compare_bits([one for one in entered if one.device.backend != "numpy"])
    return rows, ratios, unable


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
        known |= {f"{name}_s": median, f"{name}_best_s": min(samples), f"{name}_spread": verdicts.known_spread(samples),
                  f"{name}_gflops": product.flops / median / 1e9, f"{name}_samples_s": samples}  # fmt: skip
    worst = one.worst if one.worst is not None and math.isfinite(one.worst) else None
    return _row(
        product, one.device, one.kernel, cold_s=one.cold, **known,
        resident_unsettled=one.unsettled if one.resident else None,
        percent_of_peak=100 * known["resident_gflops"] / peak.gflops if peak else None,
        valid=None if one.worst is None else one.worst <= 1, worst_error=worst, checked=checked,
        sha256=one.sha256 or None,
    )  # fmt: skip


def _cpu(entered: list[Contestant]) -> Contestant | None:
    ours = [one for one in entered if one.device.backend == "cpu"]
    return min(ours, key=lambda one: statistics.median(one.host), default=None)


def _ratios(product: Shape, entered: list[Contestant]) -> list[Row]:
    """Compare each other contestant with the cpu backend's fastest kernel. Returns [] if there is no such kernel.

    Each row has the median and the spread of the rounds' ratios (time of that cpu kernel ÷ time of the contestant).
    """
    cpu, rows = _cpu(entered), []
    for one in entered:
        if cpu and one is not cpu:
            row = {**asdict(product), "device": one.device.key, "kernel": one.kernel}
            for name, samples in (("host", one.host), ("resident", one.resident or one.host)):
                rounds = verdicts.ratios(cpu.host, samples)
                row |= {name: statistics.median(rounds), f"{name}_spread": verdicts.known_spread(rounds)}
            rows.append(row)
    return rows


def _show(product: Shape, rows: list[Row]) -> None:
    """Print the table of one product, then the failures."""
    checked = [row for row in rows if row["valid"] is not None]
    head = ["device", "kernel", "cold", "host\nto host", "IQR", "GFLOP/s", "resident", "resident\nIQR",
            "resident\nGFLOP/s", "of peak"]  # fmt: skip
    lines = []
    for row in rows:
        figures: list[str] = []
        for name in ("host", "resident"):
            known = [text.percent(row[f"{name}_spread"]), text.number(row[f"{name}_gflops"])]
            figures += [text.seconds(row[f"{name}_s"]), *known]
        if row["resident_samples_s"] is row["host_samples_s"]:
            figures[3:] = ["=", "=", "="]
        share = row["percent_of_peak"]
        lines.append([
            row["device"], row["kernel"], text.seconds(row["cold_s"]), *figures, text.percent(share and share / 100),
            *([{None: "–", True: "ok", False: "WRONG"}[row["valid"]]] if checked else []),
        ])  # fmt: skip
    print()
    text.table([*head, *(["checked"] if checked else [])], lines, numbers=range(2, 10), title=str(product),
               spare=("cold", "of peak", "resident\nGFLOP/s", "resident\nIQR"))  # fmt: skip
    for row in rows:
        name, worst = f"{row['kernel']} on {row['device']}", row["worst_error"]
        if row["error"]:
            print(f"FAILED {name}: {row['error']}")
        if row["valid"] is False:
            much = "not a number" if worst is None else f"{worst:.3g} times the bound"
            print(f"FAILED {name}: the result is wrong: its largest error is {much}")
    if checked and all(row["valid"] for row in checked):
        worst = max(row["worst_error"] for row in checked)
        results = text.counted(len(checked), "result")
        print(f"Checked {checked[0]['checked']} of {results}: the largest error is {worst:.2g} times the bound.")


def _compare(entered: list[Contestant], watch: Watch) -> None:
    """Print how each contestant's times compare with those of the cpu backend's fastest kernel.

    If neither of the two fastest contestants is that kernel, these two are compared as well. If other processes kept
    the machine too busy, the reason is printed instead.
    """
    cpu = _cpu(entered)
    if len(entered) < 2:
        return
    if noisy := contest.warnings(watch.facts([])):
        text.say(f"No ratios, because {'; '.join(noisy)}. {verdicts.ADVICE}")
        return
    found = []
    for one in entered:
        if cpu and one is not cpu:
            same = " (this CPU)" if inventory.on_this_cpu(one.device.backend, one.device.kind) else ""
            name = "NumPy" if one.device.backend == "numpy" else f"{one.kernel} on {one.device.key}{same}"
            found.append(f"Host to host, {verdicts.compared(verdicts.ratios(cpu.host, one.host), name, CPU)}.")
            if one.resident:
                found.append(f"Resident, {verdicts.compared(verdicts.ratios(cpu.host, one.resident), name, CPU)}.")
    first, second = sorted(entered, key=lambda one: statistics.median(one.host))[:2]
    if first is not cpu and second is not cpu:
        names = (f"{one.kernel} on {one.device.key}" for one in (first, second))
        found.append(f"Fastest host to host: {verdicts.compared(verdicts.ratios(second.host, first.host), *names)}.")
    text.say(*found, f"({verdicts.RATIO})")
    if any("half of the rounds" in line for line in found):
        text.say(verdicts.ADVICE)


def _compare_bits(ordered: list[Contestant]) -> None:
    """Print whether the reproducible results have the same bits."""
    if len(ordered) > 1:
        same = len({one.sha256 for one in ordered}) == 1
        how = f"have the same bits, sha256 {ordered[0].sha256[:16]}" if same else "DIFFER"
        print(f"The reproducible results of {text.counted(len(ordered), 'contestant')} {how}.")
