"""Writes docs/adreno.md, a compiler's word on the Adreno kernels, from the newest record of adreno_static.py.

python docs/make_adreno_table.py            write it
python docs/make_adreno_table.py --check    exit 1 if it is not what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import generated

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "adreno.md"
GPUS = {"630": "A630", "660": "A660", "740": "A740", "750": "A750", "785": "X1-85"}

INTRODUCTION = """# Adreno

<!-- Made by docs/make_adreno_table.py: change that. -->

All rows come from [one source](../kernels/opencl/adreno/gemm_adreno.cl). Each operand is read from a buffer, through
the L2 cache, or from an RGBA image, through the texture cache, so that two caches can feed the ALUs at once. *Turned*:
A lies as its transpose does, so that one load brings four rows of it for one k; on the device, A transposed or in
Fortran's order is read where it is, if its sizes are multiples of the tile's. *Half*: float16 summed in float16, for
`precision="medium"` alone; all other float16 products are summed in float32.

The figures below are a compiler's, not a device's: nothing was run, and caches are not modelled. They are of the main
loop, as Mesa's ir3 compiler makes it; Qualcomm's own has the same instructions and registers, but another optimiser.

- *slots*: issue slots for each multiply-add, waiting included; a multiply-add in half counts half, for the ALUs do two
  at a time. 1 is the least in float32, 0.5 in half.
- *memory*: memory instructions for each multiply-add.
- *waves*: those that the registers leave room for; more of them hide more of the loads' latency.

Two things of the source decide the waves: how a step holds its vectors, and how the end works out addresses. Written as
one macro an element, the end made the compiler keep the addresses of all TM × TN elements at once, and took the room of
half of the waves where the loop has few registers; along pointers that walk it is half as long, and the loop's own
registers decide.

CLBlast is tuned as its database says for the GPU; both peers are compiled as they build themselves there. Extensions of
cl_qcom_* are not used. No compiler at hand knows `qcom_reqd_sub_group_size`, and whether half or full waves are faster
only a device can tell. `cl_qcom_perf_hint` and `cl_qcom_priority_hint` are properties of a whole context: they raise
clocks, and so heat, or put a program before others, whatever it multiplies. That is the application's to decide, and
gemm multiplies in an application's own context, made with such hints, when given its arrays.
"""


def table(rows: list[dict[str, Any]], dtype: str, sums: str) -> str:
    """The kernels of one kind as Markdown, a column a GPU: slots / memory / waves."""
    some = [row for row in rows if (row["dtype"], row["sums"]) == (dtype, sums)]
    gpus = list(dict.fromkeys(row["gpu"] for row in some))
    lines = ["| kernel | " + " | ".join(GPUS[gpu] for gpu in gpus) + " |", "|---|" + "---|" * len(gpus)]
    for by, kernel in dict.fromkeys((row["by"], row["kernel"]) for row in some):
        cells = []
        for gpu in gpus:
            row = next(row for row in some if (row["by"], row["kernel"], row["gpu"]) == (by, kernel, gpu))
            spills = f", {row['spills']} spills" if row["spills"] else ""
            cells.append(f"{row['slots_per_mad']:.2f} / {row['memory_per_mad']:.3f} / {row['waves']}{spills}")
        lines.append(f"| {kernel if by == 'gemm' else f'{by} {kernel}'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def document(file: Path) -> str:
    """The text of docs/adreno.md for a record."""
    record = json.loads(file.read_text(encoding="utf-8"))
    kinds = dict.fromkeys((row["dtype"], row["sums"]) for row in record["rows"])
    parts = [INTRODUCTION]
    for dtype, sums in kinds:
        title = dtype if dtype == sums else f"{dtype}, summed in {sums}"
        parts.append(f"## {title}\n\nSlots / memory / waves.\n\n{table(record['rows'], dtype, sums)}\n")
    unbeaten = [f"{row['peer']} ({row['sums']} sums) on {GPUS[row['gpu']]}"
                for row in record["verdict"] if row["ours"] is None]  # fmt: skip
    if unbeaten:
        text = "No kernel of ours has fewer slots, no more memory instructions and as many waves as: "
        parts.append(f"## Where we fall short\n\n{text}{', '.join(unbeaten)}.\n")
    source = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
    link = f"[{source}](../{source})" if file.is_relative_to(ROOT) else source
    parts.append(f"Recorded on {record['date']} at {record['commit']}: {link}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    newest = max((ROOT / "benchmarks" / "results").glob("*-adreno-static/adreno_static.json"))
    sys.exit(generated.main(None, __doc__, TARGET, lambda: document(newest)))
