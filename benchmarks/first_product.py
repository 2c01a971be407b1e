"""Measure a process's first product, with an empty and with a filled cache of kernels, and later products like it.

    python benchmarks/first_product.py [--only REGEX] [--size 2048] [--json FILE]

For each kind of operands, two processes run, one after the other. Before a process imports gemm, the library of the
operands is made ready: NumPy, PyTorch or CuPy computes a product, and pyopencl copies the operands to its device. The
first process starts with empty cache folders of gemm and of the drivers (CACHES), and waits for the background
verification of kernels. The second process uses the caches that the first one left. Operands are skipped if their
library or device is missing.

The JSON document ("gemm-first-product/1", seconds):

    date, command, commit, versions, machine, environment, size
    results     [{operands, cache ("empty" or "filled"), first, others (three more shapes, right after the first), warm
                (the median of nine), kernel (of the warm products)}]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

OPERANDS = (
    "numpy float32", "numpy float64", "torch float16", "torch bfloat16", "torch float32", "torch float64",
    "torch int8", "cupy float32", "pyopencl float32",
)  # fmt: skip

CACHES = "GEMM_CACHE_DIR", "POCL_CACHE_DIR", "CUDA_CACHE_PATH", "NEO_CACHE_DIR", "MESA_SHADER_CACHE_DIR"
"""The environment variables that name the cache folders of gemm, PoCL, NVIDIA's, Intel's and Mesa's drivers."""


def made(what: str, size: int) -> tuple[Any, Any, Callable[[], object]]:
    """Return a and b with `size` rows and columns, and a function that waits for the device.

    NumPy, PyTorch and CuPy multiply a by b once. Raises the library's errors.
    """
    library, dtype = what.split()
    dice = np.random.default_rng(1)
    a, b = (dice.integers(-9, 10, (size, size)).astype("float32" if dtype == "bfloat16" else dtype) for _ in range(2))
    if library == "torch":
        import torch

        kind = getattr(torch, dtype)
        a, b = (torch.from_numpy(x).cuda().to(kind) for x in (a, b))
        a.double() @ b.double()
        return a, b, torch.cuda.synchronize
    if library == "cupy":
        import cupy

        a, b = cupy.asarray(a), cupy.asarray(b)
        a @ b
        return a, b, cupy.cuda.Device().synchronize
    if library == "pyopencl":
        import pyopencl as cl
        import pyopencl.array as cl_array

        queue = cl.CommandQueue(cl.create_some_context(interactive=False))
        return cl_array.to_device(queue, a), cl_array.to_device(queue, b), queue.finish
    a @ b
    return a, b, lambda: None


def measure(what: str, size: int, pause: float) -> dict[str, Any]:
    """Time the products of this kind of operands in this process. Return a row of `results`.

    Args:
        pause: seconds between the first products and the warm ones. Kernels are verified in this time.
    """
    a, b, wait = made(what, size)
    wait()
    import gemm

    def timed(left: Any) -> float:
        start = time.perf_counter()
        gemm.gemm(left, b)
        wait()
        return time.perf_counter() - start

    first = timed(a)
    others = [timed(a[:rows]) for rows in (size // 20, size // 2, 3 * size // 4)]
    time.sleep(pause)
    warm = statistics.median(timed(a) for _ in range(9))
    return {"first": first, "others": others, "warm": warm, "kernel": gemm.plan(a, b).kernel}


def apart(what: str, size: int, cache: str, pause: float) -> dict[str, Any] | None:
    """Call `measure` in a new process with cache folders in `cache`. Return its row, or None if the process fails."""
    command = [sys.executable, __file__, "--one", what, "--size", str(size), "--pause", str(pause)]
    folders = {name: os.path.join(cache, name) for name in CACHES}
    for folder in folders.values():
        os.makedirs(folder, mode=0o700, exist_ok=True)
    done = subprocess.run(command, env={**os.environ, **folders}, capture_output=True, text=True)
    if done.returncode:
        print(f"{what}: left out: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure and print. Returns 1 if nothing was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="select operands, such as torch")
    parser.add_argument("--size", type=int, default=2048, help="rows and columns")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before the warm products")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", choices=OPERANDS, help=argparse.SUPPRESS)  # used internally, by `apart`
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.size, options.pause)))
        return 0
    from gemm.cli.arguments import save_json
    from gemm.frontend import inventory

    document = {"schema": "gemm-first-product/1", **inventory.head(), "size": options.size, "results": []}
    for what in OPERANDS:
        if not re.search(options.only, what):
            continue
        with tempfile.TemporaryDirectory() as cache:
            for state, pause in (("empty", options.pause), ("filled", 1.0)):
                row = apart(what, options.size, cache, pause)
                if row is None:
                    break
                document["results"].append({"operands": what, "cache": state, **row})
                print(f"{what}, cache {state}: first {row['first']:.3f} s, others "
                      f"{', '.join(f'{x:.3f}' for x in row['others'])} s, warm {row['warm']:.4f} s, {row['kernel']}",
                      flush=True)  # fmt: skip
                if options.json:
                    save_json(options.json, document)
    return 0 if document["results"] else 1


if __name__ == "__main__":
    sys.exit(main())
