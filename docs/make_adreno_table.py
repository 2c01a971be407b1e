"""Write docs/adreno.md, the compiler's figures of the Adreno kernels, from the newest record of adreno_static.py.

python docs/make_adreno_table.py            write the page
python docs/make_adreno_table.py --check    exit with 1 if the page is out of date
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

This page shows what a compiler makes of the OpenCL kernels for Adreno GPUs. It is for engineers who change these
kernels, and for users who want to know what to expect: nobody has run the kernels on an Adreno GPU yet. Read the
definition of the columns first, then the tables.

All rows use [one source](../kernels/opencl/adreno/gemm_adreno.cl). A kernel reads each operand either from a buffer,
through the L2 cache, or from an RGBA image, through the texture cache. If one operand is a buffer and the other is an
image, two caches feed the ALUs at the same time.

The names of the rows have these parts:

- `image`, `images`: one operand, or both operands, are images.
- `turned`: A is stored transposed, so that one load reads four rows of A for one k. If A is transposed or in Fortran
  order on the device, and its sizes are multiples of the tile's, the kernel reads A in place.
- `half`: float16 is summed in float16, only for `precision="medium"`. All other float16 products are summed in float32.

The numbers come from a compiler, not from a device: no kernel was run, and caches are not modelled. They describe the
main loop as Mesa's ir3 compiler translates it. Qualcomm's own compiler has the same instructions and registers, but
another optimiser.

Each cell of the tables has three numbers:

- *slots*: issue slots for each multiply-add, including waiting. A float16 multiply-add counts half, because the ALUs
  compute two at the same time. The minimum is 1 in float32 and 0.5 in float16.
- *memory*: memory instructions for each multiply-add.
- *waves*: the number of waves for which there are enough registers. More waves hide more of the latency of loads.

Two parts of the source determine the number of waves: how a step along k stores its vectors, and how the epilogue
computes addresses. In an earlier version, the epilogue had one macro for each element. The compiler then kept the
addresses of all TM × TN elements at the same time, which halved the number of waves for loops that need few registers.
The present epilogue increments pointers. It is half as long, and only the registers of the loop determine the number.

CLBlast uses the parameters of its database for the GPU. Both peers, CLBlast and llama.cpp, are compiled with their own
options for that GPU.

The kernels use no cl_qcom_* extensions. No available compiler supports `qcom_reqd_sub_group_size`, and only a device
can show whether half or full waves are faster. `cl_qcom_perf_hint` and `cl_qcom_priority_hint` are properties of a
whole context. The first raises the clock rate, and thereby the temperature. The second gives the program priority over
other programs. The application must decide whether to use them. gemm multiplies an application's arrays in the
application's own context, which may have these hints.

Two extensions would change more:

- **Cooperative matrices.** Newer GPUs have matrix units: llama.cpp has kernels for those of the Adreno 850. A kernel
  reaches them through cooperative matrices, which [no available compiler accepts](devices.md#cooperative-matrices).
  With such matrices, the hardware decides which work-item holds which element. A sub-group would multiply blocks of
  float16 or int8 from local or global memory, so that the images and the layouts of the present kernels would only
  serve float32.
- **`cl_qcom_large_buffer`** permits buffers above `CL_DEVICE_MAX_MEM_ALLOC_SIZE`, which is 1 GiB on many of these
  GPUs. llama.cpp's developers report it for A7x and A8x on Android, and not for the X1-85 on Windows. Such a buffer
  needs a property when it is created, and kernels that read it need the build option `-qcom-enable-large-buffer`. gemm
  cuts a product of host matrices into parts that stay below the limit, so the extension would only save launches
  there. It would matter for arrays on the device that an application has created with it: gemm builds its kernels
  without the option.
"""


def table(rows: list[dict[str, Any]], dtype: str, sums: str) -> str:
    """A Markdown table of the kernels with these types of operands and of sums.

    There is a column for each GPU. A cell has slots / memory / waves.
    """
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
        text = (
            "gemm is ahead of a peer if one of its kernels has fewer slots, at most as many memory instructions and\n"
            "at least as many waves. No gemm kernel is ahead of these peers: "
        )
        parts.append(f"## Where gemm is slower\n\n{text}{', '.join(unbeaten)}.\n")
    source = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
    link = f"[{source}](../{source})" if file.is_relative_to(ROOT) else source
    parts.append(f"Recorded on {record['date']} at {record['commit']}: {link}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    newest = max((ROOT / "benchmarks" / "results").glob("*-adreno-static/adreno_static.json"))
    sys.exit(generated.main(None, __doc__, TARGET, lambda: document(newest)))
