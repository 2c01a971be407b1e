"""Run every CUDA kernel under each tool of NVIDIA's compute-sanitizer, on products with partial tiles.

    python benchmarks/cuda_sanitize.py [FILE] [--kernels REGEX] [--tools memcheck,racecheck]

The checks of `gemm verify --quick` run, each kernel in its own process. The script prints a line for each tool, and the
tool's output for each kernel with a finding. FILE receives the same text. The exit status is 1 if there are findings,
or if no kernel matches. The script needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gemm.backends import registry
from gemm.frontend.inventory import kernels
from gemm.select.verify.suite import verify

TOOLS = {"memcheck": [], "racecheck": [], "initcheck": ["--check-api-memory-access", "no"], "synccheck": []}
"""The options of each tool. initcheck does not see stores by TMA, so it must not check copies of results. The checks of
`gemm verify` find results with wrong values, and writes outside of the results."""
_SAID = 40  # number of last lines of a tool's output that are kept


def names(wanted: str) -> list[str]:
    """Names of the available CUDA kernels that match `wanted`."""
    return [k.name for k in kernels() if k.backend == "cuda" and k.available and re.search(wanted, k.name)]


def watched(name: str) -> None:
    """Run the checks of one kernel, under the tool that started this process."""
    backend = registry.backend("cuda")
    row = next(kernel.row for kernel in kernels() if kernel.name == name)
    verify(backend, row, backend.devices()[0])


def sanitized(tool: str, name: str) -> str:
    """The output of `tool` for a kernel, or "" if the tool found nothing."""
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--error-exitcode", "9"]
    command += [sys.executable, __file__, "--inner", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    clean = done.returncode == 0 and any(re.search(r"SUMMARY: 0 (errors|hazards)", line) for line in lines)
    return "" if clean else "\n".join([f"{tool}, {name} (exit {done.returncode}):", *lines[-_SAID:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--kernels", default="", metavar="REGEX")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes at the same time")
    parser.add_argument("--inner", metavar="KERNEL", help="run the checks of this kernel only (used internally)")
    options = parser.parse_args()
    if options.inner:
        watched(options.inner)
        return 0
    rows, lines, found = names(options.kernels), [], 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for tool in options.tools.split(","):
            said = [text for text in pool.map(partial(sanitized, tool), rows) if text]
            found += len(said)
            lines += [f"{tool}: {len(rows) - len(said)} of {len(rows)} kernels clean", *said]
            print("\n".join(lines[-1 - len(said) :]), flush=True)
    if options.file:
        options.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if found or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
