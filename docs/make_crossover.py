"""Draw crossover.svg, the README's picture: the size from which a GPU is faster than the CPU, from a recorded run.

    python docs/make_crossover.py [--check]

The data are the squares of a run of gemm bench --compare. The picture has the colours of a light or of a dark page, by
the reader's setting. It is written without matplotlib, so that the file is small and the same on every machine.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import generated

TARGET = Path(__file__).with_name("crossover.svg")
RECORD = TARGET.parents[1] / "benchmarks" / "results" / "2026-11-27-h200" / "compare.json"
CURVES = (
    ("cpu:0", "host", "cpu", "CPU, 16 cores"),
    ("cuda:0", "host", "host", "GPU, NumPy arrays: transfers included"),
    ("cuda:0", "resident", "resident", "GPU, arrays in its memory"),
)
"""(device, mode, CSS class of the line, label)."""
LEFT, RIGHT, TOP, BOTTOM = 62, 584, 74, 230
"""Edges of the plot, in pixels."""
WIDTH, HEIGHT = 600, 258
"""The picture's size in pixels. It fits into the README's first screen, and its letters are legible on a phone."""
STYLE = """\
.page { fill: #ffffff } text { fill: #1f2328; font: 14px system-ui, sans-serif }
.small { fill: #59636e; font-size: 12px }
.title { font-size: 16px; font-weight: 600 } .grid { stroke: #d1d9e0; stroke-width: 1 }
.line { fill: none; stroke-width: 2.5 } .mark { stroke-width: 1.5; stroke-dasharray: 4 3 }
.cpu { stroke: #0969da } .host { stroke: #bc4c00 } .resident { stroke: #1a7f37 }
text.cpu, text.host, text.resident { stroke: #ffffff; stroke-width: 5; stroke-linejoin: round; paint-order: stroke }
text.cpu { fill: #0969da } text.host { fill: #bc4c00 } text.resident { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d }
.cpu { stroke: #58a6ff } .host { stroke: #f0883e } .resident { stroke: #3fb950 }
text.cpu, text.host, text.resident { stroke: #0d1117 }
text.cpu { fill: #58a6ff } text.host { fill: #f0883e } text.resident { fill: #3fb950 }
}"""


def curve(record: dict[str, Any], device: str, mode: str) -> dict[int, float]:
    """{size: GFLOP/s} of the squares on a device. mode: "host" (NumPy arrays) or "resident" (arrays on the device)."""
    return {
        row["size"]: row["gflops"]
        for row in record["results"]
        if (row["family"], row["contestant"], row["mode"]) == ("squares", device, mode)
    }


def threshold(record: dict[str, Any], mode: str) -> int:
    """The offload threshold of the GPU for squares: the size from which it is faster than the CPU."""
    return next(
        row["size"]
        for row in record["thresholds"]
        if row["series"].startswith("squares") and (row["contestant"], row["mode"]) == ("cuda:0", mode)
    )


def scale(value: float, low: float, high: float, start: float, end: float) -> float:
    """The pixel of `value` on a logarithmic axis."""
    return round(start + (end - start) * math.log(value / low) / math.log(high / low), 1)


def document() -> str:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    curves = {name: curve(record, device, mode) for device, mode, name, _ in CURVES}
    sizes = sorted(curves["cpu"])

    def x(size: float) -> float:
        return scale(size, sizes[0], sizes[-1], LEFT, RIGHT)

    def y(gflops: float) -> float:
        return scale(gflops, 0.1, 1e5, BOTTOM, TOP)

    host, resident = threshold(record, "host"), threshold(record, "resident")
    gpu = next(device for device in record["devices"] if device["key"] == "cuda:0")
    driver, commit = gpu["driver"].partition(" ")[0], record["commit"][:7]
    title = "The size from which the GPU is faster than the CPU"
    caption = "GFLOP/s over s, for s × s × s in float32, with transfers and without."
    source = f"{gpu['name']} (driver {driver}) and a 16-core Xeon; {record['date'][:10]}, commit {commit}"
    parts = [
        f'<text class="title" x="{LEFT}" y="22">{title}</text>',
        f'<text class="small" x="{LEFT}" y="41">{caption}</text>',
        f'<text class="small" x="{LEFT}" y="58">{source}</text>',
    ]
    for power in range(-1, 6):
        level = y(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {level}H{RIGHT}"/>')
        parts.append(f'<text class="small" x="{LEFT - 8}" y="{level + 4}" text-anchor="end">{10.0**power:,g}</text>')
    for size in (size for size in sizes if size.bit_count() == 1):
        parts.append(f'<text class="small" x="{x(size)}" y="{BOTTOM + 18}" text-anchor="middle">{size}</text>')
    for name, size in (("host", host), ("resident", resident)):
        parts.append(f'<path class="mark {name}" d="M{x(size)} {y(curves[name][size])}V{BOTTOM}"/>')
        parts.append(f'<text class="{name}" x="{x(size) + 6}" y="{BOTTOM - 10}">from {size}³</text>')
    for index, (_, _, name, label) in enumerate(CURVES):
        points = " ".join(f"{x(size)},{y(gflops)}" for size, gflops in sorted(curves[name].items()))
        parts.append(f'<polyline class="line {name}" points="{points}"/>')
        parts.append(f'<text class="{name}" x="{LEFT + 14}" y="{TOP + 17 + 18 * index}">{label}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img">',
        f"<title>{title}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(generated.main(None, __doc__, TARGET, document))
