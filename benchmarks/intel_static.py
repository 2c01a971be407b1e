"""What Intel's graphics compiler makes of the OpenCL kernels, for generations of GPUs, on a machine without one.

    python benchmarks/intel_static.py [--json FILE] [--kernels WORD] [--ocloc PROGRAM]
    python benchmarks/intel_static.py --table FILE.json [--check]

Compiles every float32 and float16 row for such GPUs with `ocloc`, the compiler's command line (Debian:
apt-get install intel-opencl-icd), and reads the assembly. Of a kernel's main loop: how many of its instructions
multiply and add. Whatever an instruction does, it takes a turn: the share is an upper bound of the share of the peak.
It says nothing of waiting for memory. Registers that did not fit (spills) are looked for in both programs of a row for
Intel, with and without PIECES. Takes a minute a core. The JSON document ("gemm-intel-static/1"):

    date, commit, compiler, generations {device: name}
    rows    [{kernel, device, simd, instructions, loop, mads, sends, share, registers, spilled, spilled_pieces, fits}]

simd: work-items of a thread; instructions, loop: of the whole kernel and of its main loop; sends: messages in it;
registers: of 128; spilled: bytes a thread; fits: whether its tile is made for such a device.

--table writes the table of such a document into docs/intel.md, or checks that it is there. Exits 1 where a row that
fits spills, or where the best of a generation has a share below 0.85.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from intel import assembly

from gemm import sources
from gemm.catalog import KERNELS, Kernel

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "intel.md"
GENERATIONS = {"bdw": "Gen8", "skl": "Gen9", "icllp": "Gen11", "tgllp": "Gen12", "dg2": "Xe-HPG"}
"""The compiler's name of a device, and its generation. All of them have sub-groups of 8, 16 and 32."""
NARROWEST = 8
NEEDS = {"image", "intel_subgroups", "intel_required_subgroup_size", "fp16"}
GOAL = 0.85
MARKS = "<!-- table: python benchmarks/intel_static.py --table FILE.json -->", "<!-- end of table -->"


class Failed(Exception):
    """A program is absent or failed; the text is for the user."""


def runs_there(row: Kernel) -> bool:
    """Whether the GPUs of GENERATIONS offer what `row` needs (most have no fp64), and it is for Intel's or for any."""
    needs = {need for need in row.needs if not need.startswith("subgroup_size_")}
    chosen = row.target == "intel" or (row.target == "generic" and "gpu" in row.auto)
    return row.backend == "opencl" and chosen and row.dtype in ("float32", "float16") and needs <= NEEDS


def meant(row: Kernel) -> bool:
    """Those for Intel's, but for sub-groups wider than the narrowest: they are for registers of twice the lanes."""
    return row.target == "intel" and row.params.get("SG", NARROWEST) == NARROWEST


def compile_row(row: Kernel, device: str, pieces: int, ocloc: str) -> tuple[int, assembly.Listing]:
    """Work-items of a thread, and the assembly."""
    defines = {name: value for name, value in row.params.items() if name.isupper()}
    defines |= {"PRECISION": {"float32": 32, "float16": 16}[row.dtype], "PIECES": pieces}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cl")
        file.write_text(sources.read(row), encoding="utf-8")
        options = " ".join(f"-D {name}={value}" for name, value in defines.items())
        command = [ocloc, "compile", "-file", str(file), "-device", device, "-out_dir", folder, "-options", options]
        dump = {"IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": folder}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **dump})
        # The compiler tries again where registers did not fit; the last is what it took.
        found = sorted(Path(folder).glob("*.asm"), key=lambda path: path.stat().st_mtime_ns)
        if done.returncode or not found:
            raise Failed(f"{row.name} for {device}: {(done.stdout + done.stderr).strip()[-400:]}")
        match = re.search(r"_simd(\d+)_", found[-1].name)
        return int(match[1]) if match else 0, assembly.parse(found[-1].read_text(encoding="utf-8"))


def measure(row: Kernel, device: str, ocloc: str) -> dict[str, Any]:
    """A row of the document."""
    simd, listing = compile_row(row, device, 0, ocloc)
    if listing.loop is None:
        raise Failed(f"{row.name} for {device}: no loop multiplies and adds")
    loop = listing.loop
    pieces = compile_row(row, device, 1, ocloc)[1].spilled if row.target == "intel" else 0
    return {
        "kernel": row.name, "device": device, "simd": simd, "instructions": listing.instructions,
        "loop": len(loop.instructions), "mads": loop.mads, "sends": loop.sends, "share": round(loop.share, 3),
        "registers": listing.registers, "spilled": listing.spilled, "spilled_pieces": pieces, "fits": meant(row),
    }  # fmt: skip


def all_rows(word: str, ocloc: str) -> Iterator[dict[str, Any]]:
    """Of kernels whose name has `word` in it."""
    jobs = [(row, device) for row in KERNELS if runs_there(row) and word in row.name for device in GENERATIONS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda job: measure(*job, ocloc), jobs)


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What falls short of the goals."""
    found = [f"{row['kernel']} spills on {row['device']}" for row in rows
             if row["fits"] and (row["spilled"] or row["spilled_pieces"])]  # fmt: skip
    for device in {row["device"]: 0 for row in rows}:
        best = max(row["share"] for row in rows if row["device"] == device)
        if best < GOAL:
            found.append(f"no kernel reaches {GOAL} on {device}: {best} is the best")
    return found


def table(document: dict[str, Any]) -> str:
    """The document as Markdown."""
    devices: dict[str, str] = document["generations"]
    lines = [f"{document['compiler']}; commit {document['commit']}, {document['date']}.", ""]
    lines += ["| kernel | " + " | ".join(devices.values()) + " | SIMD | mads a message |"]
    lines += ["|---|" + "---|" * (len(devices) + 2)]
    for kernel in dict.fromkeys(row["kernel"] for row in document["rows"]):
        rows = {row["device"]: row for row in document["rows"] if row["kernel"] == kernel}
        cells = [_cell(rows[device]) for device in devices]
        simd = "/".join(str(width) for width in sorted({row["simd"] for row in rows.values()}))
        dense = [round(row["mads"] / max(1, row["sends"])) for row in rows.values()]
        between = str(dense[0]) if len(set(dense)) == 1 else f"{min(dense)}–{max(dense)}"
        lines.append(f"| {kernel} | " + " | ".join(cells) + f" | {simd} | {between} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    spilled = max(row["spilled"], row["spilled_pieces"])
    note = f" (spills {spilled} B)" if spilled else ""
    return f"{row['share']:.2f}{note}"


def update(document: dict[str, Any], check: bool) -> int:
    """Write the table into docs/intel.md between its marks; with `check` only see whether it is there."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    wanted = f"{head}{MARKS[0]}\n{table(document)}\n{MARKS[1]}{tail}"
    if not check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print("docs/intel.md does not have this document's table", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--kernels", default="", metavar="WORD", help="only those with it in their name")
    parser.add_argument("--ocloc", default="ocloc", metavar="PROGRAM")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="compile nothing; this document's into docs/intel.md"
    )
    parser.add_argument("--check", action="store_true", help="with --table: write nothing, exit 1 if it is not there")
    options = parser.parse_args()
    if options.table:
        return update(json.loads(options.table.read_text(encoding="utf-8")), options.check)
    if not shutil.which(options.ocloc):
        print(f"error: {options.ocloc} is not installed: apt-get install intel-opencl-icd", file=sys.stderr)
        return 2
    print(f"{'kernel':36}{'device':8}{'SIMD':>5}{'loop':>6}{'mads':>6}{'sends':>6}{'share':>7}{'GRF':>5}{'spilled':>9}")
    rows = []
    try:
        for row in all_rows(options.kernels, options.ocloc):
            rows.append(row)
            print("{kernel:36}{device:8}{simd:5}{loop:6}{mads:6}{sends:6}{share:7.3f}{registers:5}"
                  "{spilled:5}/{spilled_pieces}".format(**row), flush=True)  # fmt: skip
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    if options.json:
        document = {"format": "gemm-intel-static/1", "date": date.today().isoformat(), "commit": _commit(),
                    "compiler": _compiler(), "generations": GENERATIONS, "rows": rows}  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    short = faults(rows)
    for fault in short:
        print(fault)
    return 1 if short or not rows else 0


def _compiler() -> str:
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}, ", "intel-opencl-icd", "libigc1"],
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip(", ") or "ocloc of an unknown version"


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
