"""Compare the CPU backend with other matrix multiplications for CPUs, each library in its own process.

    python benchmarks/cpu_vs_peers.py [--threads 1,2] [--dtype float32,float64] [--json FILE]
    python benchmarks/cpu_vs_peers.py --families square --peers openblas,mkl --library amd-blis=/opt/aocl/libblis-mt.so
    python benchmarks/cpu_vs_peers.py --families square,skinny --shapes 33,256,16x2000x2000 --rounds 5 --sample 1
    python benchmarks/cpu_vs_peers.py --families thin,random --seed 3 --count 500 --threads 1 --worst 20
    python benchmarks/cpu_vs_peers.py --quick

In a checkout, pip install ".[peers]" installs the peers that PyPI has. Debian's libblis4-pthread and any library with
cblas_sgemm (--library NAME=PATH) can take part. Missing peers are listed and skipped.

A library runs in a process that lives as long as the comparison, with its own copy of the operands. Each round samples
every contestant, in rotating order, after the threads of the previous contestant have gone to sleep. A ratio
is the median over the rounds of the peer's time ÷ our time. If it is above 1, gemm is faster. A contestant whose call
takes half a second or more is sampled once, outside the rounds.

Contestants are compared at the same level. Each contestant prepares as much as its interface allows, and is then called
in a loop at one of two levels:

    C         a compiled loop calls C functions: cblas_?gemm of the libraries, including NumPy's OpenBLAS, and our
              gemm_run ("gemm"). The cost of Python bindings is excluded. A C compiler is needed (gemm/bench/peers).
    Python    a loop in Python calls Python functions: np.matmul(out=), torch.mm(out=), and our plan ("plan").

The ratio of a peer refers to our time at the peer's level. The family "call" measures the complete cost for users of
Python.

    family        products
    square        square matrices
    skinny        one or two short dimensions, in every layout of a and b
    thin          m or n of 1, 2, 3 and 5, in every layout
    random        --count products with log-uniform sides and random layouts, from --seed
    batched       stacks in one call, also with one b for all products, also cut out of larger matrices
    call          small products: plan and gemm compared with np.matmul
    rotation      the cost of a call with a new shape each time, or with a new alpha
    prepare       a right-hand side that is packed beforehand
    dtypes        types other than float32 and float64
    scaling       each contestant compared with itself on one thread
    beside        a product just after a product of another library in the same process, whose threads still spin.
                  Ratios: each peer's time beside this neighbour ÷ gemm's time beside the neighbour. For the neighbour
                  itself: its time beside gemm ÷ gemm's time beside it
    contention    with --contention: another process keeps one core busy

The FMA peak is measured by chains of fused multiply-adds in registers on all threads, without a product. The read rate
is that of the best of several loops that read as many bytes as a matrix-vector product reads. It is measured only for
matrix-vector products whose operands have at least 48 MiB.

The JSON document ("gemm-cpu-peers/3", seconds):

    date, command, commit, versions, machine, environment, cpuinfo {model name, flags, caches}, device, rounds,
    sample_s, peers {name: about}, absent, unable {contestant: {operands: why}}
    peaks       {dtype: {threads: {gflops (of all threads together), basis}}}
    read_gbs    {threads: {bytes: GB/s}}
    results     [{family, dtype, threads, m, n, k, batch (0: no stack), layout, kernel (ours), ratios, spreads,
                best_peer, ratio, seconds, gflops, cores, settling, repeats, worst_error, samples, and by family
                percent_of_peak, percent_of_read, plain_ratios, call_seconds, gain, speedup, slowdown}]
    means       [{family, dtype, threads, rows, peers, best, least, lost, low}]
    quiet       {load_before, load_after, others_cores, stolen, median_spread, warnings}

- spreads: the interquartile range ÷ the median of the rounds' ratios.
- cores: CPU time ÷ wall time.
- settling: how long threads kept running after a sample.
- worst_error: in units of the contract's bound; null for NaN, infinity or a wrong integer.
- peers, best (in means): the geometric means of each peer's ratios, and of the ratios to each row's best peer.
- least, lost, low: the least ratio to the best peer, and the numbers of rows where it is below 1 and below 0.9.

The exit status is 1 if one of our results exceeds the error bound, or a peer's result exceeds four times the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from peers import families
from peers.families import Contest, Row
from peers.roofs import cpuinfo
from peers.shapes import DTYPES, MAIN, QUICK, SHAPES, Shape, random_shapes
from peers.tables import shape, show, show_means, show_roofs, show_worst
from peers.theirs import PEERS, makers

from gemm.backends import registry
from gemm.bench.contest import Watch
from gemm.cli.arguments import listed, positive, save_json
from gemm.core import text
from gemm.core.problem import PRECISIONS
from gemm.core.threads import granted
from gemm.frontend import inventory

LOOSE = 4.0
"""The largest allowed error of a peer, in units of our error bound. Peers do not promise our bound."""
OURS = ("gemm", "plan", "prepared")


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = recorded.parser(__doc__, rounds=9)
    cores = granted()
    parser.add_argument("--threads", type=recorded.counts, default=sorted({1, cores}), metavar="LIST",
                        help=f"numbers of threads (default: {','.join(map(str, sorted({1, cores})))})")  # fmt: skip
    parser.add_argument("--dtype", type=_of("--dtype", DTYPES), default=list(DTYPES), metavar="LIST",
                        help=f"of {','.join(DTYPES)} (default: all, each in its families)")  # fmt: skip
    parser.add_argument("--peers", type=_of("--peers", PEERS), default=list(PEERS), metavar="LIST",
                        help=f"of {','.join(PEERS)} (default: all)")  # fmt: skip
    parser.add_argument("--library", type=_library, action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--families", type=_of("--families", SHAPES), metavar="LIST",
                        help=f"of {','.join(SHAPES)} (default: all but contention)")  # fmt: skip
    parser.add_argument("--shapes", type=_shapes, metavar="LIST", help="only these shapes, such as 256,1x4096x4096")
    parser.add_argument("--precision", choices=PRECISIONS, default="highest", help="of our products (default: highest)")
    parser.add_argument("--contention", action="store_true", help="also while another process keeps one core busy")
    parser.add_argument("--sample", type=float, default=2.0, metavar="MS", help="length of a sample (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="of the family random (default: 1)")
    parser.add_argument("--count", type=positive, default=200, help="products of the family random (default: 200)")
    parser.add_argument("--worst", type=positive, metavar="N", help="also print the N lowest ratios of all tables")
    parser.add_argument("--quick", action="store_true", help="a few tiny products, to test the script itself")
    return parser


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


def _shapes(argument: str) -> set[tuple[int, ...]]:
    sizes = [tuple(map(positive, item.split("x"))) for item in listed(argument)]
    if any(len(size) not in (1, 3) for size in sizes):
        raise argparse.ArgumentTypeError(f"are N or MxNxK, not {argument!r}")
    return {size * 3 if len(size) == 1 else size for size in sizes}


def main(argv: list[str] | None = None) -> int:
    """Time the contestants, print and write the results, and return the exit status."""
    args, start = arguments().parse_args(argv), time.monotonic()
    cores = granted()  # read before a contestant changes the number of threads
    if args.threads[-1] > cores:
        print(f"--threads {args.threads[-1]}: this process may use {cores}", file=sys.stderr)
        return 2
    (device,) = registry.backend("cpu").devices()
    rounds, sample = (3, 2e-4) if args.quick else (args.rounds, args.sample / 1e3)
    head, watch = inventory.head(), Watch()
    contest = Contest(makers(args.peers, dict(args.library)), rounds, sample, args.quick, args.precision)
    about = {peer.name: peer.about for peer in (*contest.levels, *contest.peers.values())}
    print(f"{device.name}, commit {head['commit']}, {contest.rounds} rounds")
    for name, what in about.items():
        print(f"  {name:10} {what}")
    for name, why in contest.absent.items():
        print(f"  without {name}: {why}")

    def document(rows: list[Row]) -> Row:
        spreads = [row["spreads"][row["best_peer"]] for row in rows if row["best_peer"]]
        return {
            "schema": "gemm-cpu-peers/3", **head, "cpuinfo": cpuinfo(), "device": inventory.device_facts(device),
            "rounds": rounds, "sample_s": sample, "peers": about, "absent": contest.absent, "unable": contest.unable,
            **contest.roofs(), "results": rows, "means": families.summary(rows), "quiet": watch.facts(spreads),
        }  # fmt: skip

    rows: list[Row] = []
    for some in _run(args, contest):
        rows += some
        if args.json:  # write after each table, so that an interrupted run leaves its results
            save_json(args.json, _rounded(document(rows)), indent=None)
    whole = document(rows)
    show_means(whole["means"])
    if args.worst:
        show_worst(rows, args.worst)
    show_roofs(whole["peaks"], whole["read_gbs"])
    wrong = _wrong(rows)
    text.bullets("Not multiplied by:", _unable(contest.unable))
    text.bullets("Wrong results:", wrong)
    text.bullets("Threads: told one number, used another:", _disobedient(rows))
    print(f"\nIt took {time.monotonic() - start:.0f} s.")
    text.bullets("The machine was not quiet; do not quote these figures:", whole["quiet"]["warnings"])
    return 1 if wrong else 0


def _run(args: argparse.Namespace, contest: Contest) -> Iterator[list[Row]]:
    """Time one table of products after the other. Print each table and yield its rows."""
    chosen = args.families or [name for name in SHAPES if name != "contention"]
    if args.contention and "contention" not in chosen:
        chosen.append("contention")
    for family in chosen:
        shapes = _wanted((QUICK if args.quick else SHAPES)[family], args.shapes)
        if family == "random":
            shapes = random_shapes(args.seed, 3 if args.quick else args.count)
        most = args.threads[-1:]
        several = [n for n in most if n > 1]
        special = {"call": [1], "rotation": [1], "contention": most, "scaling": several, "beside": several}
        counts = special.get(family, args.threads)
        for dtype in args.dtype:
            for threads in counts if (family == "dtypes") != (dtype in MAIN) else ():
                some = list(contest.rows(family, shapes, dtype, threads))
                if some:
                    show(family, dtype, threads, some)
                    yield some


def _wanted(shapes: list[Shape], only: set[tuple[int, ...]] | None) -> list[Shape]:
    return [shape for shape in shapes if only is None or shape[:3] in only]


def _rounded(value: Any) -> Any:
    """Round all floats to five digits. Further digits are noise, and would double the size of the file."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _unable(unable: dict[str, dict[str, str]]) -> list[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name, reasons in unable.items():
        for what, why in reasons.items():
            by_reason.setdefault((name, why), []).append(what)
    return [f"{name}: {', '.join(what)}: {why}" for (name, why), what in by_reason.items()]


def _wrong(rows: list[Row]) -> list[str]:
    found = []
    for row in rows:
        for name, error in row["worst_error"].items():
            if error is None or error > (1 if name.startswith(OURS) else LOOSE):
                much = "not finite or not exact" if error is None else f"{error:.3g} times the bound"
                found.append(f"{name}: {shape(row)} {row['dtype']}: {much}")
    return found


def _disobedient(rows: list[Row]) -> list[str]:
    """Contestants that kept more cores busy than their number of threads, so that their ratios are not comparable."""
    most: dict[tuple[str, int], float] = {}
    for row in rows:
        for name, cores in row["cores"].items():
            threads = int(name.partition("@")[2] or row["threads"])
            sampled = row["seconds"][name] * row["repeats"][name]
            if sampled >= 0.02 and cores > threads + 0.25:  # CPU time has steps of 4 ms, too coarse for shorter samples
                key = name.partition("@")[0], threads
                most[key] = max(most.get(key, 0.0), cores)
    return [f"{name}: {cores:.1f} cores with {threads}" for (name, threads), cores in most.items()]


if __name__ == "__main__":
    sys.exit(main())
