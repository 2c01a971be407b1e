"""An mkdocs hook (mkdocs.yml): generate the page of kernels, from gemm/catalog and from recorded results.

The page is generated when the site is built. Therefore a new kernel needs only a source file and a row of the catalog.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gemm"))
from catalog import BACKENDS, KERNELS  # not through gemm, because importing the package needs NumPy

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Kernels

This page lists all kernels. A kernel is a source file and a row of the catalog. `gemm(..., kernel="NAME")` runs a
kernel by name, `gemm info` lists the kernels that a machine can run, and `gemm verify` checks them. These are the
columns:

- *needs*: the features that a device must have, and rules on its limits.
- *precision*: the strictest precision that the kernel offers.
- *parameters*: tiles and blocks. MR × NR, BM × BN and TM × TN are the outputs of a micro-kernel, a work-group and a
  work-item.
- *ordered*: whether `reproducible=True` gives the same bits as all other kernels with this property.
"""


def table(rows: tuple[Any, ...], backend: str) -> str:
    """A Markdown table of one backend's kernels. rows: the catalog."""
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
and half-precision arithmetic. The generic kernels, and one of each form for Adreno or Intel, also pass on PoCL.
*Verified* lists the devices on which `gemm verify` passed. *Recorded* is the fastest product of `opencl_vs_peers.py`
that the kernel computed. For GPUs that were not available, *recorded* is the compiler's result for the inner loop,
relative to the peak of one multiply-add per issue slot or instruction: see [intel.md](intel.md) and
[adreno.md](adreno.md).
"""


def recorded(rows: tuple[Any, ...]) -> str:
    """A Markdown table of the records in benchmarks/results for each OpenCL kernel."""
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
                    f"{row['slots_per_mad']:.2f} slots per multiply-add, {waves}, on Adreno 740"
                )
    lines = ["| kernel | verified | recorded |", "|---|---|---|"]
    for row in rows:
        if row.backend == "opencl":
            where = ", ".join(sorted(verified[row.name])) or "–"
            lines.append(f"| {row.name} | {where} | {'; '.join(figures[row.name]) or '–'} |")
    return "\n".join(lines)


def _newest(name: str) -> list[Any]:
    """The recorded documents with this file name, the oldest first."""
    files = sorted((ROOT / "benchmarks" / "results").glob(f"*/{name}"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def document() -> str:
    """The text of the page."""
    parts = [INTRODUCTION]
    parts += [f"## {backend}\n\n{table(KERNELS, backend)}\n" for backend in BACKENDS]
    parts.append(f"{RECORDED}\n{recorded(KERNELS)}\n")
    return "\n".join(parts)


def on_files(files: Files, *, config: Any) -> None:
    """Add the page to the site."""
    files.append(File.generated(config, "kernels.md", content=document()))
