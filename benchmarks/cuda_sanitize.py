"""Run every CUDA kernel under each tool of NVIDIA's compute-sanitizer, on products with partial tiles.

    python benchmarks/cuda_sanitize.py [FILE] [--kernels REGEX] [--tools memcheck,racecheck]

The checks of `gemm verify --quick` run, each kernel in its own process. As soon as a tool ends, the script prints a
line for the kernel, or the tool's output if there is a finding. At the end, it prints a line for each tool. FILE
receives the last lines and the findings. The exit status is 1 if there are findings, or if no kernel matches. The
script needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    rows, tools = names(options.kernels), options.tools.split(",")
    findings: dict[str, list[str]] = {tool: [] for tool in tools}
    with ThreadPoolExecutor(options.jobs) as pool:
        started = {pool.submit(sanitized, tool, name): (tool, name) for tool in tools for name in rows}
        for done in as_completed(started):
            tool, name = started[done]
            if text := done.result():
                findings[tool].append(text)
            print(text or f"{tool}, {name}: clean", flush=True)
    summary = [f"{tool}: {len(rows) - len(said)} of {len(rows)} kernels clean" for tool, said in findings.items()]
    print("\n".join(summary))
    if options.file:
        text = "\n".join([*summary, *(text for said in findings.values() for text in said)])
        options.file.write_text(text + "\n", encoding="utf-8")
    return 1 if any(findings.values()) or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
