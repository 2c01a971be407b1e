"""Compare the AArch64 kernels with OpenBLAS's and BLIS's on a machine without an Arm core: static figures, no times.

    python benchmarks/arm_static.py [--json FILE] [--size 640] [--no-count] [--cache FOLDER]

The script gives two kinds of figures:

1. The percentage of the FMA peak that a kernel's main loop reaches in llvm-mca's models of several cores. Our kernels
   are compiled by GCC and by clang. The loops of the other libraries' kernels are found by disassembling Debian's arm64
   packages. Each percentage is an upper bound, because the models assume that every load hits L1. Models marked with ~
   are unreliable; arm/model.py says why.
2. The number of instructions that a whole product executes, with packing and all loops, per vector FMA that it needs.

The script needs Debian's clang-19, llvm-19, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross. It unpacks further
packages below --cache by apt-get and dpkg. The JSON document ("gemm-arm-static/1"):

    date, commit, versions
    loops     [{kernel, by (gcc, clang, OpenBLAS, BLIS), type, instructions, fmas, loads, spills, percent {cpu: %}}]
    executed  [{kernel, type, n, instructions, per_fma}]
    verdict   [{type, cpu, usable (is the model reliable?), ours, peers {library: best %}}]

The exit status is 1 if a production kernel reaches less than the better of the two libraries in a reliable model, or if
a production kernel accesses the stack in its main loop. It is 2 if a program is missing or fails.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded
from arm import peers
from arm.executed import CC, TYPES, Emulator, compile_kernel, ours, theirs
from arm.loops import Loop, main_loop
from arm.model import MODELS, percent_of_peak
from arm.tools import Failed, llvm, run

from gemm.catalog import KERNELS

ROOT = Path(__file__).resolve().parents[1]
PRODUCTION = {"s": "sgemm_neon_8x12", "d": "dgemm_neon_6x8"}
TOLERANCE = 0.5
"""Percentage points by which llvm-mca's figures for the steady state of a loop fluctuate."""


def figures(kernel: str, by: str, letter: str, loop: Loop) -> dict[str, Any]:
    """The figures of one kernel's main loop: a row of `loops` in the document."""
    percent = {cpu: round(percent_of_peak(loop, cpu), 1) for cpu in MODELS}
    return {"kernel": kernel, "by": by, "type": letter, "instructions": len(loop.instructions), "fmas": loop.fmas,
            "loads": loop.loads, "spills": loop.spills, "percent": percent}  # fmt: skip


def all_loops(cache: Path, scratch: Path) -> list[dict[str, Any]]:
    """The figures of every kernel, printed one by one."""
    names = [cpu if usable else "~" + cpu for cpu, (_, usable) in MODELS.items()]
    print(f"{'kernel':34}{'by':10}{'instr':>6}{'fma':>5}{'spill':>6}", *(f"{name:>12}" for name in names))
    table: list[dict[str, Any]] = []

    def add(kernel: str, by: str, letter: str, binary: Path) -> None:
        loop = main_loop(binary)
        if loop is None:
            raise Failed(f"{kernel}: no loop multiplies and adds")
        row = figures(kernel, by, letter, loop)
        table.append(row)
        print(f"{kernel:34}{by:10}{row['instructions']:6}{row['fmas']:5}{row['spills']:6}",
              *(f"{value:12.1f}" for value in row["percent"].values()), flush=True)  # fmt: skip

    compilers = {"gcc": (CC,), "clang": (llvm("clang"), "--target=aarch64-linux-gnu")}
    for kernel in (row for row in KERNELS if row.target == "neon"):
        for by, compiler in compilers.items():
            binary = compile_kernel(ROOT / kernel.source, scratch / f"{kernel.name}.{by}.o", compiler)
            add(kernel.name, by, kernel.name.split("gemm")[0], binary)
    for letter in TYPES:
        for library in peers.KERNELS:
            for name, binary in peers.kernels(library, letter, cache, scratch):
                add(f"{letter}gemm {name}", library, letter, binary)
    return table


def verdict(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`verdict` of the document, for each type and core.

    `ours` is the percentage of our production kernel with the better compiler. `peers` has the percentage of the best
    kernel of each library.
    """
    rows = []
    for letter, kernel in PRODUCTION.items():
        for cpu, (_, usable) in MODELS.items():
            mine = max(row["percent"][cpu] for row in table if row["kernel"] == kernel)
            best = {
                library: max(row["percent"][cpu] for row in table if row["by"] == library and row["type"] == letter)
                for library in peers.KERNELS
            }
            rows.append({"type": letter, "cpu": cpu, "usable": usable, "ours": mine, "peers": best})
    return rows


def all_executed(n: int, cache: Path, scratch: Path) -> list[dict[str, Any]]:
    """The instructions of whole products, printed one by one."""
    emulator = Emulator(cache, scratch)
    print(f"\n{'product of ' + str(n) + ' cubed':34}{'instructions':>16}{'a vector FMA':>14}")
    table = []
    for letter, (_, lanes) in TYPES.items():
        programs = [(row.name, ours(row.name, ROOT / row.source, scratch))
                    for row in KERNELS if row.target == "neon" and row.name.startswith(f"{letter}gemm")]  # fmt: skip
        programs += [(f"{letter}gemm {library}", theirs(library, letter, cache, scratch)) for library in peers.KERNELS]
        for name, program in programs:
            count = emulator.count(program, n)
            per_fma = round(count * lanes / n**3, 4)
            row = {"kernel": name, "type": letter, "n": n, "instructions": count, "per_fma": per_fma}
            table.append(row)
            print(f"{name:34}{count:16}{row['per_fma']:14.3f}", flush=True)
    return table


def versions() -> dict[str, str]:
    """Versions of the programs that influence the figures."""
    found = {}
    for name, command in {"llvm-mca": llvm("llvm-mca"), "gcc": CC, "clang": llvm("clang")}.items():
        text, _ = run([command, "--version"])
        found[name] = next(line.strip() for line in text.splitlines() if re.search(r"version|gcc", line))
    return found


def main() -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("--size", type=int, default=640, metavar="N", help="size of the counted products")
    parser.add_argument("--no-count", action="store_true", help="analyse inner loops only")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "gemm-arm-static", metavar="FOLDER")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    cache = options.cache.resolve()
    try:
        with tempfile.TemporaryDirectory() as folder:
            table = all_loops(cache, Path(folder))
            counted = [] if options.no_count else all_executed(options.size, cache, Path(folder))
        programs = versions()
    except Failed as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    rows = verdict(table)
    recorded.save(options.json, recorded.analysis(
        "gemm-arm-static/1", versions=programs, loops=table, executed=counted, verdict=rows
    ))  # fmt: skip
    lost = [row for row in rows if row["usable"] and row["ours"] + TOLERANCE < max(row["peers"].values())]
    spilled = [row["kernel"] for row in table if row["kernel"] in PRODUCTION.values() and row["spills"]]
    for row in lost:
        print(f"behind on {row['cpu']}, {row['type']}gemm: {row['ours']} % against {row['peers']}")
    for kernel in spilled:
        print(f"{kernel}: accesses the stack in its inner loop")
    return 1 if lost or spilled else 0


if __name__ == "__main__":
    sys.exit(main())
