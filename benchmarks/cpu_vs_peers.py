"""The CPU backend beside the other matrix multiplications for CPUs, in one process.

    python benchmarks/cpu_vs_peers.py [--threads 1,2] [--dtype float32,float64] [--json FILE]
    python benchmarks/cpu_vs_peers.py --families square --peers numpy,mkl --library amd-blis=/opt/aocl/libblis-mt.so
    python benchmarks/cpu_vs_peers.py --quick

pip install "gemm[peers]" brings the peers of PyPI; libblis4-pthread of Debian and any library with cblas_sgemm and
cblas_dgemm (--library NAME=PATH) join. What is absent is named, and left out. Beside PyTorch, MKL has to share its
libgomp; a run with --peers mkl times MKL on Intel's OpenMP.

Each round takes a sample of everyone, in rotating order, after the threads of the one before have come to rest; a
ratio is the median over the rounds of peer's time ÷ ours: above 1 we are faster. Everyone is prepared as far as its
interface goes: we by gemm.plan, NumPy and PyTorch by bound arguments with out=, libraries by converted ctypes
arguments. Such a call costs about 1.4 µs through ctypes. Below 64³ a column "net" gives the ratio with each side's
own call taken off: an empty product of the library, a plan of 1 × 1 × 1 for us; "–" where the rest drowns in noise.

Families: square, skinny, batched (a stack in one call); call: gemm and plan beside np.matmul on small products;
scaling: everyone beside itself on one thread; with --contention also: another process burns one core.

The JSON document ("gemm-cpu-peers/1", seconds):

    date, command, commit, versions, machine, environment, device, rounds, sample_s, peers {name: about}, absent
    peaks {dtype: {gflops (a core), basis}}, read_gbs {threads: GB/s}, call_s {peer: {dtype: s}}
    results     [{family, dtype, threads, m, n, k, batch (0: no stack), ratios, spreads, best_peer, ratio, seconds,
                gflops, cores, settling, repeats, worst_error, samples, and by family net, percent_of_peak,
                percent_of_read, plain_ratios, speedup, slowdown}]
    means       [{family, dtype, threads, rows, peers, best, least, lost}]: geometric means of ratios
    quiet       {load_before, load_after, others_cores, stolen, median_spread, warnings}

spreads: interquartile range ÷ median of the rounds' ratios. cores: CPU time ÷ wall time. settling: how long threads
ran on after a sample. worst_error: in units of the contract's bound, null for NaN or infinity.
The exit status is 1 when our result breaks that bound, or a peer's four times it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import PEERS, families, load, roofs
from peers.busy import cpu_seconds
from peers.families import QUICK, SHAPES, Contest, Row
from peers.quiet import Watch

from gemm import report
from gemm.backends.cpu import num_threads
from gemm.cli import text
from gemm.cli.arguments import DTYPES, listed, positive, save_json, writable
from gemm.dispatch import registry

LOOSE = 4.0
"""Contract bounds that a peer, which promised none, may err by before it counts as wrong."""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = num_threads()
    parser.add_argument("--threads", type=_counts, default=sorted({1, cores}), metavar="LIST",
                        help=f"for everyone (default: {','.join(map(str, sorted({1, cores})))})")  # fmt: skip
    parser.add_argument("--dtype", type=_of("--dtype", DTYPES), default=list(DTYPES), metavar="LIST")
    parser.add_argument("--peers", type=_of("--peers", PEERS), default=list(PEERS), metavar="LIST",
                        help=f"of {','.join(PEERS)} (default: all)")  # fmt: skip
    parser.add_argument("--library", type=_library, action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--families", type=_of("--families", SHAPES), metavar="LIST",
                        help=f"of {','.join(SHAPES)} (default: all but contention)")  # fmt: skip
    parser.add_argument("--contention", action="store_true", help="also beside a process that burns one core")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--sample", type=float, default=2.0, metavar="MS", help="length of a sample (default: 2)")
    parser.add_argument("--quick", action="store_true", help="few tiny products: does it run? Proves nothing")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write everything, too")
    return parser


def _counts(argument: str) -> list[int]:
    return sorted(map(positive, listed(argument)))


def _of(option: str, known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(argument: str) -> list[str]:
        names: list[str] = listed(argument)
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{option} knows {', '.join(known)}, not {', '.join(unknown)}")
        return names

    return parse


def _library(argument: str) -> tuple[str, str]:
    name, _, path = argument.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, not {argument!r}")
    return name, path


def main(argv: list[str] | None = None) -> int:
    """Time, print, write; returns the exit status."""
    args = arguments().parse_args(argv)
    cores = num_threads()  # before a contestant is told another number
    if args.threads[-1] > cores:
        print(f"--threads {args.threads[-1]}: this process may use {cores}", file=sys.stderr)
        return 2
    (device,) = registry.backend("cpu").devices()
    rounds, sample = (3, 2e-4) if args.quick else (args.rounds, args.sample / 1e3)
    head, watch = report.head(), Watch()
    found, absent = load(args.peers, dict(args.library))
    peaks = {dtype: roofs.fma_peak(dtype) for dtype in args.dtype}
    reads = {count: roofs.read_rate(count, *((1 << 24, 1) if args.quick else ())) for count in args.threads}
    contest = Contest(found, rounds, sample, {name: peak["gflops"] for name, peak in peaks.items() if peak}, reads)
    print(f"{device.name}, commit {head['commit']}, {contest.rounds} rounds")
    _introduce(contest, peaks, absent)
    rows = _run(args, contest)
    spreads = [row["spreads"][row["best_peer"]] for row in rows if row["best_peer"]]
    means, quiet = families.summary(rows), watch.finish(spreads, cpu_seconds())
    show_means(means)
    wrong = _wrong(rows)
    text.bullets("Wrong results:", wrong)
    text.bullets("Threads: told one number, used another:", _disobedient(rows))
    text.bullets("The machine was not quiet; do not quote these figures:", quiet["warnings"])
    if args.json:
        calls: dict[str, Any] = {}
        for (name, dtype), seconds in contest.empties.items():
            calls.setdefault(name, {})[dtype] = seconds
        document = {
            "schema": "gemm-cpu-peers/1", **head, "device": report.device_facts(device), "rounds": rounds,
            "sample_s": sample, "peers": {peer.name: peer.about for peer in (contest.ours, *found)}, "absent": absent,
            "peaks": peaks, "read_gbs": {str(count): rate for count, rate in reads.items()}, "call_s": calls,
            "results": rows, "means": means, "quiet": quiet,
        }  # fmt: skip
        save_json(args.json, document)
    return 1 if wrong else 0


def _introduce(contest: Contest, peaks: dict[str, Any], absent: dict[str, str]) -> None:
    for peer in (contest.ours, *contest.peers):
        print(f"  {peer.name:10} {peer.about}")
    for name, why in absent.items():
        print(f"  without {name}: {why}")
    for dtype, peak in peaks.items():
        if peak:
            print(f"FMA peak, {dtype}: {peak['gflops']:.1f} GFLOP/s a core, {peak['basis']}")
    print("Memory reads: " + ", ".join(f"{rate:.1f} GB/s on {n}" for n, rate in contest.reads.items()))


def _run(args: argparse.Namespace, contest: Contest) -> list[Row]:
    """All rows, printed table by table."""
    shapes = QUICK if args.quick else SHAPES
    chosen = args.families or [name for name in SHAPES if name != "contention"]
    if args.contention and "contention" not in chosen:
        chosen.append("contention")
    numpy = Contest([peer for peer in contest.peers if peer.name == "numpy"], contest.rounds, contest.sample)
    rows: list[Row] = []
    for family in chosen:
        most = args.threads[-1:]
        counts = {"call": [1], "contention": most, "scaling": [n for n in most if n > 1]}.get(family, args.threads)
        for dtype in args.dtype:
            for threads in counts:
                who = numpy if family == "call" else contest
                some = list(who.rows(family, shapes[family], dtype, threads))
                show(family, dtype, threads, some)
                rows += some
    return rows


def show(family: str, dtype: str, threads: int, rows: list[Row]) -> None:
    """Print one table."""
    names = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    nets = list(dict.fromkeys(name for row in rows for name in row.get("net", {})))
    own = list(dict.fromkeys(name for row in rows for name in row.get("speedup") or row.get("slowdown") or ()))
    calls = ["gemm()", "gemm", "numpy"] if family == "call" else []
    head = ["product", *names, "best peer", "ours ÷ best", "± spread", *(f"{name} net" for name in nets)]
    head += {"scaling": [f"{name} 1→{threads}" for name in own], "contention": [f"{name} slower" for name in own],
             "call": ["gemm() ÷ numpy", *(f"{'plan' if name == 'gemm' else name} time" for name in calls)]
             }.get(family, ["GFLOP/s", "of peak", "of read"])  # fmt: skip
    lines = []
    for row in rows:
        best = row["best_peer"]
        line = [_shape(row), *(_ratio(row["ratios"].get(name)) for name in names), best or "–", _ratio(row["ratio"])]
        line += [f"{100 * row['spreads'][best]:.0f} %" if best else "–"]
        line += [_ratio(row["net"].get(name)) for name in nets]
        if family == "call":
            line += [_ratio(row["plain_ratios"].get("numpy")), *(text.seconds(row["seconds"].get(x)) for x in calls)]
        elif own:
            table = row.get("slowdown") or {x: speeds[str(threads)] for x, speeds in row["speedup"].items()}
            line += [_ratio(table.get(name)) for name in own]
        else:
            percents = (_percent(row[name]) for name in ("percent_of_peak", "percent_of_read"))
            line += [text.number(row["gflops"]["gemm"]), *percents]
        lines.append(line)
    note = {"contention": " beside a process on one core", "call": ": ratios of plan(a, b, out=c)"}.get(family, "")
    numbers = set(range(1, len(head))) - {len(names) + 1}
    print()
    text.table(head, lines, numbers=numbers, title=f"{family}, {dtype}, {text.counted(threads, 'thread')}{note}")


def show_means(means: list[Row]) -> None:
    """Print the geometric means."""
    names = list(dict.fromkeys(name for mean in means for name in mean["peers"]))
    lines = [
        [m["family"], m["dtype"], str(m["threads"]), *(_ratio(m["peers"].get(name)) for name in names),
         _ratio(m["best"]), _ratio(m["least"]), f"{m['lost']} of {m['rows']}"]
        for m in means
    ]  # fmt: skip
    head = ["family", "dtype", "threads", *names, "best peer", "least", "below 1"]
    print()
    text.table(head, lines, numbers=range(2, len(head)), title="Geometric means of peer's time ÷ ours")


def _shape(row: Row) -> str:
    return f"{row['batch']} × " * bool(row["batch"]) + f"{row['m']} × {row['n']} × {row['k']}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _wrong(rows: list[Row]) -> list[str]:
    found = []
    for row in rows:
        for name, error in row["worst_error"].items():
            if error is None or error > (1 if name.startswith("gemm") else LOOSE):
                much = "not finite" if error is None else f"{error:.3g} times the bound"
                found.append(f"{name}: {_shape(row)} {row['dtype']}: {much}")
    return found


def _disobedient(rows: list[Row]) -> list[str]:
    """Who kept more cores busy than it was given: its ratios do not compare."""
    most: dict[tuple[str, int], float] = {}
    for row in rows:
        for name, cores in row["cores"].items():
            threads = int(name.partition("@")[2] or row["threads"])
            sampled = row["seconds"][name] * row["repeats"][name]
            if sampled >= 0.02 and cores > threads + 0.25:  # the clock of other threads ticks in 4 ms or more
                key = name.partition("@")[0], threads
                most[key] = max(most.get(key, 0.0), cores)
    return [f"{name}: {cores:.1f} cores with {threads}" for (name, threads), cores in most.items()]


if __name__ == "__main__":
    sys.exit(main())
