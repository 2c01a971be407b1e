"""What Intel's graphics compiler makes of the OpenCL kernels, for generations of GPUs, on a machine without one.

    python benchmarks/intel_static.py [--json FILE] [--kernels WORD] [--ocloc PROGRAM]

Compiles every row for such GPUs, and every row that `auto` may choose there, with `ocloc`, the compiler's command line
(Debian: apt-get install intel-opencl-icd), and reads the assembly: as the catalog has it, and with the values that
gemm/tuned has for the generation. Of a kernel's main loop: how many of its instructions multiply and add. Whatever an
instruction does, it takes a turn: the share is an upper bound of the share of the peak. It says nothing of waiting for
memory. Registers that did not fit (spills) are looked for in each program that the host builds of a row: the plain one,
with PIECES, and with SPLIT where K may be shared. Takes some minutes. The JSON document ("gemm-intel-static/2"):

    date, commit, compiler, generations {device: name}
    rows    [{kernel, chosen, device, simd, instructions, loop, mads, sends, share, registers, spilled, auto}]

chosen: the values that are not the catalog's; simd: work-items of a thread; instructions, loop: of the whole kernel and
of its main loop; sends: messages in it; registers: of 128; spilled: bytes a thread, of the program with the most; auto:
whether it may be chosen there though nobody named it.

Exits 1 where a row that may be chosen spills, or where the best of a generation has a share below 0.85 in float32.
docs/make_intel_table.py writes the table of the newest record into docs/intel.md.
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

from gemm.catalog import KERNELS, Kernel
from gemm.core import disk_cache
from gemm.core.problem import Device
from gemm.select import tuning_db

ROOT = Path(__file__).resolve().parents[1]
GENERATIONS = {"bdw": "Gen8", "skl": "Gen9", "icllp": "Gen11", "tgllp": "Gen12", "dg2": "Xe-HPG"}
"""The compiler's name of a device, and its generation."""
NAMES = {"bdw": "HD Graphics 5500", "skl": "HD Graphics 530", "icllp": "Iris(R) Plus Graphics [0x8a52]",
         "tgllp": "Iris(R) Xe Graphics [0x9a49]", "dg2": "Arc(TM) A770 Graphics [0x56a0]"}  # fmt: skip
"""One of each, as drivers name it, after "Intel(R) "."""
FEATURES = frozenset({"image", "fp16", "denorms", "fma", "subgroups", "intel_subgroups", "intel_required_subgroup_size",
                      "subgroup_size_8", "subgroup_size_16", "subgroup_size_32"})  # fmt: skip
"""What all of them offer; most have no fp64."""
PROGRAMS = ("", "PIECES", "SPLIT")
BITS = {"float32": 32, "float16": 16, "int32": 8}  # int32: of int8 operands
GOAL = 0.85


class Failed(Exception):
    """A program is absent or failed; the text is for the user."""


def gpu(device: str) -> Device:
    """A GPU of the generation that the compiler calls `device`, as dispatch sees it."""
    limits = {"local_memory": 64 << 10, "work_group": 256, "compute_units": 16, "image_width": 16384}
    return Device("opencl", f"opencl:{device}", f"Intel(R) {NAMES[device]}", "Intel(R) OpenCL HD Graphics", kind="gpu",
                  features=FEATURES, limits=limits)  # fmt: skip


def automatic(row: Kernel) -> bool:
    """Whether `auto` may choose it on those GPUs."""
    return row.backend == "opencl" and FEATURES.issuperset(row.needs) and row.chosen_on("gpu", FEATURES)


def jobs(word: str) -> Iterator[tuple[Kernel, str]]:
    """Rows whose name has `word` in it, each with the values that are shipped for the device, too."""
    for row in KERNELS:
        if word in row.name and FEATURES.issuperset(row.needs) and (row.target == "intel" or automatic(row)):
            for device in GENERATIONS:
                yield row, device
                yield from ((tuned, device) for tuned in tuning_db.variants(row, gpu(device)))


def compile_row(row: Kernel, device: str, program: str, ocloc: str) -> tuple[int, assembly.Listing]:
    """Work-items of a thread, and the assembly; `program` is one of PROGRAMS."""
    defines = {name: value for name, value in row.params.items() if name.isupper()}
    defines |= {"PRECISION": BITS[row.dtype], "ORDERED": 0, "FUSED": 1} | ({program: 1} if program else {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cl")
        file.write_text(disk_cache.read(row), encoding="utf-8")
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
    programs = [program for program in PROGRAMS if program != "SPLIT" or "split" in row.params]
    (simd, listing), *others = (compile_row(row, device, program, ocloc) for program in programs)
    loop = listing.loop or assembly.Loop(())
    if not loop.mads and row.dtype == "float32":
        raise Failed(f"{row.label} for {device}: no loop multiplies and adds")
    return {
        "kernel": row.name, "chosen": dict(row.chosen), "device": device, "simd": simd,
        "instructions": listing.instructions, "loop": len(loop.instructions), "mads": loop.mads, "sends": loop.sends,
        "share": round(loop.share, 3), "registers": listing.registers,
        "spilled": max(each.spilled for each in (listing, *(other for _, other in others))), "auto": automatic(row),
    }  # fmt: skip


def all_rows(word: str, ocloc: str) -> Iterator[dict[str, Any]]:
    """Of kernels whose name has `word` in it."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda job: measure(*job, ocloc), list(jobs(word)))


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What falls short of the goals."""
    found = [f"{row['kernel']} spills on {row['device']}" for row in rows if row["auto"] and row["spilled"]]
    for device in {row["device"]: 0 for row in rows}:
        best = max((row["share"] for row in rows if row["device"] == device and row["kernel"][0] == "s"), default=GOAL)
        if best < GOAL:
            found.append(f"no kernel reaches {GOAL} on {device}: {best} is the best")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--kernels", default="", metavar="WORD", help="only those with it in their name")
    parser.add_argument("--ocloc", default="ocloc", metavar="PROGRAM")
    options = parser.parse_args()
    if not shutil.which(options.ocloc):
        print(f"error: {options.ocloc} is not installed: apt-get install intel-opencl-icd", file=sys.stderr)
        return 2
    print(f"{'kernel':44}{'device':8}{'SIMD':>5}{'loop':>6}{'mads':>6}{'sends':>6}{'share':>7}{'GRF':>5}{'spilled':>9}")
    rows = []
    try:
        for row in all_rows(options.kernels, options.ocloc):
            rows.append(row)
            label = row["kernel"] + "".join(f" {name}={value}" for name, value in row["chosen"].items())
            print("{label:44}{device:8}{simd:5}{loop:6}{mads:6}{sends:6}{share:7.3f}{registers:5}{spilled:9}"
                  .format(label=label, **row), flush=True)  # fmt: skip
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    if options.json:
        document = {"format": "gemm-intel-static/2", "date": date.today().isoformat(), "commit": _commit(),
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
