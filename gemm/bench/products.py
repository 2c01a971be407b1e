"""The products that are timed, and the families of a comparison: squares, layers, skinny products, vectors, stacks.

A *series* is a family, or part of one, whose products grow with a single size, so a series has an offload threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm.core import operands
from gemm.core.errors import unknown
from gemm.core.problem import Ints, Precision
from gemm.select.verify.single import poisoned, random_matrix


@dataclass(frozen=True)
class Shape:
    """m × n is the shape of C, k the length of the sums, `batch` the number of products per call. `trans` has a letter
    for a and a letter for b: "T" if the operand is stored transposed, else "N"."""

    m: int
    n: int
    k: int
    batch: int = 1
    trans: str = "NN"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        batch = f"{self.batch} × " if self.batch > 1 else ""
        return f"{batch}{self.m} × {self.n} × {self.k}{'' if self.trans == 'NN' else ' ' + self.trans}"

    @property
    def lead(self) -> Ints:
        """The shape of the stack: the axes of the operands and of the result before the two axes of a matrix."""
        return (self.batch,) if self.batch > 1 else ()

    def operands(self, *types: str) -> tuple[np.ndarray, np.ndarray]:
        """Return random a and b, stored as `trans` says. Each call returns the same numbers.

        `types` names the types of a and b; one name is for both. Integers take any value of their type. Other numbers,
        and the parts of complex numbers, are in [-1, 1).
        """
        random = np.random.default_rng([self.m, self.n, self.k, self.batch])
        sizes = ((self.m, self.k), (self.k, self.n))
        a, b = (
            random_matrix(random, operands.named(name, "dtype"), (*self.lead, *(size[::-1] if flip == "T" else size)))
            for name, size, flip in zip((*types, types[0])[:2], sizes, self.trans, strict=True)
        )
        return a, b

    def untransposed(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Views of the operands with the shapes m × k and k × n, for np.matmul."""
        x, y = (np.swapaxes(x, -1, -2) if flip == "T" else x for x, flip in zip((a, b), self.trans, strict=True))
        return x, y

    def result(self, dtype: Any) -> np.ndarray:
        """An array for the result, filled with NaN or bytes 0xA5. They mark elements that a product did not write."""
        return poisoned(np.dtype(dtype), (*self.lead, self.m, self.n))


@dataclass(frozen=True)
class Arithmetic:
    """How products are computed: the type of the results, and the arguments of `gemm.gemm` that choose the arithmetic.

    Attributes:
        inputs: the types of a and b if they differ from `dtype`, else ().
    """

    dtype: str = "float32"
    inputs: tuple[str, ...] = ()
    precision: Precision = "highest"
    reproducible: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        """The types of a and b."""
        return self.inputs or (self.dtype, self.dtype)

    def __str__(self) -> str:
        narrow = f"{' × '.join(dict.fromkeys(self.inputs))} → " if self.inputs else ""
        precise = f", precision {self.precision}" if self.precision != "highest" else ""
        return f"{narrow}{self.dtype}{precise}{', reproducible' if self.reproducible else ''}"


FLOAT32 = Arithmetic()


@dataclass(frozen=True)
class Case:
    """A product of a family.

    Attributes:
        series, size: the name of the series and the product's size in it; "" and 0 without a series.
    """

    family: str
    name: str
    shape: Shape
    series: str = ""
    size: int = 0


_STACK = 16
"""Products per call in the family "batched"."""
_SERIES: tuple[tuple[str, str, str, Callable[[int], Shape], Ints, Ints], ...] = (
    ("squares", "squares, s × s × s", "{}", lambda s: Shape(s, s, s),
     (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048), (32, 128, 256, 512, 1024)),
    ("skinny", "skinny, s × s × 16·s", "s × s × 16·s, s = {}", lambda s: Shape(s, s, 16 * s),
     (64, 128, 256, 512), (64, 256)),
    ("skinny", "skinny, 16·s × s × s", "16·s × s × s, s = {}", lambda s: Shape(16 * s, s, s),
     (64, 128, 256, 512), (64, 256)),
    ("skinny", "skinny, 32 × s × s", "32 × s × s, s = {}", lambda s: Shape(32, s, s),
     (256, 512, 1024, 2048), (256, 1024)),
    ("gemv", "gemv, s × 1 × s", "s × 1 × s, s = {}", lambda s: Shape(s, 1, s),
     (64, 128, 256, 512, 1024, 2048, 4096), (256, 2048)),
    ("gemv", "gemv, 1 × s × s", "1 × s × s, s = {}", lambda s: Shape(1, s, s),
     (64, 128, 256, 512, 1024, 2048, 4096), (256, 2048)),
    ("batched", f"batched, {_STACK} of s × s × s", f"{_STACK} of {{}}", lambda s: Shape(s, s, s, _STACK),
     (16, 32, 64, 128, 256), (32, 128)),
)  # fmt: skip
"""(family, series, format of a product's name, function from a size to a product, sizes, sizes of a quick sweep)."""


def _resnet50_layers() -> Iterator[tuple[str, int, int, int, int]]:
    """Yield (layer, side of its output in pixels, output channels, input channels, side of its filter) for an image of
    224 × 224 pixels.
    """
    yield "conv1 7×7", 112, 64, 3, 7
    before = 64
    for stage, side, width in zip((2, 3, 4, 5), (56, 28, 14, 7), (64, 128, 256, 512), strict=True):
        name, out = f"conv{stage}", 4 * width
        yield f"{name} 1×1, first", min(2 * side, 56), width, before, 1
        yield f"{name} 3×3", side, width, width, 3
        yield f"{name} 1×1, out", side, out, width, 1
        if stage > 2:  # in stage 2, the shortcut has the shape of "1×1, out"
            yield f"{name} shortcut", side, out, before, 1
        yield f"{name} 1×1, in", side, width, out, 1
        before = out
    yield "classifier", 1, 1000, before, 1


_QUICK_RESNET50 = ("conv1 7×7", "conv2 3×3", "conv4 1×1, out", "classifier")

_WIDTH = 1024
_TRANSFORMER = (("q, k and v", 3, 1), ("output", 1, 1), ("feed-forward up", 4, 1), ("feed-forward down", 1, 4))
"""(product, its columns and the length of its sums, in multiples of _WIDTH), as in BERT-large and GPT-2 medium."""
_BATCHES = (1, 8, 64)


def _resnet50(quick: bool) -> Iterable[Case]:
    """Convolutions as products of image patches (im2col) and filters."""
    for name, side, out, into, window in _resnet50_layers():
        if not quick or name in _QUICK_RESNET50:
            yield Case("resnet50", name, Shape(side * side, out, into * window * window))


def _transformer(quick: bool) -> Iterable[Case]:
    for name, columns, sums in _TRANSFORMER[2:3] if quick else _TRANSFORMER:
        for batch in _BATCHES:
            yield Case("transformer", f"{name}, batch {batch}", Shape(batch, columns * _WIDTH, sums * _WIDTH))


FAMILIES = {
    "squares": "square matrices",
    "resnet50": "ResNet-50's convolutions of one 224 × 224 image as im2col: pixels × channels × patch",
    "transformer": f"a transformer's layer of width {_WIDTH}, 1, 8 and 64 tokens at once",
    "skinny": "long sums, many rows, few rows",
    "gemv": "a matrix times a vector, and a vector times a matrix",
    "batched": f"stacks of {_STACK} small products in one call",
}
"""{name: description}."""
_NETWORKS: dict[str, Callable[[bool], Iterable[Case]]] = {"resnet50": _resnet50, "transformer": _transformer}


def cases(names: Iterable[str], *, quick: bool, sizes: Sequence[int] | None = None) -> list[Case]:
    """The products of the families `names`. `sizes`, if given, replaces the sizes of the squares.

    Raises ValueError if a family is unknown.
    """
    found: list[Case] = []
    for name in names:
        if name not in FAMILIES:
            raise ValueError(unknown("family", name, FAMILIES))
        if name in _NETWORKS:
            found += _NETWORKS[name](quick)
        for family, series, title, shape, every, few in _SERIES:
            if family == name:
                asked = sizes if name == "squares" else None
                found += (Case(name, title.format(s), shape(s), series, s) for s in asked or (few if quick else every))
    return found
