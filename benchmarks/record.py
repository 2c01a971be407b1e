"""Record results of the package on this machine: verification, hashes of reproducible results, tests, a benchmark.

    python benchmarks/record.py OUT_FOLDER [--require cuda,opencl] [--sizes 256,1024,4096]

Run this in a checkout with a built extension (`python build.py`), on a quiet machine. The script writes verify.json,
hashes.json, bench.json and tests.txt to OUT_FOLDER, and exits with 1 if a step failed. The results belong in
benchmarks/results/<date>-<device>/.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--require", default="cpu", help="backends whose tests must not be skipped")
    parser.add_argument("--sizes", default="256,512,1024,2048,4096")
    parser.add_argument("--tests", default="tests/conformance tests/backends/cuda tests/backends/opencl")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    gemm = [sys.executable, "-m", "gemm"]
    steps = {
        "info": [*gemm, "info"],
        "verify": [*gemm, "verify", "--json", str(folder / "verify.json")],
        "hashes": [*gemm, "verify", "--hashes", "--json", str(folder / "hashes.json")],
        "bench": [*gemm, "bench", "--sizes", options.sizes, "--validate", "--json", str(folder / "bench.json")],
        "tests": [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-n", "4",
                  f"--require={options.require}", *options.tests.split()],
    }  # fmt: skip
    failed = []
    for name, command in steps.items():
        print(f"== {name}: {' '.join(command[1:])}", flush=True)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        print((done.stdout + done.stderr)[-6000:], flush=True)
        if name == "tests":
            (folder / "tests.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            failed.append(name)
    print("failed: " + ", ".join(failed) if failed else "all steps passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
