"""A pair of tensors as one batched product of matrices: what tensordot and einsum are made of.

The axes that a pair sums, and those that only one of them has, are each merged to one axis of a matrix, in an order for
which that is a view wherever their strides allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gemm.frontend.api import at_once as gemm
from gemm.frontend.call import common_dtype

Labels = Sequence[Any]


class Term(NamedTuple):
    """An operand: its array, and a label for each axis, no two alike."""

    array: np.ndarray
    labels: tuple[Any, ...]

    def ordered(self, labels: Labels) -> np.ndarray:
        """The array with its axes in the order of `labels`, which are all of them; a view."""
        turned: np.ndarray = self.array.transpose([self.labels.index(label) for label in labels])
        return turned

    def spread(self, labels: Labels) -> np.ndarray:
        """The array with an axis for each of `labels`, of length 1 where it has none; a view."""
        own = self.ordered([label for label in labels if label in self.labels])
        return own[tuple(slice(None) if label in self.labels else None for label in labels)]


class Axes(NamedTuple):
    """How the axes of a term lie, without its memory."""

    labels: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def positions(self, labels: Labels) -> list[int]:
        return [self.labels.index(label) for label in labels]

    def sizes(self, labels: Labels) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.positions(labels))

    def by_stride(self, labels: Labels) -> list[Any]:
        """`labels` from the longest stride to the shortest: if they merge at all, they do in this order."""
        return sorted(labels, key=lambda label: -abs(self.strides[self.labels.index(label)]))

    def merges(self, labels: Labels) -> bool:
        """Whether the axes `labels`, in this order, are one axis without a copy."""
        walk = [(self.shape[axis], self.strides[axis]) for axis in self.positions(labels) if self.shape[axis] != 1]
        return all(outer == length * inner for (_, outer), (length, inner) in pairwise(walk))

    def merged(self, *groups: Labels) -> tuple[list[int], list[int]]:
        """What to transpose and reshape to, so that there is one axis for each of the groups, which are all labels."""
        order = self.positions([label for group in groups for label in group])
        return order, [math.prod(self.sizes(group)) for group in groups]


class Matrices(NamedTuple):
    """Two terms as stacks of matrices.

    Attributes:
        swapped: the second term is the left operand. left, right: (order of axes, shape) of each.
        shape, labels: of the result, with its axes apart again.
    """

    swapped: bool
    left: tuple[list[int], list[int]]
    right: tuple[list[int], list[int]]
    shape: tuple[int, ...]
    labels: tuple[Any, ...]


@lru_cache(512)
def _matrices(x: Axes, y: Axes, kept: tuple[Any, ...], ordered: bool) -> Matrices | None:
    """How `product` multiplies terms like these; None if there is no label to sum over.

    ordered: sums have one order wherever the operands lie, that of their labels; else that which copies least.
    """
    shared = [label for label in x.labels if label in y.labels]
    gone = [label for label in shared if label not in kept]
    if not gone:
        return None
    swapped = bool(kept) and kept[-1] in x.labels and kept[-1] not in shared  # the last axis should be columns
    if swapped:
        x, y = y, x
    batch = x.by_stride([label for label in shared if label in kept])
    rows = x.by_stride([label for label in x.labels if label not in shared])
    columns = y.by_stride([label for label in y.labels if label not in shared])
    orders = [sorted(gone)] if ordered else [x.by_stride(gone), y.by_stride(gone)]
    inner = min(orders, key=lambda order: sum(math.prod(term.shape) for term in (x, y) if not term.merges(order)))
    stacks = [batch] if batch and x.merges(batch) and y.merges(batch) else [[label] for label in batch]
    shape = x.sizes([*batch, *rows]) + y.sizes(columns)
    left, right = x.merged(*stacks, rows, inner), y.merged(*stacks, inner, columns)
    return Matrices(swapped, left, right, shape, (*batch, *rows, *columns))


def product(x: Term, y: Term, kept: Labels, dtype: np.dtype[Any], options: dict[str, Any]) -> Term:
    """The product of x and y, summed over every label that is not in `kept`.

    Args:
        kept: labels, which may be others' than x's and y's, and repeat. Its order is what the result should have: the
            choice of the left operand heeds it, but the axes are left as they come.
        dtype: of the arithmetic and the result. options: `gemm`'s.
    """
    x, y = (summed(own, [*other.labels, *kept], dtype, options) for own, other in ((x, y), (y, x)))
    lie = [Axes(term.labels, term.array.shape, term.array.strides) for term in (x, y)]
    plan = _matrices(*lie, tuple(kept), bool(options.get("reproducible")))
    if plan is None:  # element by element: there is nothing that a product of matrices would read twice
        labels = tuple(label for label in dict.fromkeys(kept) if label in x.labels or label in y.labels)
        return Term(np.multiply(x.spread(labels), y.spread(labels), dtype=dtype, casting="same_kind"), labels)
    if plan.swapped:
        x, y = y, x
    a, b = (term.array.transpose(to[0]).reshape(to[1]) for term, to in ((x, plan.left), (y, plan.right)))
    return Term(gemm(a, b, dtype=dtype, **options).reshape(plan.shape), plan.labels)


def summed(x: Term, kept: Labels, dtype: np.dtype[Any], options: dict[str, Any]) -> Term:
    """`x` summed in `dtype` over the labels that are not in `kept`; itself if there are none.

    NumPy sums. Reproducible sums of real and complex numbers are products with ones, since NumPy's bits depend on the
    machine's vectors.
    """
    gone = [label for label in x.labels if label not in kept]
    if not gone:
        return x
    if options.get("reproducible") and dtype.kind not in "biu":
        ones = np.broadcast_to(np.ones((), dtype), [x.array.shape[x.labels.index(label)] for label in gone])
        return product(x, Term(ones, tuple(gone)), [label for label in x.labels if label in kept], dtype, options)
    array = x.array.sum(axis=tuple(map(x.labels.index, gone)), dtype=dtype)
    return Term(np.asarray(array), tuple(label for label in x.labels if label in kept))


OPTIONS = ("precision", "reproducible", "backend", "kernel")
"""The options of `gemm` that any product may have, besides dtype."""


def check(options: dict[str, Any]) -> None:
    """Raises TypeError if one of `options` is not of OPTIONS."""
    if unknown := options.keys() - OPTIONS:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}; options are dtype, {', '.join(OPTIONS)}")


def kind_of(arrays: Mapping[str, np.ndarray], asked: DTypeLike | None) -> np.dtype[Any]:
    """The dtype of products of `arrays`, by name, as for `gemm`. Raises TypeError."""
    kind, *others = [array.dtype for array in arrays.values()]
    if asked is None and kind.isbuiltin == 1 and kind.kind in "biufc" and all(kind is other for other in others):
        return kind
    return common_dtype(arrays, asked, None)
