"""Draws docs/cpu.svg, how the CPU backend stands against its peers, from recorded runs.

    python docs/make_cpu_chart.py benchmarks/results/*/cpu_vs_peers*.json [--output FILE]

The files are those of benchmarks/cpu_vs_peers.py --json, all of one device; where they hold the same product, the last
one counts. A column of panels for each dtype and number of threads, a row for each family; needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().with_name("cpu.svg")
FAMILIES = ("square", "skinny", "batched")
Row = dict[str, Any]


def read(paths: list[Path]) -> tuple[list[Row], list[str], str]:
    """The rows of all files, the order of their peers, and the caption. Raises ValueError for what fits no chart."""
    rows: dict[tuple[Any, ...], Row] = {}
    captions: list[str] = []
    devices: dict[str, None] = {}
    peers: dict[str, None] = {}
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != "gemm-cpu-peers/1":
            raise ValueError(f"{path} was not written by benchmarks/cpu_vs_peers.py")
        peers |= dict.fromkeys(name for row in document["results"] for name in row["ratios"])
        devices[document["device"]["name"]] = None
        commit = (document["commit"] or "an unknown commit").replace("-dirty", " with changes")
        loud = " (not on a quiet machine)" if document["quiet"]["warnings"] else ""
        captions.append(f"{document['date'][:10]}, commit {commit[:12]}{commit[40:]}{loud}")
        for row in document["results"]:
            if row["family"] in FAMILIES and row["ratios"]:
                key = ("family", "dtype", "threads", "m", "n", "k", "batch")
                rows[tuple(row[name] for name in key)] = row
    if len(devices) > 1:
        raise ValueError(f"the files are of several devices ({', '.join(devices)}); draw one chart for each")
    if not rows:
        raise ValueError(f"the files hold no results of {', '.join(FAMILIES)}")
    return list(rows.values()), list(peers), f"{next(iter(devices))}; {'; '.join(dict.fromkeys(captions))}"


def label(row: Row) -> str:
    """A product that is not square, in short."""
    stack = f"{row['batch']}×" if row["batch"] else ""
    return f"{stack}{row['m']}³" if row["m"] == row["n"] == row["k"] else f"{row['m']}×{row['n']}×{row['k']}"


def panel(axes: Any, rows: list[Row], peers: list[str]) -> None:
    """One family's ratios: over the size for squares, else product by product."""
    square = rows[0]["family"] == "square"
    rows = sorted(rows, key=lambda row: row["n"]) if square else rows
    places = [row["n"] for row in rows] if square else range(len(rows))
    style = {"marker": "o", "markersize": 3, "linewidth": 1.2 if square else 0}
    for number, peer in enumerate(peers):
        points = [(x, row["ratios"][peer]) for x, row in zip(places, rows, strict=True) if peer in row["ratios"]]
        if points:
            axes.plot(*zip(*points, strict=True), color=f"C{number}", label=peer, **style)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    if square:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel("m = n = k")
    else:
        axes.set_xticks(list(places), [label(row) for row in rows], rotation=60, ha="right", fontsize=7)


def draw(rows: list[Row], peers: list[str], caption: str, target: Path) -> None:
    """Write the chart."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "gemm"  # the same results give the same file
    from matplotlib import pyplot as plt

    columns = sorted({(row["dtype"], row["threads"]) for row in rows})
    lines = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    size = (1 + 3.6 * len(columns), 1 + 2.9 * len(lines))
    figure, grid = plt.subplots(
        len(lines), len(columns), figsize=size, squeeze=False, sharey="row", layout="constrained"
    )
    names: dict[str, Any] = {}
    for line, family in enumerate(lines):
        for column, (dtype, threads) in enumerate(columns):
            axes = grid[line][column]
            some = [r for r in rows if (r["family"], r["dtype"], r["threads"]) == (family, dtype, threads)]
            if not some:
                axes.set_axis_off()
                continue
            panel(axes, some, peers)
            axes.set_title(f"{family}, {dtype}, {threads} thread{'s' * (threads > 1)}", fontsize=9)
            names |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        grid[line][0].set_ylabel("peer's time ÷ ours")
    figure.suptitle("CPU backend against peers: above 1 it is faster", fontsize=11)
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=len(names), fontsize=8, title=caption,
                  title_fontsize=7)  # fmt: skip
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, default=TARGET)
    args = parser.parse_args(argv)
    try:
        draw(*read(args.files), args.output)
    except (OSError, ValueError) as error:
        print(f"make_cpu_chart: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
