"""`gemm bench --compare` and `--compare-to`: compare, print, write. See gemm.compare."""

from __future__ import annotations

import argparse
import importlib.util
import time
from functools import partial
from pathlib import Path

from gemm.bench import charts, report, verdicts
from gemm.bench.comparison import Comparison, compare
from gemm.bench.contestants import PEERS
from gemm.bench.products import FAMILIES, cases
from gemm.bench.sweep import COLUMNS, PACES
from gemm.cli.arguments import (
    Mistake,
    arithmetic,
    pace,
    save_csv,
    save_json,
    save_text,
    select,
    some_of,
    writable,
)
from gemm.core import text
from gemm.core.problem import Device
from gemm.frontend.inventory import device_facts, machine

COMPARISON_OPTIONS = ("quick", "families", "peers", "html", "plots")
"""Options that only a comparison takes."""
CURVE = 4
"""The smallest number of sizes for which curves are drawn in the terminal."""
BENCHMARK_OPTIONS = ("M", "N", "K", "shapes", "kernel", "validate", "warmup")
"""Options of a benchmark that a comparison does not take."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison to the parser of `gemm bench`, as a group of their own."""
    group = parser.add_argument_group(
        "comparison", "families of products on every backend and in other libraries, offload thresholds, a report"
    )
    group.add_argument("--compare", action="store_true",
                       help="measure families of products; with --sizes, only squares of these sizes, unless "
                       "--families names other families")  # fmt: skip
    group.add_argument("--compare-to", type=Path, metavar="FILE",
                       help="repeat the products of FILE, written by --json, and show what became slower")  # fmt: skip
    group.add_argument("--quick", action="store_true", help="fewer products, in about a minute")
    group.add_argument(
        "--families",
        type=some_of(FAMILIES),
        metavar="LIST",
        help=f"comma-separated: {', '.join(FAMILIES)} (default: all)",
    )
    group.add_argument("--peers", type=some_of((*PEERS, "none")), metavar="LIST",
                       help=f"comma-separated: {', '.join(PEERS)}, or none (default: all installed ones)")  # fmt: skip
    group.add_argument("--html", type=writable, metavar="FILE",
                       help="write a report: one HTML page that loads no other file")  # fmt: skip
    group.add_argument("--plots", type=Path, metavar="FOLDER", help="write the charts as SVG and PNG")


def wanted(args: argparse.Namespace) -> bool:
    """Whether the user asks for a comparison. Raises Mistake for options that exclude each other."""
    asked = args.compare or args.compare_to is not None
    for name in BENCHMARK_OPTIONS if asked else COMPARISON_OPTIONS:
        if getattr(args, name):
            option = f"-{name}" if len(name) == 1 else f"--{name}"
            raise Mistake(f"{option} {'does not go with --compare' if asked else 'belongs to --compare'}")
    if asked and (args.batch, args.trans) != (1, "NN"):
        raise Mistake("--batch and --trans do not go with --compare: the families determine the products")
    if args.compare_to and (args.quick or args.families or args.sizes):
        raise Mistake("--quick, --families and --sizes do not go with --compare-to: the file determines the products")
    return bool(asked)


def run(args: argparse.Namespace) -> int:
    """Compare, print and write the results, and return the exit status."""
    if (args.html or args.plots) and importlib.util.find_spec("matplotlib") is None:
        raise Mistake("charts need the package matplotlib: pip install matplotlib")
    families = args.families or (["squares"] if args.sizes else FAMILIES)
    peers = [] if args.peers == ["none"] else args.peers or PEERS
    how = arithmetic(args)
    devices, missing = select(args)
    old = _earlier(args.compare_to, devices) if args.compare_to else None
    if old:
        args.quick, products, how = old.document["quick"], old.cases(), report.arithmetic(old.document)
    else:
        products = cases(families, quick=args.quick, sizes=[m for m, _, _ in args.sizes or ()])
    start = time.monotonic()
    timed = partial(compare, quick=args.quick, dtype=how, devices=devices, peers=peers,
                    pace=pace(args, PACES[args.quick]))  # fmt: skip
    with text.Progress(len(products)) as bar:
        found = timed(products=products, missing=missing, step=bar.step)
    if not found.rows and (absent := found.document["absent"]):
        raise Mistake(f"nothing could be measured: {'; '.join(f'{name}: {why}' for name, why in absent.items())}")
    show(found)
    slower = _regressions(old, found, timed) if old else []
    if args.json:
        save_json(args.json, found.document)
    if args.csv:
        save_csv(args.csv, COLUMNS, found.rows)
    if args.html:
        save_text(args.html, found.page())
        print(f"Report: {args.html}")
    if args.plots:
        try:
            written = charts.save(found.document, args.plots)
        except OSError as error:
            raise Mistake(f"cannot write to {args.plots}: {error.strerror}") from None
        print(f"{text.counted(len(written), 'chart')} in {args.plots}")
    print(f"It took {text.seconds(time.monotonic() - start)}.")
    return int(bool(slower or found.failures()))


def _earlier(path: Path, devices: list[Device]) -> Comparison:
    try:
        old = Comparison.load(path)
        verdicts.check(old.document, machine(), list(map(device_facts, devices)))
    except (OSError, ValueError) as error:
        raise Mistake(f"--compare-to {path.name}: {error}") from None
    return old


def show(found: Comparison) -> None:
    """Print the contestants, tables, curves and thresholds."""
    document = found.document
    for name, about in document["contestants"].items():
        text.say(f"  {name:12} {about}")
    text.say(*(f"  without {name}: {why.removeprefix(f'{name}: ')}" for name, why in document["absent"].items()))
    for family in document["families"]:
        _show_family(found, family)
    head, lines = report.thresholds(document)
    print()
    if lines:
        heads = [name.replace(" ", "\n", 1) for name in head]
        text.table(heads, lines, numbers=range(2, len(head)), title="Offload thresholds")
    show_links(document["links"])
    about = report.THRESHOLDS if lines else report.no_thresholds(document)
    text.say(*dict.fromkeys((about, *report.notes(document), report.headline(document))))


def show_links(links: dict[str, dict[str, float]]) -> None:
    """Print the rates of transfers and the latencies of launches of the devices, if there are any."""
    head, lines = report.links(links)
    if lines:
        heads = ["\n".join(name.rsplit(" ", 1)) for name in head]
        text.table(heads, lines, numbers=range(1, len(head)), title=report.LINKS_TITLE)


def _show_family(found: Comparison, family: str) -> None:
    """Print the table of a family, and the curves of its rates if the family is a single series."""
    head, lines = report.family(found.document, family)
    rates = [[name, shape, *map(report.rate, rows)] for name, shape, rows in lines]
    print()
    title = f"{family}, {report.arithmetic(found.document)}, GFLOP/s"
    text.table([name.replace(", ", "\n") for name in head], rates, numbers=range(2, len(head)), title=title)
    if any("~" in cell for line in rates for cell in line[2:]):
        text.say(report.ROUGH_RATES)
    if len(lines) >= CURVE and len({row["series"] for row in found.rows if row["family"] == family} - {""}) == 1:
        points = {
            title: {row["size"]: row["gflops"] for _, _, rows in lines if (row := rows[at])}
            for at, title in enumerate(head[2:])
        }  # fmt: skip
        print("", *text.curves(points, unit="GFLOP/s"), sep="\n")


def _regressions(old: Comparison, found: Comparison, timed: partial[Comparison]) -> list[verdicts.Change]:
    """Print what changed since `old`, and return the times that became slower.

    A product with a slower time is measured again. The time counts as slower only if it is slower in each measurement.

    Args:
        timed: gemm.bench.comparison.compare with the arguments that are the same in each measurement.
    """
    noise = verdicts.noise(old.rows, found.rows)
    changes = verdicts.changes(old.rows, found.rows, noise)
    slower = verdicts.regressions(changes)
    for _ in range(verdicts.AGAIN):
        suspects = {(each.row["family"], each.row["name"]) for each in slower}
        again = [case for case in old.cases() if (case.family, case.name) in suspects]
        if not again:
            break
        with text.Progress(len(again)) as bar:
            rows = timed(products=again, step=bar.step).rows
        noise = max(noise, verdicts.noise(old.rows, rows))
        slower = verdicts.confirmed(slower, verdicts.regressions(verdicts.changes(old.rows, rows, noise)))
    print()
    if slower:
        lines = [
            [each.row["name"], each.row["contestant"], each.row["mode"], str(each.row["products"]),
             text.seconds(each.before), text.seconds(each.row["seconds"]), f"{each.ratio:.2f}"]
            for each in slower
        ]  # fmt: skip
        head = ["product", "contestant", "mode", "products", "then", "now", "then ÷ now"]
        title = f"Slower than on {old.document['date'][:10]}, measured {1 + verdicts.AGAIN} times"
        text.table(head, lines, numbers=range(3, 7), title=title)
    ours = [each.verdict for each in changes if each.ours]
    loud = ", because other libraries' times changed as well" if noise > verdicts.TOLERANCE else ""
    print(f"Of {text.counted(len(ours), 'measured time')}, {len(slower)} became slower, {ours.count('faster')} faster, "
          f"by more than {noise:.0%}{loud}.")  # fmt: skip
    return slower
