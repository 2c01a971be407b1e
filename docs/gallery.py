"""An mkdocs hook (mkdocs.yml): generate the gallery, whose charts and reports are drawn when the site is built.

The data come from the records in benchmarks/results. The scripts in this folder draw the charts, and
gemm.bench.comparison writes the reports. The hook needs matplotlib.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import make_auto_charts
import make_cpu_chart
import make_cuda_chart
from mkdocs.structure.files import File, Files

from gemm.bench.comparison import Comparison

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
CPU = {
    "cpu.svg": [RESULTS / "2026-11-21-zen3" / "cpu_vs_peers.json"],
    "cpu-xeon.svg": [RESULTS / "2026-11-21-xeon" / "cpu_vs_peers.json"],
}
CUDA = sorted(RESULTS.glob("2026-11-23-h200-cuda/cuda_vs_cublas*.json"))
REPORTS = {
    "compare-h200.html": RESULTS / "2026-11-27-h200" / "compare.json",
    "compare-2-cores.html": RESULTS / "2026-11-23-zen3-compare" / "compare.json",
}

PAGE = """\
# Gallery

This page shows charts of gemm's speed. Scripts draw them from recorded runs in
[benchmarks/results](../benchmarks/results/README.md), and each chart names the date and the commit of its runs.
[Compared with other libraries](peers.md) has the numbers. Click a chart to see it in full size.

## Reports

`gemm bench --compare --html report.html` ([Comparing](compare.md)) writes one self-contained page with offload
thresholds, crossover curves, percent of peak, rooflines and tables. Two examples:

- [An H200 and a 16-core Xeon](compare-h200.html), 2026-11-27, commit 5163945 with later changes
- [A machine without a GPU: two cores of a Zen 3](compare-2-cores.html), 2026-11-23, commit 85a755d

Both machines were busy: the hypervisor withheld 3 % of a core of the first one, and other processes used a fifth of a
core of the second one. The reports therefore withhold their advice, and the absolute figures are not reliable.

## The CPU compared with its peers

The charts show the best peer's time ÷ gemm's time for each product: above 1 gemm is faster. Other peers are grey.
`docs/make_cpu_chart.py` draws the charts.

[![The CPU backend against its peers on two cores of a Zen 3](cpu.svg)](cpu.svg)

[![The CPU backend against its peers on a 16-core Xeon with AVX-512](cpu-xeon.svg)](cpu-xeon.svg)

## CUDA compared with cuBLAS

The chart shows TFLOP/s over FLOPs per byte. The limits are the bandwidth of copies and the data sheet's peak.
`docs/make_cuda_chart.py` draws the chart.

[![TFLOP/s of gemm and of cuBLAS's best over FLOPs per byte, one panel for each type](cuda.svg)](cuda.svg)

## What auto loses

The chart shows, for random products, the time of the candidate that `backend="auto"` chose ÷ the time of the fastest
candidate. `docs/make_auto_charts.py` draws the chart. See [How auto decides](auto.md#cost-of-wrong-choices).

[![Regret over the share of problems, one line for each run](regret.svg)](regret.svg)

## Many small products

The chart shows the time per product for each way to compute [many small products](use.md#many-small-products): single
calls, a block of `gemm.batching()`, lists for `gemm.gemm_many`, and one product of a stack. *New* means without `out`.
The operands are separate arrays, slices of one array, or arrays on a GPU. `docs/make_auto_charts.py` draws the chart.

[![Nanoseconds per product for each way, one panel for each place of the operands](batching.svg)](batching.svg)
"""


def draw(folder: Path) -> None:
    """Write all charts and reports into `folder`."""
    for name, files in CPU.items():
        make_cpu_chart.draw(*make_cpu_chart.read(files), folder / name)
    make_cuda_chart.draw(*make_cuda_chart.read(CUDA), folder / "cuda.svg")
    found = make_auto_charts.read(sorted(RESULTS.glob("*-auto/*.json")))
    make_auto_charts.draw_regret(found[make_auto_charts.REGRET], folder / "regret.svg")
    make_auto_charts.draw_batching(found[make_auto_charts.BATCHING][-1], folder / "batching.svg")
    for name, record in REPORTS.items():
        (folder / name).write_text(Comparison.load(record).page(), encoding="utf-8")


def on_files(files: Files, *, config: Any) -> None:
    """Add the gallery page, its charts and its reports to the site."""
    files.append(File.generated(config, "gallery.md", content=PAGE))
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        for file in sorted(Path(folder).iterdir()):
            files.append(File.generated(config, file.name, content=file.read_bytes()))
