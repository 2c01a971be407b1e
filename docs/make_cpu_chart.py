"""Draw how the CPU backend compares with its peers, from recorded runs.

    python docs/make_cpu_chart.py benchmarks/results/*/cpu_vs_peers*.json [--output cpu.svg]

The files come from benchmarks/cpu_vs_peers.py --json, all from one device. If several files contain a product, the last
file counts. There is a panel for each family and main element type, and one for all other types. A panel shows the
ratio to the best peer for each product without transposed operands, with a colour for each number of threads. The other
peers' ratios are grey; those that are too large for the panel are not drawn. The script needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import generated

FAMILIES = ("square", "skinny", "batched", "dtypes")
SCHEMAS = ("gemm-cpu-peers/2", "gemm-cpu-peers/3")
"""Version 3 adds families and fields. In version 2 all libraries shared one process; in version 3 each has its own."""
MAIN = ("float32", "float64")
Row = dict[str, Any]


def read(paths: list[Path]) -> tuple[list[Row], str]:
    """The rows of all files, and the caption. Raises ValueError if the files do not fit into one chart."""
    rows: dict[tuple[Any, ...], Row] = {}
    captions: list[str] = []
    devices: dict[str, None] = {}
    peers: dict[str, None] = {}
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") not in SCHEMAS:
            raise ValueError(f"{path} was not written by this version of benchmarks/cpu_vs_peers.py")
        devices[document["device"]["name"]] = None
        loud = " (not on a quiet machine)" if document["quiet"]["warnings"] else ""
        captions.append(f"{generated.recorded(document)}{loud}")
        for row in document["results"]:
            if row["family"] in FAMILIES and row["ratios"] and "ᵀ" not in row["layout"]:
                peers |= dict.fromkeys(row["ratios"])
                key = ("family", "dtype", "threads", "m", "n", "k", "batch", "layout")
                rows[tuple(row[name] for name in key)] = row
    if len(devices) > 1:
        raise ValueError(f"the files are of several devices ({', '.join(devices)}); draw one chart for each")
    if not rows:
        raise ValueError(f"the files hold no results of {', '.join(FAMILIES)}")
    runs = "; ".join(dict.fromkeys(captions))
    return list(rows.values()), f"{next(iter(devices))}; {runs}. Peers: {', '.join(peers)}"


def label(row: Row) -> str:
    """A short name of a product."""
    stack = f"{row['batch']}×" if row["batch"] else ""
    square = row["m"] == row["n"] == row["k"]
    size = f"{row['m']}{'³' if row['batch'] else ''}" if square else f"{row['m']}×{row['n']}×{row['k']}"
    kind = f"{row['dtype']} " if row["dtype"] not in MAIN else ""
    return f"{kind}{stack}{size}{', ' * bool(row['layout'])}{row['layout']}"


def panel(axes: Any, rows: list[Row], threads: list[int]) -> None:
    """Draw the ratios of these rows, in the order of their products."""
    places = {name: x for x, name in enumerate(dict.fromkeys(label(row) for row in rows))}
    for number, count in enumerate(threads):
        some = [row for row in rows if row["threads"] == count]
        shift = 0.3 * (number / (len(threads) - 1) - 0.5) if len(threads) > 1 else 0.0
        others = [
            (places[label(row)] + shift, value)
            for row in some for name, value in row["ratios"].items() if name != row["best_peer"]
        ]  # fmt: skip
        if others:
            axes.plot(*zip(*others, strict=True), "_", color="0.75", markersize=4, zorder=1, label="other peers")
        best = [(places[label(row)] + shift, row["ratio"]) for row in some]
        if best:
            name = f"best peer, {count} thread{'s' * (count > 1)}"
            axes.vlines([x for x, _ in best], 1, [y for _, y in best], color=f"C{number}", linewidth=1, zorder=2)
            axes.plot(*zip(*best, strict=True), "o", color=f"C{number}", markersize=4, zorder=3, label=name)
    axes.axhline(1, color="black", linewidth=0.8, zorder=2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:.3g}")
    best = [row["ratio"] for row in rows]
    axes.set_ylim(0.8 * min(1, *best), 2.5 * max(1, *best))
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_xticks(list(places.values()), list(places), rotation=60, ha="right", rotation_mode="anchor", fontsize=7)


def draw(rows: list[Row], caption: str, target: Path) -> None:
    """Write the chart to `target`."""
    plt = generated.pyplot()

    threads = sorted({row["threads"] for row in rows})
    columns = [dtype for dtype in MAIN if any(row["dtype"] == dtype for row in rows)]
    main = [f for f in FAMILIES if any(row["family"] == f and row["dtype"] in columns for row in rows)]
    other = any(row["dtype"] not in MAIN for row in rows)
    mosaic = [[f"{family}, {dtype}" for dtype in columns] for family in main]
    mosaic += [["other element types"] * max(1, len(columns))] * other
    size = (1 + 5.2 * max(1, len(columns)), 1.2 + 2.8 * len(mosaic))
    figure, panels = plt.subplot_mosaic(mosaic, figsize=size, layout="constrained")
    names: dict[str, Any] = {}
    for title, axes in panels.items():
        family, _, dtype = title.partition(", ")
        some = [row for row in rows if (row["family"], row["dtype"]) == (family, dtype)]
        some = some if dtype else [row for row in rows if row["dtype"] not in MAIN]
        if not some:
            axes.set_axis_off()
            continue
        panel(axes, some, threads)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("peer's time ÷ ours", fontsize=8)
        names |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.suptitle("CPU backend against peers: above 1 it is faster", fontsize=11)
    caption = textwrap.fill(caption, 95 * len(mosaic[0]))
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=len(names), fontsize=8,
                  title=caption, title_fontsize=6)  # fmt: skip
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, default=Path("cpu.svg"))
    args = parser.parse_args(argv)
    try:
        draw(*read(args.files), args.output)
    except (OSError, ValueError) as error:
        print(f"make_cpu_chart: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
