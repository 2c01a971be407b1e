"""Draw regret.svg, the losses of backend="auto", and batching.svg, many small products, from recorded runs.

    python docs/make_auto_charts.py benchmarks/results/*-auto/*.json [--folder FOLDER]

The files come from benchmarks/auto_regret.py --json and benchmarks/batching.py --json; other files are ignored. The
regret chart has a panel for each place of the operands, and a line for each run: the regret that a share of the random
problems does not exceed. The batching chart shows the time per product in the newest file, for each way to compute many
small products, with a panel for each place of the operands. The script needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import generated

REGRET, BATCHING = "gemm-auto-regret/1", "gemm-batching/1"
WAYS = ("one by one", "one by one, new", "batching", "gemm_many", "gemm_many, new", "stack", "numpy, stack", "numpy")
"""The contestants of benchmarks/batching.py. Contestants that only older runs have are not drawn."""
Document = dict[str, Any]


def read(paths: list[Path]) -> dict[str, list[Document]]:
    """{schema: documents, oldest first, each with the name of its file}. Raises ValueError if a schema has none."""
    found: dict[str, list[Document]] = {REGRET: [], BATCHING: []}
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        found.get(document.get("schema", ""), []).append({**document, "file": f"{path.parent.name}/{path.stem}"})
    if not all(found.values()):
        raise ValueError("the files must hold runs of both auto_regret.py and batching.py")
    return {schema: sorted(documents, key=lambda d: str(d["date"])) for schema, documents in found.items()}


def machine(document: Document) -> str:
    """The CPU, and the first GPU of the document if there is one."""
    gpus = [device["name"] for device in document.get("devices", ()) if device["kind"] == "gpu"]
    return ", ".join([document["machine"]["cpu"], f"{document['machine']['cpus']} cores", *gpus[:1]])


def draw_regret(documents: list[Document], target: Path) -> None:
    """Draw the time of auto's choice ÷ the time of the best contestant, over the share of problems."""
    plt = generated.pyplot()
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for axes, (title, host) in zip(panels, (("host arrays", True), ("arrays on a device", False)), strict=True):
        for number, document in enumerate(documents):
            values = sorted(row["regret"] for row in document["results"] if (row["place"] == "host") == host)
            if not values:
                continue
            shares = [100 * (rank + 1) / len(values) for rank in range(len(values))]
            label = f"{document['file']}: {machine(document)}; {generated.recorded(document)}"
            axes.step(shares, values, where="pre", color=f"C{number}", linewidth=1.5, label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("% of the problems", fontsize=9)
        axes.set_xlim(50, 100.5)
        axes.set_yscale("log")
        axes.set_yticks([1, 1.25, 1.5, 2, 3, 4], ["1", "1.25", "1.5", "2", "3", "4"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("time of what auto chose ÷ best", fontsize=9)
    names = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.suptitle('What backend="auto" loses: the ratio that a share of the problems does not exceed', fontsize=11)
    figure.legend(names.values(), names.keys(), loc="outside lower center", fontsize=7)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def draw_batching(document: Document, target: Path) -> None:
    """Draw the time per product for each contestant in WAYS, with a panel for each row of the results."""
    plt = generated.pyplot()
    rows = document["results"]
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4 * columns, 2.4 * lines), squeeze=False, layout="constrained")
    for axes, row in zip(grid.flat, rows, strict=False):
        ways = sorted(row["seconds"].keys() & set(WAYS), key=lambda way: -float(row["seconds"][way]))
        times = [1e9 * row["seconds"][way] for way in ways]
        bars = axes.barh(ways, times, log=True, color="C0")
        axes.bar_label(bars, [f"{float(f'{time:.3g}'):,g}" for time in times], fontsize=7, padding=2)
        axes.set_xlim(right=20 * max(times))  # room for the labels
        axes.tick_params(labelsize=7)
        axes.set_title(f"{row['count']} products of {row['size']}³: {row['place']}", fontsize=8)
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_visible(False)
    figure.supxlabel("ns per product", fontsize=9)
    figure.suptitle(f"Many small products: {machine(document)}; {generated.recorded(document)}", fontsize=9)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--folder", type=Path, default=Path())
    args = parser.parse_args(argv)
    try:
        found = read(args.files)
    except (OSError, ValueError) as error:
        print(f"make_auto_charts: {error}", file=sys.stderr)
        return 2
    draw_regret(found[REGRET], args.folder / "regret.svg")
    draw_batching(found[BATCHING][-1], args.folder / "batching.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
