"""Compile OpenCL kernels for AMD GPUs, on a machine without one, and analyse the assembly.

    python benchmarks/amd_static.py [--json FILE] [--kernels WORD] [--clang PROGRAM] [--library FOLDER]

The script compiles the kernels for matrix units (wmma), and the float32 kernels with tiles that `auto` may choose. It
runs clang, whose code generator AMD's driver has, too (Debian: apt-get install clang-19 rocm-device-libs). The kernels
are compiled with the catalog's parameters. The JSON document ("gemm-amd-static/1"):

    date, commit, compiler, devices {device: name}
    rows    [{kernel, device, wave, vgprs, sgprs, occupancy, spilled, loop, units, fmas, loads, share}]

- wave: work-items of a sub-group.
- vgprs, sgprs: registers of a wave; a VGPR has one word for each work-item.
- occupancy: waves that fit into the registers of a SIMD at once. They are at most 16, on CDNA 8.
- spilled: bytes of scratch memory for each work-item, in the program that needs most: the plain one, the one with
  PIECES, and the one with SPLIT if K may be split.
- loop, units, fmas, loads: instructions of the main loop; those of the matrix units; multiply-adds of floats, of which
  an instruction may have two; and loads from memory or local memory.
- share: the matrix units' part of the loop's instructions, or the multiply-adds for each instruction.

The exit status is 1 if a kernel for matrix units spills registers, and 2 if clang is missing or a kernel does not
compile. docs/make_amd_table.py writes the table of the newest record into docs/amd.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from opencl_static import Failed, defines, measured, programs

from gemm.backends.opencl import backend
from gemm.catalog import KERNELS, Kernel
from gemm.core import disk_cache

DEVICES = {"gfx1100": "RDNA 3", "gfx1201": "RDNA 4", "gfx90a": "CDNA 2"}
"""{the compiler's name of a device: its architecture}."""
LIBRARY = "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"
"""The folder of Debian's package rocm-device-libs. It has no file for the newest devices: see `compiled`."""
COLUMNS = ("{kernel:34}{device:9}{wave:5}{vgprs:7}{sgprs:7}{occupancy:11}{spilled:9}{loop:6}{units:7}{fmas:6}{loads:7}"
           "{share:7.2f}")  # fmt: skip
_FMA = re.compile(r"v_(?:pk_)?(?:dual_)?fmac?_f32|v_pk_fma_f32")


@dataclass(frozen=True)
class Listing:
    """A kernel's assembly: the instructions of its main loop, and figures that the compiler writes beside it."""

    loop: tuple[str, ...]
    figures: dict[str, int]

    @property
    def units(self) -> int:
        return sum("_wmma_" in text for text in self.loop)

    @property
    def fmas(self) -> int:
        """Multiply-adds: those of a pair (v_dual_..., "::") and of a packed instruction count as two."""
        return sum(len(_FMA.findall(text)) * (1 + ("_pk_" in text)) for text in self.loop)

    @property
    def loads(self) -> int:
        return sum(bool(re.match(r"(global|buffer|flat)_load|ds_(load|read)", text)) for text in self.loop)


def parse(text: str, entry: str) -> Listing:
    """Parse the assembly that clang makes of the kernel `entry`. Raises ValueError if it has no such kernel."""
    start = text.find(f"\n{entry}:")
    if start < 0:
        raise ValueError(f"no assembly of {entry}")
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in text[start : text.index(".Lfunc_end", start)].splitlines():
        if label := re.match(r"(\.LBB\w+):", line):
            labels[label[1]] = len(instructions)
        elif re.match(r"\t[a-z]", line):
            instructions.append(line.split(";")[0].strip())
    loops = [()] + [
        tuple(instructions[labels[words[1]] : at + 1])
        for at, words in enumerate(map(str.split, instructions))
        if words[0].startswith(("s_cbranch", "s_branch")) and labels.get(words[1], at + 1) <= at
    ]
    figures = {name: int(value) for name, value in re.findall(r"^\s+\.(\w+): +(\d+)$", text, re.MULTILINE)}
    figures["occupancy"] = int(re.findall(r"^; Occupancy: (\d+)", text, re.MULTILINE)[-1])
    found = [Listing(loop, figures) for loop in loops]
    return max(found, key=lambda each: (each.units, each.fmas, -len(each.loop)))


def jobs(word: str) -> Iterator[tuple[Kernel, str]]:
    """Yield (kernel, device) for kernels with `word` in their names."""
    for row in KERNELS:
        for device in DEVICES if word in row.name else ():
            features = backend._amd(device)
            shown = row.target == "amd" or row.name.startswith("sgemm_generic_tile")
            if shown and features.issuperset(row.needs) and row.chosen_on("gpu", features):
                yield row, device


def compiled(row: Kernel, device: str, program: str, tools: tuple[str, Path]) -> Listing:
    """Compile one of the kernel's `programs`. Raises Failed.

    tools: the compiler, and the folder of the library.
    """
    clang, library = tools
    # The kernels call no function of the library that depends on the device's version. The file of any version serves.
    parts = ["opencl", "ocml", "ockl", "oclc_daz_opt_off", "oclc_unsafe_math_off", "oclc_finite_only_off",
             "oclc_correctly_rounded_sqrt_on", "oclc_isa_version_1030", "oclc_abi_version_500",
             f"oclc_wavefrontsize64_{'on' if device.startswith('gfx9') else 'off'}"]  # fmt: skip
    command = [clang, "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-target",
               "amdgcn-amd-amdhsa", f"-mcpu={device}", "-nogpulib", "-O3", "-S", "-o", "-", "-"]  # fmt: skip
    command += [f"-D{each}" for each in defines(row, program)]
    for part in parts:
        command += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(library / f"{part}.bc")]
    with tempfile.TemporaryDirectory() as folder:  # where clang leaves a report if it fails
        done = subprocess.run(command, input=disk_cache.read(row), capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise Failed(f"{row.name} for {device}: {done.stderr.strip()[-400:]}")
    return parse(done.stdout, row.entry)


def measure(row: Kernel, device: str, tools: tuple[str, Path]) -> dict[str, Any]:
    """Compile all programs of a kernel. Return its row of the document. Raises Failed."""
    listing, *others = (compiled(row, device, program, tools) for program in programs(row))
    if not listing.units + listing.fmas:
        raise Failed(f"{row.name} for {device}: no loop multiplies and adds")
    figures = listing.figures
    return {
        "kernel": row.name, "device": device, "wave": figures["wavefront_size"], "vgprs": figures["vgpr_count"],
        "sgprs": figures["sgpr_count"], "occupancy": figures["occupancy"],
        "spilled": max(each.figures["private_segment_fixed_size"] for each in (listing, *others)),
        "loop": len(listing.loop), "units": listing.units, "fmas": listing.fmas, "loads": listing.loads,
        "share": round((listing.units or listing.fmas) / len(listing.loop), 3),
    }  # fmt: skip


def main() -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("--kernels", default="", metavar="WORD", help="only kernels with WORD in their names")
    parser.add_argument("--clang", default="clang-19", metavar="PROGRAM")
    parser.add_argument("--library", type=Path, default=LIBRARY, metavar="FOLDER", help=f"default: {LIBRARY}")
    options = parser.parse_args()
    if not shutil.which(options.clang) or not options.library.is_dir():
        print("error: no compiler or no library: apt-get install clang-19 rocm-device-libs", file=sys.stderr)
        return 2
    tools = options.clang, options.library
    try:
        rows = measured(jobs(options.kernels), partial(measure, tools=tools), COLUMNS)
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    version = subprocess.run([options.clang, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    recorded.save(options.json, recorded.analysis("gemm-amd-static/1", compiler=version, devices=DEVICES, rows=rows))
    spilling = [row for row in rows if row["units"] and row["spilled"]]
    for row in spilling:
        print(f"{row['kernel']} spills on {row['device']}")
    return 1 if spilling or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
