"""Measure the accuracy of products on CUDA: each kind of arithmetic, and cuBLAS, on four families of operands.

    python benchmarks/cuda_accuracy.py [--shapes 1024x1024x512,1024x1024x8192] [--kernels NAME,...] [--json FILE]
    python benchmarks/cuda_accuracy.py --dtype float64 ...

The error of an element is |C - exact| in units of u · |A|·|B|, with u = 2^-24 and `exact` computed in float64; for
float64, with u = 2^-53 and `exact` computed in long double, for 32 of the rows. A chain of k fused multiply-adds may
have an error of k + 2 units. The first available kernel of each kind of arithmetic takes part, or the --kernels. If
PyTorch is installed, cuBLAS takes part through it, for float32 also with TF32. The families of operands:

    normal         standard normal
    uniform        uniform in 0 to 1, so that there is no cancellation
    wide           standard normal, times random powers of two from 2^-20 to 2^20
    conditioned    matrices with condition number 10^8: singular values from 1 to 10^-8

The JSON document ("gemm-cuda-accuracy/1") has date, command, commit, versions, device, and results, a list of
{family, dtype, m, n, k, errors {arithmetic: {max, median}}}.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

import gemm
from gemm.backends import registry
from gemm.catalog import BY_NAME
from gemm.cli.arguments import shapes
from gemm.core import text
from gemm.core.errors import BackendUnavailable

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]

KINDS = {
    "float32": (
        "sgemm_cuda_ffma", "sgemm_cuda_emulated_bf16x6", "sgemm_cuda_emulated_fp16x3", "sgemm_cuda_kmajor_tf32",
    ),
    "float64": ("dgemm_cuda_dmma", "dgemm_cuda_kmajor_residues"),
}  # fmt: skip
"""{type: prefixes of the kernels' names, one for each arithmetic}."""
SOME = 32
"""Number of rows of float64 results that are compared: sums in long double take long."""


def normal(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return random.standard_normal((rows, columns))


def uniform(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return random.uniform(0, 1, (rows, columns))


def wide(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return random.standard_normal((rows, columns)) * 2.0 ** random.integers(-20, 21, (rows, columns))


def conditioned(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    least = min(rows, columns, 256)
    left, right = (np.linalg.qr(random.standard_normal((size, least)))[0] for size in (rows, columns))
    return np.asarray((left * np.logspace(0, -8, least)) @ right.T)


FAMILIES = (normal, uniform, wide, conditioned)


def contestants(named: str | None, dtype: str) -> dict[str, Multiply]:
    """{name: function that multiplies two host matrices of this type}."""
    if named:
        names = named.split(",")
    else:
        kinds = KINDS[dtype]
        able = [x.name for x in gemm.kernels() if x.name.startswith(kinds) and x.available]
        names = [next((x for x in able if x.startswith(kind)), "") for kind in kinds]
    ours: dict[str, Multiply] = {
        name: partial(gemm.gemm, kernel=name, precision=BY_NAME[name].precision) for name in names if name
    }
    return ours | _cublas(dtype)


def _cublas(dtype: str) -> dict[str, Multiply]:
    try:
        import torch
    except ImportError as error:
        print(f"cuBLAS is left out: {error}")
        return {}
    if not torch.cuda.is_available():
        print("cuBLAS is left out: PyTorch finds no GPU")
        return {}

    def multiply(a: np.ndarray, b: np.ndarray, *, tf32: bool) -> np.ndarray:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        result: np.ndarray = (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu().numpy()
        return result

    found = {"cuBLAS": partial(multiply, tf32=False)}
    return found | ({"cuBLAS, TF32": partial(multiply, tf32=True)} if dtype == "float32" else {})


def measure(shape: tuple[int, int, int], family: Any, all_: dict[str, Multiply], dtype: str) -> dict[str, Any]:
    """The errors of all contestants on one product: an entry of `results`."""
    m, n, k = shape
    random = np.random.default_rng([m, n, k])
    a, b = (family(random, *size).astype(dtype) for size in ((m, k), (k, n)))
    double = dtype == "float64"
    wide = np.longdouble if double else np.float64
    rows = np.unique(np.linspace(0, m - 1, min(m, SOME if double else m)).astype(int))
    left, right = a[rows].astype(wide), b.astype(wide)
    exact, size = left @ right, np.abs(left) @ np.abs(right)
    errors = {}
    for name, multiply in all_.items():
        error = np.abs(multiply(a, b)[rows] - exact) / (float(np.finfo(dtype).eps) / 2 * size)
        errors[name] = {"max": float(np.nan_to_num(error, nan=np.inf).max()), "median": float(np.median(error))}
    return {"family": family.__name__, "dtype": dtype, "m": m, "n": n, "k": k, "errors": errors}


def main(argv: list[str] | None = None) -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("--shapes", type=shapes, default="1024x1024x512,1024x1024x8192", help="MxNxK, comma-separated")
    parser.add_argument("--kernels", help="names of kernels, comma-separated")
    parser.add_argument("--dtype", choices=sorted(KINDS), default="float32", help="of the operands and the result")
    options = parser.parse_args(argv)
    try:
        device = registry.backend("cuda").devices()[0]
    except BackendUnavailable as error:
        print(error)
        return 2
    all_ = contestants(options.kernels, options.dtype)
    results = [measure(shape, family, all_, options.dtype) for shape in options.shapes for family in FAMILIES]
    rows = [
        [f"{x['m']}x{x['n']}x{x['k']} {x['family']}", name, f"{error['max']:.3g}", f"{error['median']:.3g}"]
        for x in results
        for name, error in x["errors"].items()
    ]
    text.table(["product", "arithmetic", "max", "median"], rows, numbers=(2, 3))
    recorded.save(options.json, recorded.document("gemm-cuda-accuracy/1", device=device, results=results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
