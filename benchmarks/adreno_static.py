"""Compare our kernels for Adreno with CLBlast's and llama.cpp's by compiling them. No GPU is needed, nothing is timed.

    python benchmarks/adreno_static.py TOOL [--clblast CHECKOUT] [--llama CHECKOUT] [--gpus 630,740] [--json FILE]

TOOL is a program that compiles OpenCL C for Adreno GPUs, such as a small script around Mesa's ir3 compiler:

    TOOL FILE.cl KERNEL --gpu 740 --wg 32,4 --opts "-D NAME=1 ..."

TOOL prints a JSON object with "stats" (full_regs, max_waves, threads_per_wave, stp + ldp as spill_instrs, instrs) and
"main_loop", the inner loop with the most multiply-adds (mads, issue_slots, nops, and by_class, the number of
instructions of each class: mad_f16, tex, ldg, ...). CHECKOUT is a checkout of CLBlast, or of llama.cpp or ggml. The
libraries' kernels are compiled as the libraries build them. CLBlast's kernels have the parameters that CLBlast's
database has for the GPU.

Every Adreno kernel of the catalog is compiled as the host would compile it for that GPU. Three figures of the main
loops are compared:

    slots_per_mad   issue slots per multiply-add, including idle slots. A half-precision multiply-add counts half,
                    because the ALUs do two at a time. The minimum is 1 in float32 and 0.5 in half precision.
    memory_per_mad  texture, global, local and private memory instructions per multiply-add.
    waves           the waves that fit into the registers. More waves hide more of the latency of the loop.

The compiler is an open one, not the manufacturer's. Instructions, registers and occupancy rules are the same, but the
optimiser differs. Nothing runs, and caches are not modelled. The JSON document ("gemm-adreno-static/1"):

    date, commit
    rows      [{kernel, by, dtype, sums, gpu, registers, waves, threads_per_wave, spills, mads, slots, nops,
                slots_per_mad, memory, memory_per_mad, instructions}]
    verdict   [{gpu, dtype, sums, peer, slots_per_mad, memory_per_mad, waves, ours: kernel or null}]. `ours` is our best
              kernel with fewer slots, no more memory instructions, no fewer waves and no spills.

The exit status is 1 if a peer's kernel has no such kernel of ours, and 2 if a kernel does not compile or if TOOL or a
file of a CHECKOUT is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from adreno import peers
from adreno.tool import Case, Failed, figures

from gemm.catalog import KERNELS, Kernel
from gemm.core import disk_cache

GPUS = {"630": "A630", "660": "A660", "740": "A740", "750": "A750", "785": "X1-85"}
HEADINGS = {"registers": "regs", "waves": "waves", "spills": "spills", "slots_per_mad": "slots/mad",
            "memory_per_mad": "memory/mad"}  # fmt: skip


def ours(row: Kernel) -> Case:
    """A kernel of the catalog, with the options that the host uses if the results need not be reproducible."""
    defines = {name: value for name, value in row.params.items() if name.isupper()}
    defines |= {"PRECISION": 16 if row.dtype == "float16" else 32, "ORDERED": 0, "FUSED": 0}
    options = " ".join(f"-D {name}={value}" for name, value in defines.items())
    sums = "float16" if row.dtype == "float16" and row.precision == "medium" else "float32"
    group = row.params["WGN"], row.params["WGM"]
    return Case(row.name, "gemm", row.dtype, sums, disk_cache.read(row), row.entry, group, options)


def measured(tool: Path, gpus: list[str], clblast: Path | None, llama: Path | None) -> list[dict[str, Any]]:
    """The figures of every kernel on every GPU, printed one by one."""
    print(f"{'GPU':7}{'kernel':38}{'by':10}{'sums':9}", *(f"{heading:>11}" for heading in HEADINGS.values()), sep="")
    rows = []
    for gpu in gpus:
        cases = [ours(row) for row in KERNELS if row.target == "adreno"]
        if clblast:
            cases += [peers.clblast(clblast, gpu, bits) for bits in (32, 16)]
        if llama:
            cases += peers.llama(llama)
        for case in cases:
            row = figures(tool, case, gpu)
            rows.append(row)
            name = case.kernel if case.by == "gemm" else f"{case.kernel} ({case.dtype})"
            print(f"{GPUS[gpu]:7}{name:38}{case.by:10}{case.sums:9}",
                  *(f"{row[key]:11}" for key in HEADINGS), sep="", flush=True)  # fmt: skip
    return rows


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each kernel of a peer, our best kernel that meets all conditions of `ours` in the module's docstring."""
    found = []
    for peer in (row for row in rows if row["by"] != "gemm"):
        same = ("gpu", "dtype", "sums")
        better = [
            row for row in rows
            if row["by"] == "gemm" and all(row[key] == peer[key] for key in same) and not row["spills"]
            and row["waves"] >= peer["waves"]
            and row["slots_per_mad"] < peer["slots_per_mad"] and row["memory_per_mad"] <= peer["memory_per_mad"]
        ]  # fmt: skip
        best = min(better, key=lambda row: row["slots_per_mad"], default=None)
        shown = {key: peer[key] for key in (*same, "slots_per_mad", "memory_per_mad", "waves")}
        found.append({"peer": f"{peer['by']} {peer['kernel']}", **shown, "ours": best and best["kernel"]})
    return found


def main() -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("tool", type=Path)
    parser.add_argument("--clblast", type=Path, metavar="CHECKOUT")
    parser.add_argument("--llama", type=Path, metavar="CHECKOUT")
    parser.add_argument("--gpus", default=",".join(GPUS), help=f"of {', '.join(GPUS)} (X1-85); default: all")
    options = parser.parse_args()
    gpus = options.gpus.split(",")
    for gpu in gpus:
        if gpu not in GPUS:
            parser.error(f"--gpus: {gpu!r} is not one of {', '.join(GPUS)}")
    try:
        rows = measured(options.tool, gpus, options.clblast, options.llama)
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    judged = verdict(rows)
    recorded.save(options.json, recorded.analysis("gemm-adreno-static/1", rows=rows, verdict=judged))
    lost = [row for row in judged if row["ours"] is None]
    for row in lost:
        print(f"not beaten on {GPUS[row['gpu']]}: {row['peer']}, {row['dtype']} summed in {row['sums']}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
