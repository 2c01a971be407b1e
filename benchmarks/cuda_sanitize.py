"""Every CUDA kernel under each tool of NVIDIA's compute-sanitizer, on products that leave ragged tiles.

    python benchmarks/cuda_sanitize.py [FILE] [--kernels REGEX] [--tools memcheck,racecheck]

What runs are the short cases of `gemm verify` and a product of more tiles than one, whose results are checked. Prints
each tool's summary (and writes it to FILE); exits 1 if a tool found anything. Needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from gemm import verify
from gemm.api import kernels
from gemm.dispatch import registry

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def products(wanted: str) -> None:
    """What the tools watch: every kernel, or those whose names `wanted` matches."""
    backend = registry.backend("cuda")
    for kernel in kernels():
        if kernel.backend == "cuda" and kernel.available and re.search(wanted, kernel.name):
            for _ in verify.checks(backend, kernel.row, backend.devices()[0], verify.QUICK + verify.beyond(kernel.row)):
                pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--kernels", default="", metavar="REGEX")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--inner", action="store_true", help="what the tools watch")
    options = parser.parse_args()
    if options.inner:
        products(options.kernels)
        return 0
    found, lines = 0, []
    watched = [sys.executable, __file__, "--inner", "--kernels", options.kernels]
    for tool in options.tools.split(","):
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *watched]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found += done.returncode != 0
        summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line] or [done.stdout + done.stderr]
        lines.append(f"{tool}: {summary[-1].removeprefix('========= ')} (exit {done.returncode})")
        print(lines[-1], flush=True)
    if options.file:
        options.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
