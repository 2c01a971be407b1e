"""Every CUDA kernel under each tool of NVIDIA's compute-sanitizer, on shapes that leave ragged tiles.

    python benchmarks/cuda_sanitize.py [FILE]

Prints each tool's summary (and writes it to FILE); exits 1 if a tool found anything. Needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import gemm

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SHAPES = ((33, 65, 47), (1, 1, 1), (70, 31, 0), (32, 32, 32))


def products() -> None:
    """What the tools watch: every kernel on every shape, with and without C."""
    random = np.random.default_rng(0)
    for kernel in gemm.kernels():
        if kernel.backend != "cuda":
            continue
        for m, n, k in SHAPES:
            a, b, c = (random.uniform(-1, 1, shape).astype(kernel.dtype) for shape in ((m, k), (k, n), (m, n)))
            for alpha, beta in ((1.0, 0.0), (0.5, 2.0)):
                result = gemm.gemm(a, b, c, alpha=alpha, beta=beta, kernel=kernel.name)
                np.testing.assert_allclose(result, alpha * (a @ b) + beta * c, rtol=1e-4, atol=1e-4)


def main(file: str | None) -> int:
    found, lines = 0, []
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__, "--inner"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found += done.returncode != 0
        summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line] or [done.stdout + done.stderr]
        lines.append(f"{tool}: {summary[-1].removeprefix('========= ')} (exit {done.returncode})")
        print(lines[-1], flush=True)
    if file:
        Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--inner"]:
        products()
    else:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
