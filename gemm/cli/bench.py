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
import textwrap
from dataclasses import asdict
from typing import Any

from gemm.bench import contest, phrases
from gemm.bench.contest import Contestant, Entry, Shape
from gemm.bench.peak import Peak, peak
from gemm.catalog import Kernel
from gemm.cli import compare, standings, text
from gemm.cli.arguments import (
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
from gemm.frontend import report

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
Row = dict[str, Any]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_shape(parser)
    parser.add_argument("--shapes", type=shapes, metavar="LIST", help="MxNxK,MxNxK,...")
    parser.add_argument("--sizes", type=_sizes, metavar="LIST", help="N,N,... for N × N × N")
    parser.add_argument("--trans", choices=("NN", "NT", "TN", "TT"), default="NN", help="layouts of a and b")
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
        from gemm.cli.comparing import run as compared  # imported here because it loads the drawing modules

        return compared(args)
    args.iterations, args.warmup = args.iterations or ROUNDS, args.warmup or WARMUP
    shapes, rows = _shapes(args), _named(args)
    found, missing = select(args)
    entries = [
        Entry(backend, device, name, args.reproducible)
        for backend, device in found
        for name in [row.name for row in rows if row.backend == backend.name] or (None,)
    ]
    peaks = {device.key: known for _, device in found if (known := peak(device, args.dtype))}
    print(f"{args.dtype}, {phrases.counted(args.iterations, 'round')}{', reproducible' if args.reproducible else ''}")
    _introduce([device for _, device in found], missing)
    if not rows and any(device.kind == "gpu" or backend.name == "opencl" for backend, device in found):
        look_for_devices()
    results: list[Row] = []
    ratios: list[Row] = []
    for each in shapes:
        try:
            some, more = _contest(args, each, entries, peaks)
        except MemoryError:
            raise Mistake(f"there is not enough memory for {each}") from None
        results += some
        ratios += more
    _conclude(peaks)
    if args.json:
        document = {
            "schema": "gemm-bench/1", **report.head(), "dtype": args.dtype, "reproducible": args.reproducible,
            "iterations": args.iterations, "warmup": args.warmup, "method": METHOD,
            "devices": [report.device_facts(device) for _, device in found],
            "peaks": {key: asdict(known) for key, known in peaks.items()}, "results": results, "ratios": ratios,
        }  # fmt: skip
        save_json(args.json, document)
    if args.csv:
        save_csv(args.csv, standings.COLUMNS, results)
    return 1 if any(row["valid"] is False or row["error"] for row in results) else 0


def _shapes(args: argparse.Namespace) -> list[Shape]:
    """The products that the arguments ask for, without duplicates; one of 1024³ by default."""
    given = shape(args)
    sizes = [*([given] if given else []), *(args.shapes or []), *(args.sizes or [])] or [(1024, 1024, 1024)]
    return [Shape(m, n, k, args.batch, args.trans) for m, n, k in dict.fromkeys(sizes)]


def _named(args: argparse.Namespace) -> list[Kernel]:
    """The kernels of --kernel. Raises Mistake if a kernel is unknown or has another type than --dtype."""
    rows = check_kernels(args.kernel)
    if wrong := [row for row in rows if row.dtype not in ("*", args.dtype)]:
        raise Mistake(f"--kernel {wrong[0].name} multiplies {wrong[0].dtype}: add --dtype {wrong[0].dtype}")
    return rows


def _introduce(devices: list[Device], missing: dict[str, str]) -> None:
    """Print the devices that take part, and why others do not."""
    for device in devices:
        origin = ", ".join(part for part in (device.platform, device.driver) if part)
        threads = f", {phrases.counted(device.limits['threads'], 'thread')}" if "threads" in device.limits else ""
        print(f"  {device.key:9} {device.name}{f' ({origin})' if origin else ''}{threads}")
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
    args: argparse.Namespace, each: Shape, entries: list[Entry], peaks: dict[str, Peak]
) -> tuple[list[Row], list[Row]]:
    """Time one shape and print its table. Returns the results and the ratios."""
    a, b = each.operands(args.dtype)
    entered: list[Contestant] = []
    rows: list[Row] = []
    with text.Progress(len(entries) * (1 + args.iterations)) as progress:
        for entry in entries:
            progress.step(f"{each}: first call on {entry.device.key}", 0)
            try:
                entered.append(contest.enter(entry, each, a, b))
            except (BackendUnavailable, KernelFailed) as error:
                rows.append(standings.row(each, entry.device, entry.kernel or "–", error=str(error)))
            progress.step(f"{each}: first call on {entry.device.key}")
        if entered:
            contest.compete(entered, args.iterations, args.warmup, lambda name: progress.step(f"{each}: {name}"))
        checked = contest.check(entered, each, a, b) if args.validate else None
    rows = [standings.figures(each, one, peaks.get(one.device.key), checked) for one in entered] + rows
    ratios = standings.ratios(each, entered)
    standings.show(each, rows)
    standings.compare(entered, ratios, reproducible=args.reproducible and args.validate)
    return rows, ratios
