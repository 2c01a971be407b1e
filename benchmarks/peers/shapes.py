"""The products, element types and operands of the families."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """The sizes of a product of an m × k matrix by a k × n matrix, or of a stack of such products.

    Attributes:
        batch: the number of products of a stack; 0 for a single product.
        layout: "" (contiguous), "one b" (one b for the whole stack), "strided" (a and b are parts of larger matrices),
            or the operands that are transposed views: "aᵀ", "bᵀ" or "aᵀ bᵀ".
    """

    m: int
    n: int
    k: int
    batch: int = 0
    layout: str = ""


def _cube(*sizes: int) -> list[Shape]:
    return [Shape(n, n, n) for n in sizes]


def _transposed(shapes: Iterable[tuple[int, int, int]]) -> list[Shape]:
    """Each shape in each layout of a and b."""
    return [Shape(*shape, 0, layout) for shape in shapes for layout in TRANSPOSED]


def random_shapes(seed: int, count: int) -> list[Shape]:
    """Products with log-uniform sides from 1 to LONGEST and random layouts, without those above MOST_WORK."""
    random = np.random.default_rng(seed)
    found: list[Shape] = []
    while len(found) < count:
        m, n, k = np.exp(random.uniform(0, np.log(LONGEST + 1), 3)).astype(int).tolist()
        layout = str(random.choice(TRANSPOSED))
        if m * n * k <= MOST_WORK:
            found.append(Shape(m, n, k, 0, layout))
    return found


TRANSPOSED = ("", "aᵀ", "bᵀ", "aᵀ bᵀ")
LONGEST, MOST_WORK = 5000, 1 << 31
_SKINNY = ((16, 2000, 2000), (4, 1024, 1024), (1, 1024, 1024), (1, 4096, 4096), (4096, 1, 4096), (1024, 1024, 16),
           (64, 3136, 576), (10000, 16, 16), (128, 128, 8192), (3, 5000, 70), (196, 512, 1152), (2048, 1, 2048),
           (5000, 3, 64), (8, 3200, 3200), (128, 576, 7168))  # fmt: skip
_LONG_AND_K = ((16, 16), (64, 64), (100, 1000), (1000, 100), (3000, 2), (2, 3000), (1000, 1000), (5000, 64),
               (61, 1245), (3000, 4000))  # fmt: skip
_THIN = dict.fromkeys(
    shape for short in (1, 2, 3, 5) for long, k in _LONG_AND_K for shape in ((short, long, k), (long, short, k))
)
_BATCHED = ((1000, 8), (1000, 16), (1000, 32), (10000, 4))

SHAPES: dict[str, list[Shape]] = {
    "square": _cube(
        8,
        16,
        24,
        32,
        33,
        48,
        64,
        65,
        96,
        100,
        127,
        128,
        192,
        255,
        256,
        320,
        384,
        512,
        640,
        768,
        777,
        1000,
        1024,
        1536,
        2048,
    ),
    "skinny": _transposed(_SKINNY),
    "thin": _transposed(_THIN),
    "random": [],  # random_shapes
    "batched": [Shape(n, n, n, count, layout) for layout in ("", "one b", "strided") for count, n in _BATCHED],
    "call": _cube(4, 8, 16, 32, 64),
    "prepare": [Shape(m, n, n) for n in (1024, 2048) for m in (1, 4, 16, 64)],
    "rotation": _cube(1, 2, 3, 4, 10),
    "dtypes": [*_cube(64, 100, 256, 512, 1024), Shape(1, 1024, 1024), Shape(1024, 16, 1024), Shape(64, 3136, 576)],
    "scaling": _cube(256, 512, 1024, 2048, 4096),
    "beside": _cube(96, 256, 512, 1024),
    "contention": _cube(256, 512, 1024),
}
QUICK: dict[str, list[Shape]] = {
    "square": _cube(8, 33, 64),
    "skinny": [Shape(1, 128, 128), Shape(128, 1, 128)],
    "thin": _transposed([(2, 30, 20)]),
    "random": [],
    "batched": [Shape(4, 4, 4, 100), Shape(4, 4, 4, 100, "one b"), Shape(4, 4, 4, 100, "strided")],
    "call": _cube(8),
    "prepare": [Shape(4, 64, 64)],
    "rotation": _cube(2),
    "dtypes": _cube(16),
    "scaling": _cube(96),
    "beside": _cube(96),
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
    a, b = _kept(a, "aᵀ" in layout), _kept(b, "bᵀ" in layout)
    return a, b, np.full(sizes[2], -1 if types[2].kind in "iu" else np.nan, types[2])


def _kept(x: np.ndarray, transposed: bool) -> np.ndarray:
    """The same matrix, but stored column by column if `transposed`."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if transposed else x


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
