"""Compile every CUDA kernel for every architecture that an NVRTC knows, and read the assembler's report.

    python benchmarks/cuda_compile.py [--require sm_53,sm_90a] [--cuda 12] [--every-form] [--kernels TEXT] [--json FILE]

Needs NVRTC but no GPU. Prints registers a thread, bytes of shared memory a block and bytes spilled: the worst of the
forms (how operands lie, types, epilogue) that were compiled, which are one without and one with an epilogue unless
--every-form asks for all. Exits 1 when a kernel does not compile, spills a register, or nothing (or not all of
--require) was compiled. NVRTC 12.9 is the last for sm_50 to sm_70; 13 brings newer ones than sm_120:

    pip install "nvidia-cuda-nvrtc-cu12==12.9.*"
    pip install "nvidia-cuda-nvrtc==13.*"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemm.backends.cuda_compiler import Compiler, compilers, resources
from gemm.backends.cuda_operand import PACK, PLANES, SPLIT
from gemm.backends.cuda_recipe import forms
from gemm.catalog import KERNELS, Kernel
from gemm.errors import KernelFailed

ARCHITECTURES = (50, 53, 60, 61, 70, 75, 80, 86, 87, 89, 90, 100, 120)
"""Compute capabilities that the package claims; Hopper is also compiled as sm_90a, with its own instructions."""


def architectures(kernel: Kernel, compiler: Compiler) -> list[str]:
    """The claimed architectures that the NVRTC compiles for, less those that `kernel` does not run on."""
    known = [capability for capability in ARCHITECTURES if capability in compiler.supported]
    needed = [need for need in kernel.needs if need.startswith("sm_")]
    if any(need.endswith("a") for need in needed):
        return [need for need in needed if int(need[3:-1]) in known]
    least = max((int(need[3:]) for need in needed), default=0)
    return [f"sm_{capability}" for capability in known if capability >= least]


def forms_of(kernel: Kernel, *, every: bool) -> Iterator[dict[str, object]]:
    """The forms to compile `kernel` in."""
    if kernel.name == PACK.name:
        yield from ({"BYTES": size} for size in (1, 2, 4, 8))
    elif kernel.name == SPLIT.name:
        yield from ({"TYPE": PLANES[n], "PLANES": n, "TURNED": turned} for n in PLANES for turned in (0, 1))
    else:
        seen = set()
        for form in forms(kernel):
            if every or form.get("EPILOGUE") not in seen:
                seen.add(form.get("EPILOGUE"))
                yield form


def measure(kernel: Kernel, arch: str, compiler: Compiler, *, every: bool) -> dict[str, Any]:
    """One row of the table; `error` is "" when all is well."""
    row: dict[str, Any] = {"kernel": kernel.name, "arch": arch, "registers": 0, "shared": 0, "spills": 0, "error": ""}
    for form in forms_of(kernel, every=every):
        try:
            used = resources(compiler.compile(kernel, arch, form)[1])
        except (KernelFailed, ValueError) as error:
            return row | {"error": f"{error} ({form})"}
        row |= {name: max(row[name], value) for name, value in used.items()}
    return row | {"error": "spills registers" if row["spills"] else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", default="", metavar="ARCH,...", help="fail unless these were compiled")
    parser.add_argument("--cuda", type=int, default=0, metavar="MAJOR", help="the NVRTC to use; default: the newest")
    parser.add_argument("--every-form", action="store_true", help="however operands may lie")
    parser.add_argument("--kernels", default="", metavar="TEXT", help="only those whose names have this in them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    found = [compiler for compiler in compilers() if options.cuda in (0, compiler.major)]
    if not found:
        print("there is no such NVRTC", file=sys.stderr)
        return 1
    compiler = found[0]
    version = "{}.{}".format(*compiler.version)
    print(f"NVRTC {version}\n{'kernel':36} {'arch':8} {'registers':>9} {'shared':>7} {'spills':>7}")
    table = []
    helpers = [kernel for kernel in (PACK, SPLIT) if (Path(__file__).parents[1] / kernel.source).is_file()]
    for kernel in (*helpers, *(row for row in KERNELS if row.backend == "cuda")):
        for arch in architectures(kernel, compiler) if options.kernels in kernel.name else ():
            table.append(measure(kernel, arch, compiler, every=options.every_form))
            print("{kernel:36} {arch:8} {registers:9} {shared:7} {spills:7}  {error}".format(**table[-1]).rstrip())
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
