"""Carry out `gemm bench --compare` and `--compare-to`: compare, print, write. See gemm.compare."""

from __future__ import annotations

import argparse
import importlib.util
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gemm.bench import phrases, regress, tables
from gemm.bench.comparison import Comparison, Devices, compare
from gemm.bench.families import FAMILIES, cases
from gemm.bench.field import PEERS
from gemm.bench.sweep import COLUMNS
from gemm.cli import plot, text
from gemm.cli.arguments import Mistake, look_for_devices, save_csv, save_json, save_text, select
from gemm.frontend import report


def run(args: argparse.Namespace) -> int:
    """Compare, print and write the results, and return the exit status."""
    if (args.html or args.plots) and importlib.util.find_spec("matplotlib") is None:
        raise Mistake('charts need matplotlib: pip install "gemm[bench]"')
    families = _known("--families", args.families or list(FAMILIES if not args.sizes else ["squares"]), FAMILIES)
    peers = [] if args.peers == ["none"] else _known("--peers", args.peers or list(PEERS), PEERS)
    sizes = [m for m, _, _ in args.sizes] if args.sizes else None
    devices, missing = select(args)
    old = None
    options: dict[str, Any] = {"quick": args.quick, "dtype": args.dtype, "devices": devices, "peers": peers}
    products = cases(families, quick=args.quick, sizes=sizes)
    if args.compare_to:
        old = _earlier(args.compare_to, devices)
        options |= {"quick": old.document["quick"], "dtype": old.document["dtype"]}
        products = old.cases()
    look_for_devices()
    start = time.monotonic()
    with text.Progress(len(products)) as bar:
        found = compare(products=products, missing=missing, step=bar.step, **options)
    show(found)
    slower = _regressions(old, found, options) if old else []
    if args.json:
        save_json(args.json, found.document)
    if args.csv:
        save_csv(args.csv, COLUMNS, found.rows)
    if args.html:
        save_text(args.html, found.page())
        print(f"Report: {args.html}")
    if args.plots:
        _plots(found, args.plots)
    print(f"It took {phrases.seconds(time.monotonic() - start)}.")
    return 1 if slower or found.failures() else 0


def _known(option: str, names: list[str], known: Iterable[str]) -> list[str]:
    if unknown := [name for name in names if name not in known]:
        raise Mistake(f"{option} knows {', '.join(known)}, not {', '.join(unknown)}")
    return names


def _earlier(path: Path, devices: Devices) -> Comparison:
    try:
        old = Comparison.load(path)
        regress.check(old, report.machine(), [report.device_facts(device) for _, device in devices])
    except (OSError, ValueError) as error:
        raise Mistake(f"--compare-to {path.name}: {error}") from None
    return old


def _plots(found: Comparison, folder: Path) -> None:
    from gemm.bench import charts

    try:
        written = charts.save(found.document, folder)
    except OSError as error:
        raise Mistake(f"cannot write to {folder}: {error.strerror}") from None
    print(f"{phrases.counted(len(written), 'chart')} in {folder}")


def show(found: Comparison) -> None:
    """Print the contestants, tables, curves and thresholds."""
    document = found.document
    for name, about in document["contestants"].items():
        print(f"  {name:12} {about}")
    for name, why in document["absent"].items():
        print(f"  without {name}: {why.removeprefix(f'{name}: ')}")
    for family in document["families"]:
        head, lines = tables.family(document, family)
        rates = [[name, what, *(phrases.number(row and row["gflops"]) for row in rows)] for name, what, *rows in lines]
        print()
        text.table(head, rates, numbers=range(2, len(head)), title=f"{family}, {document['dtype']}, GFLOP/s")
        for line in _curves(found, family):
            print(line)
    head, cells = tables.thresholds(document)
    print()
    if cells:
        text.table(head, cells, numbers=range(2, len(head)), title="Offload thresholds")
        print(textwrap.fill(tables.THRESHOLDS, 110))
    else:
        print(tables.NO_DEVICE)
    for note in tables.notes(document):
        print(textwrap.fill(note, 110))


def _curves(found: Comparison, family: str) -> list[str]:
    """A plot of the rates of a family, if the family is a single series."""
    document = found.document
    head, lines = tables.family(document, family)
    sizes = {row["name"]: row["size"] for row in found.rows if row["family"] == family}
    if len({row["series"] for row in found.rows if row["family"] == family} - {""}) != 1 or len(lines) < 2:
        return []
    points = {
        title: {sizes[line[0]]: line[at]["gflops"] for line in lines if line[at]}
        for at, title in enumerate(head) if at > 1
    }  # fmt: skip
    return ["", *plot.curves(points, unit="GFLOP/s")]


def _regressions(old: Comparison, found: Comparison, options: dict[str, Any]) -> list[regress.Change]:
    """Print what changed since `old`. A slower product is measured again, and counts only if it is slower each time."""
    noise = regress.noise(old.rows, found.rows)
    changes = regress.changes(old.rows, found.rows, noise)
    slower = regress.regressions(changes)
    for _ in range(regress.AGAIN):
        if not slower:
            break
        suspects = {(each.row["family"], each.row["name"]) for each in slower}
        again = [case for case in old.cases() if (case.family, case.name) in suspects]
        with text.Progress(len(again)) as bar:
            rows = compare(products=again, step=bar.step, **options).rows
        noise = max(noise, regress.noise(old.rows, rows))
        slower = regress.confirmed(slower, regress.regressions(regress.changes(old.rows, rows, noise)))
    faster = sum(each.ours and each.verdict == "faster" for each in changes)
    print()
    if slower:
        lines = [
            [each.row["name"], each.row["contestant"], each.row["mode"], str(each.row["products"]),
             phrases.seconds(each.before), phrases.seconds(each.row["seconds"]), f"{each.ratio:.2f}"]
            for each in slower
        ]  # fmt: skip
        head = ["product", "contestant", "mode", "products", "then", "now", "then ÷ now"]
        title = f"Slower than on {old.document['date'][:10]}, measured {1 + regress.AGAIN} times"
        text.table(head, lines, numbers=range(3, 7), title=title)
    loud = ", for other libraries' times changed as well" if noise > regress.TOLERANCE else ""
    print(f"{phrases.counted(len(slower), 'time')} of {sum(each.ours for each in changes)} slower, {faster} faster, "
          f"by more than {noise:.0%}{loud}.")  # fmt: skip
    return slower
