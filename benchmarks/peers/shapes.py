"""The products, element types and operands of the families."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """m × n × k. batch: 0 for a single product. layout: "" (contiguous), "one b" (one b for the whole stack) or
    "strided" (a and b are parts of larger matrices)."""

    m: int
    n: int
    k: int
    batch: int = 0
    layout: str = ""


def _cube(*sizes: int) -> list[Shape]:
    return [Shape(n, n, n) for n in sizes]


_SKINNY = ((16, 2000, 2000), (4, 1024, 1024), (1, 1024, 1024), (1, 4096, 4096), (4096, 1, 4096), (10000, 16, 16),
           (1024, 1024, 16), (64, 3136, 576), (128, 128, 8192))  # fmt: skip
_BATCHED = ((1000, 8), (1000, 16), (1000, 32), (10000, 4))

SHAPES: dict[str, list[Shape]] = {
    "square": _cube(8, 16, 24, 32, 33, 48, 64, 65, 96, 100, 127, 128, 192, 256, 384, 512, 768, 1000, 1024, 1536, 2048),
    "skinny": [Shape(*shape) for shape in _SKINNY],
    "batched": [Shape(n, n, n, count, layout) for layout in ("", "one b", "strided") for count, n in _BATCHED],
    "call": _cube(4, 8, 16, 32, 64),
    "prepare": [Shape(m, n, n) for n in (1024, 2048) for m in (1, 4, 16, 64)],
    "dtypes": _cube(64, 100, 256, 1024),
    "scaling": _cube(256, 512, 1024, 2048, 4096),
    "contention": _cube(256, 512, 1024),
}
QUICK: dict[str, list[Shape]] = {
    "square": _cube(8, 33, 64),
    "skinny": [Shape(1, 128, 128), Shape(128, 1, 128)],
    "batched": [Shape(4, 4, 4, 100), Shape(4, 4, 4, 100, "one b"), Shape(4, 4, 4, 100, "strided")],
    "call": _cube(8),
    "prepare": [Shape(4, 64, 64)],
    "dtypes": _cube(16),
    "scaling": _cube(96),
    "contention": _cube(96),
}

DTYPES: dict[str, tuple[str, str, str]] = {
    **{name: (name,) * 3 for name in ("float32", "float64", "float16", "bfloat16")},
    "int8": ("int8", "int8", "int32"), "uint8·int8": ("uint8", "int8", "int32"),
    **{name: (name,) * 3 for name in ("int16", "int32", "int64", "complex64", "complex128")},
}  # fmt: skip
"""{name: the types of a, b and the result}."""
MAIN = ("float32", "float64")


def dtype_of(name: str) -> np.dtype:
    """NumPy's type of this name. Raises ImportError for bfloat16 if ml_dtypes is not installed."""
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def operands(shape: Shape, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a and b, uniform in [-1, 1) or small integers, the same in every run; and a result filled with NaN or -1."""
    m, n, k, batch, layout = shape
    random = np.random.default_rng((m, n, k, batch))
    types = [dtype_of(name) for name in DTYPES[dtype]]
    stack = (batch,) if batch else ()
    sizes = [(*stack, m, k), (k, n) if layout == "one b" else (*stack, k, n), (*stack, m, n)]
    more = 4 if layout == "strided" else 0
    a, b = (_filled(random, size, kind, more) for size, kind in zip(sizes[:2], types[:2], strict=True))
    return a, b, np.full(sizes[2], -1 if types[2].kind in "iu" else np.nan, types[2])


def _filled(random: np.random.Generator, size: tuple[int, ...], dtype: np.dtype, more: int) -> np.ndarray:
    """Random matrices of `size`, as parts of matrices with `more` additional rows and columns."""
    *stack, rows, columns = size
    size = (*stack, rows + more, columns + more)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        whole = random.integers(max(info.min, -1000), min(info.max, 1000), size, dtype, endpoint=True)
    else:
        values = random.uniform(-1, 1, size)
        whole = (values + 1j * random.uniform(-1, 1, size) if dtype.kind == "c" else values).astype(dtype)
    return whole[..., :rows, :columns]
