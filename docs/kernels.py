"""A hook of mkdocs (mkdocs.yml): the page of kernels, from gemm/catalog and from what is recorded of them.

It is made when the site is built, so that a kernel is a source file and a row, and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gemm"))
from catalog import BACKENDS, KERNELS  # alone: the package needs NumPy

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Kernels

A kernel is a source file and a row of the catalog. `gemm(..., kernel="NAME")` runs one by name, `gemm info` shows which
can run on this machine, `gemm verify` checks them. *Needs*: features that a device must have, and rules on its limits.
*Precision*: the strictest that it offers. *Parameters*: tiles and blocks; MR × NR, BM × BN and TM × TN are the outputs
of a micro-kernel, a work-group and a work-item. *Ordered*: `reproducible=True` gives the same bits as every other such
kernel.
"""


def table(rows: tuple[Any, ...], backend: str) -> str:
    """The rows of one backend as Markdown."""
    lines = ["| kernel | dtype | precision | needs | parameters | ordered | about |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if row.backend != backend:
            continue
        needs = ", ".join([*row.needs, *(f"`{rule}`" for rule in row.legal)])
        ordered = "yes" if row.ordered else "no"
        if row.ordered and row.ordered_needs:
            ordered = f"with {', '.join(row.ordered_needs)}"
        parameters = " ".join(f"{name}={value}" for name, value in row.params.items() if name.isupper())
        operands = f"{' × '.join(row.inputs)} → " if row.inputs else ""
        dtype = "any" if row.dtype == "*" else operands + row.dtype
        name = f"[{row.name}](../{row.source})"
        cells = name, dtype, row.precision, needs or "–", parameters or "–", ordered, row.about
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


RECORDED = """## OpenCL: where it passes, and how fast

Every kernel passes the conformance suite in CI on Intel's runtime for CPUs, which has sub-groups, shuffles, block reads
and half arithmetic; the generic ones, and one of each form for Adreno or Intel, on PoCL. *Verified*: on devices, by
`gemm verify`. *Recorded*: the fastest product of `opencl_vs_peers.py` that was given to it, and what compilers for
devices that are not at hand say of its inner loop, from one multiply-add a slot or instruction, which is the peak: see
[intel.md](intel.md) and [adreno.md](adreno.md).
"""


def recorded(rows: tuple[Any, ...]) -> str:
    """What benchmarks/results has of each OpenCL kernel, as Markdown."""
    verified: dict[str, set[str]] = defaultdict(set)
    for document in _newest("verify.json"):
        names = {device["key"]: device["name"] for device in document["devices"] if device["backend"] == "opencl"}
        for outcome in document["outcomes"]:
            if outcome["device"] in names and outcome["passed"] == outcome["total"]:
                verified[outcome["kernel"]].add(names[outcome["device"]])
    figures: dict[str, list[str]] = defaultdict(list)
    for document in _newest("opencl_vs_peers*.json"):
        best: dict[str, Any] = {}
        for result in document["results"]:
            rival = best.get(result["kernel"])
            if rival is None or result["gflops"]["gemm"] > rival["gflops"]["gemm"]:
                best[result["kernel"]] = result
        for kernel, result in best.items():
            shape = f"{result['m']} × {result['n']} × {result['k']}"
            rate = result["gflops"]["gemm"] / 1000
            figures[kernel].append(f"{rate:.3g} TFLOP/s at {shape} on {document['device']['name']}")
    for document in _newest("intel_static.json")[-1:]:
        for kernel in dict.fromkeys(row["kernel"] for row in document["rows"]):
            shares = [
                row["share"] for row in document["rows"] if row["kernel"] == kernel and row["auto"] and row["mads"]
            ]
            if shares:
                figures[kernel].append(f"{min(shares):.2f}–{max(shares):.2f} of the loop on Intel's GPUs")
    for document in _newest("adreno_static.json")[-1:]:
        for row in document["rows"]:
            if row["by"] == "gemm" and row["gpu"] == "740":
                waves = f"{row['waves']} wave{'s' * (row['waves'] != 1)}"
                figures[row["kernel"]].append(
                    f"{row['slots_per_mad']:.2f} slots a multiply-add, {waves}, on Adreno 740"
                )
    lines = ["| kernel | verified | recorded |", "|---|---|---|"]
    for row in rows:
        if row.backend == "opencl":
            where = ", ".join(sorted(verified[row.name])) or "–"
            lines.append(f"| {row.name} | {where} | {'; '.join(figures[row.name]) or '–'} |")
    return "\n".join(lines)


def _newest(name: str) -> list[Any]:
    """The recorded documents called `name`, oldest first."""
    files = sorted((ROOT / "benchmarks" / "results").glob(f"*/{name}"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def document() -> str:
    """The page's text."""
    parts = [INTRODUCTION]
    parts += [f"## {backend}\n\n{table(KERNELS, backend)}\n" for backend in BACKENDS]
    parts.append(f"{RECORDED}\n{recorded(KERNELS)}\n")
    return "\n".join(parts)


def on_files(files: Files, *, config: Any) -> None:
    """Adds the page."""
    files.append(File.generated(config, "kernels.md", content=document()))
