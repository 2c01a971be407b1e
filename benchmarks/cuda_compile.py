"""Compile every CUDA kernel for every architecture that the present NVRTC knows, and read the assembler's report.

    python benchmarks/cuda_compile.py [--require sm_53,sm_90a] [--json FILE]

Needs cuda-bindings and NVRTC but no GPU. Prints registers a thread, bytes of shared memory a block and bytes spilled.
Exits 1 when a kernel does not compile, spills a register, or nothing (or not all of --require) was compiled.
NVRTC 12.9 is the last for sm_50 to sm_70; 13 brings sm_100 and newer:

    pip install "cuda-bindings==12.9.*" "nvidia-cuda-nvrtc-cu12==12.9.*"
    pip install "cuda-bindings==13.*" "nvidia-cuda-nvrtc==13.*"
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemm.backends.cuda_compiler import compile_source, compiler_version, resources, supported
from gemm.catalog import KERNELS, Kernel
from gemm.errors import KernelFailed

ARCHITECTURES = (50, 53, 60, 61, 70, 75, 80, 86, 87, 89, 90, 100, 120)
"""Compute capabilities that the package claims; Hopper is also compiled as sm_90a, with its own instructions."""


def architectures(kernel: Kernel) -> list[str]:
    """The claimed architectures that this NVRTC compiles for, less those that `kernel` does not run on."""
    names = [f"sm_{capability}" for capability in ARCHITECTURES if capability in supported()]
    names += ["sm_90a"] if "sm_90" in names else []
    needed = [need for need in kernel.needs if need.startswith("sm_")]
    return [name for name in names if not needed or name in needed]


def measure(kernel: Kernel, arch: str) -> dict[str, Any]:
    """One row of the table; `error` is "" when all is well."""
    row: dict[str, Any] = {"kernel": kernel.name, "arch": arch, "registers": 0, "shared": 0, "spills": 0, "error": ""}
    try:
        row |= resources(compile_source(kernel, arch)[1])
    except (KernelFailed, ValueError) as error:
        return row | {"error": str(error)}
    return row | {"error": "spills registers" if row["spills"] else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", default="", metavar="ARCH,...", help="fail unless these were compiled")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    version = "{}.{}".format(*compiler_version())
    print(f"NVRTC {version}\n{'kernel':24} {'arch':8} {'registers':>9} {'shared':>7} {'spills':>7}")
    table = []
    for kernel in (row for row in KERNELS if row.backend == "cuda"):
        for arch in architectures(kernel):
            table.append(measure(kernel, arch))
            print("{kernel:24} {arch:8} {registers:9} {shared:7} {spills:7}  {error}".format(**table[-1]).rstrip())
    if options.json:
        options.json.write_text(json.dumps({"nvrtc": version, "kernels": table}, indent=1) + "\n", encoding="utf-8")
    good = {row["arch"] for row in table if not row["error"]}
    missing = [arch for arch in options.require.split(",") if arch and arch not in good]
    if missing:
        print(f"not compiled: {', '.join(missing)}", file=sys.stderr)
    if not table:
        print("nothing was compiled", file=sys.stderr)
    return 1 if missing or not table or any(row["error"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
