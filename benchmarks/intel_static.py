"""Compile the OpenCL kernels for generations of Intel GPUs, on a machine without one, and analyse the assembly.

    python benchmarks/intel_static.py [--json FILE] [--kernels WORD] [--ocloc PROGRAM] [--matrix DEVICE[,DEVICE]]

The script compiles every kernel for Intel GPUs, and every kernel that `auto` may choose there. It runs `ocloc`, the
compiler's command line (Debian: apt-get install intel-opencl-icd). Each kernel is compiled with the values of its
parameters in the catalog, and with their values in gemm/tuned for the generation.

The main figure is the share of multiply-adds among the instructions of the main loop. Every instruction occupies an
issue slot, so this share is an upper bound of the fraction of the peak: it ignores that loads wait for memory. Spilled
registers are searched in every program that the host builds of a kernel: the plain program, the one with PIECES, and
the one with SPLIT if K may be split. The script takes some minutes. The JSON document ("gemm-intel-static/2"):

    date, commit, compiler, generations {device: name}
    rows    [{kernel, chosen, device, simd, instructions, loop, mads, sends, share, registers, spilled, auto}]

- chosen: the parameters whose values differ from the catalog's.
- simd: work-items per hardware thread.
- instructions, loop: instructions of the whole kernel, and of its main loop.
- sends: messages in the main loop, to memory or to a barrier.
- registers: used registers, of 128.
- spilled: bytes per hardware thread, in the program that spills the most.
- auto: whether `auto` may choose the kernel there.

--matrix analyses the kernels for matrix units instead, for the given devices or for "all". Debian 12's compiler knows
dg2. The others need a newer one, such as Debian testing's (packages intel-ocloc and libigdfcl2), for which PROGRAM may
be a script that runs it in a root of that release. The document ("gemm-intel-matrix/1") has these fields instead:

- dpas: instructions of the matrix units in the main loop.
- share: the fraction of the loop's issue slots that the matrix units fill. A dpas takes 8: it repeats for each of its 8
  rows. Every other instruction takes one.
- available: registers of a hardware thread.
- traffic: bytes that the loop reads, as a multiple of the bytes of its parts of a and b.

The exit status is 1 if a kernel that `auto` may choose spills registers, if the best float32 kernel of a generation has
a share below 0.85, or if a kernel for matrix units reads more than 1.3 times its parts of a and b. It is 2 if `ocloc`
is missing or a kernel does not compile. docs/make_intel_table.py writes the tables of the newest records into
docs/intel.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from intel import assembly
from opencl_static import BITS, Failed, defines, measured, programs

from gemm.catalog import KERNELS, Kernel
from gemm.core import disk_cache
from gemm.core.problem import Device
from gemm.select import tuning_db

GENERATIONS = {"bdw": "Gen8", "skl": "Gen9", "icllp": "Gen11", "tgllp": "Gen12", "dg2": "Xe-HPG"}
"""{the compiler's name of a device: its generation}."""
NAMES = {"bdw": "HD Graphics 5500", "skl": "HD Graphics 530", "icllp": "Iris(R) Plus Graphics [0x8a52]",
         "tgllp": "Iris(R) Xe Graphics [0x9a49]", "dg2": "Arc(TM) A770 Graphics [0x56a0]"}  # fmt: skip
"""The name of one GPU of each generation, as its driver reports it after "Intel(R) "."""
FEATURES = frozenset({"image", "fp16", "denorms", "fma", "subgroups", "intel_subgroups", "intel_required_subgroup_size",
                      "subgroup_size_8", "subgroup_size_16", "subgroup_size_32"})  # fmt: skip
"""Features that all these GPUs have. Most have no fp64."""
GOAL = 0.85
MATRIX = {"dg2": "Arc A", "arl-h": "Arrow Lake-H", "bmg-g21": "Battlemage", "lnl-m": "Lunar Lake",
          "ptl-h": "Panther Lake", "pvc": "Data Center Max"}  # fmt: skip
"""{the compiler's name of a device: its name}, of GPUs with matrix units."""
NARROW = {"dg2", "arl-h"}
"""The devices whose matrix units work with sub-groups of 8. The others have 16, and registers of 64 bytes, not 32."""
TRAFFIC = 1.3
"""The most that a kernel for matrix units may read, as a multiple of its parts of a and b."""


def gpu(device: str) -> Device:
    """A GPU of the generation that the compiler calls `device`, in the form that dispatch uses."""
    limits = {"local_memory": 64 << 10, "work_group": 256, "compute_units": 16, "image_width": 16384}
    return Device("opencl", f"opencl:{device}", f"Intel(R) {NAMES[device]}", "Intel(R) OpenCL HD Graphics", kind="gpu",
                  features=FEATURES, limits=limits)  # fmt: skip


def automatic(row: Kernel) -> bool:
    """Whether `auto` may choose the kernel on these GPUs."""
    return row.backend == "opencl" and FEATURES.issuperset(row.needs) and row.chosen_on("gpu", FEATURES)


def jobs(word: str) -> Iterator[tuple[Kernel, str]]:
    """Yield (kernel, device) for kernels with `word` in their names: those for Intel, and those that `auto` may choose.

    For each device, first the kernel with the catalog's parameters, then with each set of parameters in gemm/tuned.
    """
    for row in KERNELS:
        if word in row.name and FEATURES.issuperset(row.needs) and (row.target == "intel" or automatic(row)):
            for device in GENERATIONS:
                yield row, device
                yield from ((tuned, device) for tuned in tuning_db.variants(row, gpu(device)))


def compile_row(row: Kernel, device: str, program: str, ocloc: str) -> tuple[int, assembly.Listing]:
    """Compile a kernel. Return the number of work-items per hardware thread, and the assembly.

    program: one of `programs`. Raises Failed if the kernel does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cl")
        file.write_text(disk_cache.read(row), encoding="utf-8")
        options = " ".join(f"-D {each}" for each in defines(row, program))
        options += " -cl-intel-256-GRF-per-thread" * (row.params.get("grf") == 256)
        command = [ocloc, "compile", "-file", str(file), "-device", device, "-out_dir", folder, "-options", options]
        dump = {"IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": folder}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **dump})
        # If the registers do not suffice, the compiler compiles again. The newest file is the final assembly.
        found = sorted(Path(folder).glob("*.asm"), key=lambda path: path.stat().st_mtime_ns)
        if done.returncode or not found:
            raise Failed(f"{row.name} for {device}: {(done.stdout + done.stderr).strip()[-400:]}")
        match = re.search(r"_simd(\d+)_", found[-1].name)
        return int(match[1]) if match else 0, assembly.parse(found[-1].read_text(encoding="utf-8"))


def measure(row: Kernel, device: str, ocloc: str) -> dict[str, Any]:
    """Compile all programs of a kernel. Return its row of the document. Raises Failed."""
    (simd, listing), *others = (compile_row(row, device, program, ocloc) for program in programs(row))
    loop = listing.loop or assembly.Loop(())
    if not loop.mads and row.dtype == "float32":
        raise Failed(f"{row.label} for {device}: no loop multiplies and adds")
    return {
        "kernel": row.name, "chosen": dict(row.chosen), "device": device, "simd": simd,
        "instructions": listing.instructions, "loop": len(loop.instructions), "mads": loop.mads, "sends": loop.sends,
        "share": round(loop.share, 3), "registers": listing.registers,
        "spilled": max(each.spilled for each in (listing, *(other for _, other in others))), "auto": automatic(row),
    }  # fmt: skip


def matrix_jobs(word: str, devices: list[str]) -> Iterator[tuple[Kernel, str]]:
    """Yield (kernel, device) for kernels with `word` in their names that use the matrix units of one of `devices`."""
    for row in KERNELS:
        for device in devices:
            if word in row.name and f"intel_dpas_{8 if device in NARROW else 16}" in row.needs:
                yield row, device


def measure_matrix(row: Kernel, device: str, ocloc: str) -> dict[str, Any]:
    """Compile all programs of a kernel for matrix units. Return its row of the document. Raises Failed."""
    (simd, listing), *others = (compile_row(row, device, program, ocloc) for program in programs(row))
    loop = listing.loop or assembly.Loop(())
    if not loop.dpas:
        raise Failed(f"{row.label} for {device}: no loop uses the matrix units")
    parts = (row.params["TM"] + row.params["TN"]) * row.params["BK"] * BITS[row.dtype] // 8
    return {
        "kernel": row.name, "device": device, "simd": simd, "instructions": listing.instructions,
        "loop": len(loop.instructions), "dpas": loop.dpas, "sends": loop.sends, "share": round(loop.matrix_share, 3),
        "available": listing.available, "spilled": max(each.spilled for each in (listing, *(x for _, x in others))),
        "traffic": round(loop.read(32 if device in NARROW else 64) / parts, 3), "auto": True,
    }  # fmt: skip


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """Messages about the kernels and the generations that miss the goals."""
    found = [f"{row['kernel']} spills on {row['device']}" for row in rows if row["auto"] and row["spilled"]]
    found += [f"{row['kernel']} reads {row['traffic']} times its operands on {row['device']}" for row in rows
              if row.get("traffic", 1) > TRAFFIC]  # fmt: skip
    for device in {row["device"]: 0 for row in rows if "dpas" not in row}:
        best = max((row["share"] for row in rows if row["device"] == device and row["kernel"][0] == "s"), default=GOAL)
        if best < GOAL:
            found.append(f"no kernel reaches {GOAL} on {device}: {best} is the best")
    return found


def main() -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("--kernels", default="", metavar="WORD", help="only kernels with WORD in their names")
    parser.add_argument("--ocloc", default="ocloc", metavar="PROGRAM")
    parser.add_argument("--matrix", metavar="DEVICE[,DEVICE]", help="kernels for matrix units, on these devices or all")
    options = parser.parse_args()
    if not shutil.which(options.ocloc):
        print(f"error: {options.ocloc} is not installed: apt-get install intel-opencl-icd", file=sys.stderr)
        return 2
    try:
        found = matrix(options) if options.matrix else shares(options)
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    recorded.save(options.json, found)
    short = faults(found["rows"])
    for fault in short:
        print(fault)
    return 1 if short or not found["rows"] else 0


def shares(options: Any) -> dict[str, Any]:
    """The document of what the script does without --matrix. Raises Failed."""
    columns = "{kernel:44}{device:8}{simd:5}{loop:6}{mads:6}{sends:6}{share:7.3f}{registers:11}{spilled:9} {chosen}"
    rows = measured(jobs(options.kernels), partial(measure, ocloc=options.ocloc), columns)
    return recorded.analysis("gemm-intel-static/2", compiler=_compiler(), generations=GENERATIONS, rows=rows)


def matrix(options: Any) -> dict[str, Any]:
    """The document of --matrix. Raises Failed."""
    devices = list(MATRIX) if options.matrix == "all" else options.matrix.split(",")
    columns = (
        "{kernel:38}{device:9}{simd:5}{loop:6}{dpas:6}{sends:6}{share:7.3f}{available:11}{spilled:9}{traffic:9.2f}"
    )
    found = measured(matrix_jobs(options.kernels, devices), partial(measure_matrix, ocloc=options.ocloc), columns)
    names = {device: MATRIX[device] for device in devices}
    return recorded.analysis("gemm-intel-matrix/1", compiler=_compiler(options.ocloc), devices=names, rows=found)


def _compiler(ocloc: str = "ocloc") -> str:
    """The versions of the compiler's packages; `ocloc`'s own version if it is no package of this system."""
    if ocloc != "ocloc":
        with tempfile.TemporaryDirectory() as folder:  # ocloc also writes the answer to a file
            command = [ocloc, "query", "OCL_DRIVER_VERSION"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        return f"ocloc {done.stdout.strip().splitlines()[-1]}" if done.stdout.strip() else "ocloc of an unknown version"
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}, ", "intel-opencl-icd", "libigc1"],
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip(", ") or "ocloc of an unknown version"


if __name__ == "__main__":
    sys.exit(main())
