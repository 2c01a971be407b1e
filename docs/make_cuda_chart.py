"""Draw rooflines of the CUDA backend and of cuBLAS, from recorded runs.

    python docs/make_cuda_chart.py benchmarks/results/*/cuda_vs_cublas*.json [--output cuda.svg]

The files come from benchmarks/cuda_vs_cublas.py --json, all from one device. Each family has a panel: TFLOP/s over
FLOPs per byte of operands and result, of gemm and of the fastest peer. The limits are the bandwidth of copies and, if
PEAKS has it, the peak of the arithmetic. The script needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import generated

BYTES = {"float32": (4, 4), "float64": (8, 8), "bfloat16": (2, 2), "float16": (2, 2), "int8": (1, 4), "fp8": (1, 2)}
"""{first word of a family: bytes of an element of the operands, and of the result}."""
PEAKS = {
    "H200": {"float32": 66.9, "float64": 66.9, "bfloat16": 989, "float16": 989, "int8": 1979, "fp8": 1979,
             "float32, medium": 495},
}  # fmt: skip
"""{part of the device's name: {family: TFLOP/s}}, from NVIDIA's data sheet. The figures are those without sparsity, of
tensor cores except for float32."""
Row = dict[str, Any]


def read(paths: list[Path]) -> tuple[list[Row], str, float, str]:
    """The rows of all files, the device's name, bytes per second of copies, and the caption.

    Raises ValueError if a file has another format, or if the files have no results or are of several devices.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    devices, captions, rate = {}, [], 0.0
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != "gemm-cuda-cublas/1":
            raise ValueError(f"{path} was not written by this version of benchmarks/cuda_vs_cublas.py")
        devices[document["device"]["name"]] = None
        rate = max(rate, 1e9 * document["copy_gbs"])
        captions.append(generated.recorded(document))
        for row in document["results"]:
            rows[tuple(row[name] for name in ("family", "batch", "m", "n", "k"))] = row
    if len(devices) != 1 or not rows:
        raise ValueError("the files must hold results, all of one device")
    name = next(iter(devices))
    return list(rows.values()), name, rate, f"{name}; {'; '.join(dict.fromkeys(captions))}"


def intensity(row: Row) -> float:
    """FLOPs per byte of a, b and out, if each is transferred once."""
    given, made = BYTES[row["family"].partition(",")[0]]
    m, n, k = row["m"], row["n"], row["k"]
    return 2.0 * m * n * k / ((m * k + k * n) * given + m * n * made)


def panel(axes: Any, family: str, rows: list[Row], rate: float, peak: float | None) -> None:
    """Draw one family's points and limits."""
    reach = [intensity(row) for row in rows]
    low, high = 0.7 * min(reach), 1.5 * max(reach)
    peak = float("inf") if peak is None else peak
    roof = sorted({low, min(max(low, peak * 1e12 / rate), high), high})
    axes.plot(roof, [min(x * rate / 1e12, peak) for x in roof], color="0.6", linewidth=1)
    peers = [(x, row["tflops"][row["best"]]) for x, row in zip(reach, rows, strict=True) if row.get("best")]
    if peers:
        axes.plot(*zip(*peers, strict=True), "_", color="black", markersize=8, label="cuBLAS's best")
    axes.plot(reach, [row["tflops"]["gemm"] for row in rows], "o", markersize=4, label="gemm")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.grid(alpha=0.3)
    axes.set_title(family, fontsize=9)


def draw(rows: list[Row], name: str, rate: float, caption: str, target: Path) -> None:
    """Write the chart to `target`."""
    plt = generated.pyplot()

    peaks = next((known for part, known in PEAKS.items() if part in name), {})
    families = list(dict.fromkeys(row["family"] for row in rows))
    columns = min(3, len(families))
    lines = -(-len(families) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(4 * columns, 3.2 * lines), squeeze=False)
    for axes, family in zip(grid.flat, families, strict=False):
        peak = peaks.get(family, peaks.get(family.partition(",")[0]) if "," not in family else None)
        panel(axes, family, [row for row in rows if row["family"] == family], rate, peak)
    for axes in list(grid.flat)[len(families) :]:
        axes.set_visible(False)
    grid[0][0].legend(fontsize=7)
    figure.supxlabel("FLOPs per byte of operands and result", fontsize=9)
    figure.supylabel("TFLOP/s", fontsize=9)
    figure.suptitle(caption, fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("cuda.svg"))
    options = parser.parse_args()
    try:
        rows, name, rate, caption = read(options.files)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    draw(rows, name, rate, caption, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
