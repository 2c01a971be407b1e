"""The products of the comparison, and the speed ratios that are aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Family:
    """Products of one type.

    Attributes:
        name: the name in tables.
        dtype, out: NumPy's names of the types of the operands and of the result.
        precision: as for `gemm`.
        peer: the arithmetic of cuBLAS: "" for that of the type, or "tf32".
        turned: b is stored transposed. Both operands are then contiguous along k, which cuBLAS demands for 8-bit types.
    """

    name: str
    dtype: str
    out: str
    precision: str = "highest"
    peer: str = ""
    turned: bool = False


FAMILIES = (
    Family("float32", "float32", "float32"),
    Family("float32, high", "float32", "float32", "high"),
    Family("float32, medium", "float32", "float32", "medium", "tf32"),
    Family("bfloat16", "bfloat16", "bfloat16"),
    Family("float16", "float16", "float16"),
    Family("float64", "float64", "float64"),
    Family("float64, high", "float64", "float64", "high"),
    Family("int8", "int8", "int32", turned=True),
    Family("fp8", "float8_e4m3fn", "bfloat16", "medium", turned=True),
)

SQUARES = (512, 640, 1024, 1536, 2048, 3072, 4096, 8192)
SKINNY = (
    (64, 4096, 4096), (4096, 64, 4096), (16, 8192, 8192), (8192, 8192, 64), (256, 256, 16384), (128, 576, 7168),
    (576, 4096, 7168), (4096, 512, 32768), (1, 4096, 4096), (1, 8192, 8192), (8, 8192, 8192), (32, 8192, 8192),
)  # fmt: skip
STACKS = ((10000, 16), (4096, 32), (1024, 64), (64, 128), (256, 128), (64, 512))
QUICK = ((0, 64, 64, 64), (0, 5, 40, 70), (3, 16, 16, 16))

Product = tuple[int, int, int, int]
"""batch (0: a single product), m, n, k."""


def products(family: Family, *, quick: bool) -> list[Product]:
    """The products of a family."""
    if quick:
        return list(QUICK[: 1 if family.turned else 3])
    singles = [(0, n, n, n) for n in SQUARES] + [(0, *shape) for shape in SKINNY]
    stacks = [(count, n, n, n) for count, n in STACKS]
    if family.turned:  # cuBLAS demands multiples of 16 and more than 16 rows for 8-bit types
        return [p for p in singles if min(p[1:]) > 16]
    return singles if family.dtype == "float64" else singles + stacks


def label(product: Product) -> str:
    """A short name of a product."""
    batch, m, n, k = product
    shape = f"{m}³" if m == n == k else f"{m}×{n}×{k}"
    return f"{batch}× {shape}" if batch else shape


def goal(family: Family, product: Product, kernel: str = "") -> float | None:
    """The ratio, cuBLAS's time ÷ our time, that is aimed at, or None. kernel: the kernel that gemm chose."""
    batch, m, n, k = product
    square = not batch and m == n == k
    if batch:
        return 1.0
    if family.name == "float32, high":
        return (3.5 if "fp16x3" in kernel else 2.0) if square and m in (4096, 8192) else None
    if family.name == "float64, high":
        return 1.5 if square and m == 8192 else 1.0 if square and m >= 2048 else None
    if family.name in ("float32, medium", "float64"):
        return 0.95 if square and m >= 2048 else None
    if family.name in ("bfloat16", "float16"):
        return 1.0 if (square and m >= 2048) or (not square and m >= 16) else None
    if family.name == "float32" and square:
        return 1.2 if m in (512, 1024) else 1.03 if m >= 2048 else None
    return 1.2 if family.name == "float32" and (m, n, k) in (SKINNY[0], SKINNY[2], SKINNY[4]) else None


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name. Raises ImportError if the name needs ml_dtypes, which is missing."""
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def operands(family: Family, product: Product) -> tuple[np.ndarray, np.ndarray]:
    """Random a (batch, m, k) and b (batch, k, n), or b (batch, n, k) if turned.

    The values are random, because zeros would save power and give better times.
    """
    batch, m, n, k = product
    rng = np.random.default_rng([batch, m, n, k])
    stack = (batch,) if batch else ()
    shapes = (*stack, m, k), (*stack, *((n, k) if family.turned else (k, n)))
    kind = dtype_of(family.dtype)
    if kind.kind == "i":
        a, b = (rng.integers(-127, 128, shape, dtype=kind) for shape in shapes)
    else:
        wide = np.float64 if kind.itemsize == 8 else np.float32
        a, b = (rng.standard_normal(shape, dtype=wide).astype(kind, copy=False) for shape in shapes)
    return a, b


def worst_error(family: Family, product: Product, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> float:
    """The largest error |out - exact| ÷ (|a|·|b|) of an element, in some rows of the first product of a stack.

    `exact` is computed in float64. The error of a NaN is inf.
    """
    batch, m, _, _ = product
    first = (0,) if batch else ()
    rows = np.unique(np.linspace(0, m - 1, min(m, 16)).astype(int))
    x = a[first][rows].astype(np.float64)
    y = b[first].astype(np.float64)
    y = y.T if family.turned else y
    exact, bound = x @ y, np.abs(x) @ np.abs(y)
    error = np.abs(out[first][rows].astype(np.float64) - exact) / bound
    return float(np.nan_to_num(error, nan=np.inf).max())


def allowed(family: Family, k: int) -> float:
    """The largest `worst_error` of a correct result, for sums of k products."""
    unit = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int32": 2.0**-53}
    rounded = unit[family.out]
    summed = 2.0**-10 if family.peer == "tf32" else 2.0**-13 if family.turned else min(rounded, 2.0**-24)
    return rounded + (k + 2) * summed if not family.peer else rounded + 2 * summed + (k + 2) * 2.0**-24
