"""The product of two tensors as one batched matrix product. tensordot and einsum are built from such products.

The summed axes are merged into one axis of a matrix. The axes that only one of the tensors has are also merged into one
axis. Axes are merged in an order that needs no copy, if the strides allow one.
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
    """An operand: an array with one label for each axis. All labels differ."""

    array: np.ndarray
    labels: tuple[Any, ...]

    def ordered(self, labels: Labels) -> np.ndarray:
        """A view of the array with its axes in the order of `labels`, which must contain all labels."""
        turned: np.ndarray = self.array.transpose([self.labels.index(label) for label in labels])
        return turned

    def spread(self, labels: Labels) -> np.ndarray:
        """A view of the array with one axis for each of `labels`, of length 1 if the array lacks the label."""
        own = self.ordered([label for label in labels if label in self.labels])
        return own[tuple(slice(None) if label in self.labels else None for label in labels)]


class Axes(NamedTuple):
    """The labels, lengths and strides of a term's axes, without the term's memory."""

    labels: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def positions(self, labels: Labels) -> list[int]:
        return [self.labels.index(label) for label in labels]

    def sizes(self, labels: Labels) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.positions(labels))

    def by_stride(self, labels: Labels) -> list[Any]:
        """`labels` in the order of decreasing strides. If the axes can be merged without a copy, they can be merged in
        this order.
        """
        return sorted(labels, key=lambda label: -abs(self.strides[self.labels.index(label)]))

    def merges(self, labels: Labels) -> bool:
        """Whether the axes `labels` can be merged in this order into one axis without a copy."""
        walk = [(self.shape[axis], self.strides[axis]) for axis in self.positions(labels) if self.shape[axis] != 1]
        return all(outer == length * inner for (_, outer), (length, inner) in pairwise(walk))

    def merged(self, *groups: Labels) -> tuple[list[int], list[int]]:
        """The order of axes for a transpose and the shape for a reshape that make one axis of each group of labels.

        The groups together contain all labels.
        """
        order = self.positions([label for group in groups for label in group])
        return order, [math.prod(self.sizes(group)) for group in groups]


class Matrices(NamedTuple):
    """How two terms become stacks of matrices.

    Attributes:
        swapped: True if the second term is the left operand.
        left, right: (order of axes, shape) of the left and the right operand.
        shape, labels: the shape and labels of the result before its axes are merged.
    """

    swapped: bool
    left: tuple[list[int], list[int]]
    right: tuple[list[int], list[int]]
    shape: tuple[int, ...]
    labels: tuple[Any, ...]


@lru_cache(512)
def _matrices(x: Axes, y: Axes, kept: tuple[Any, ...], ordered: bool) -> Matrices | None:
    """How `product` multiplies terms with these axes; None if the terms have no label to sum over.

    ordered: True: the order of a sum is the order of its labels, for any layout of the operands. False: the order that
    copies the fewest elements.
    """
    shared = [label for label in x.labels if label in y.labels]
    gone = [label for label in shared if label not in kept]
    if not gone:
        return None
    # the last axis of the result should be a column axis of the matrix product
    swapped = bool(kept) and kept[-1] in x.labels and kept[-1] not in shared
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
        kept: labels to keep, in the preferred order of the result. They may repeat, and may include labels of other
            terms. The order affects only which term is the left operand; the axes of the result may have another order.
        dtype: the dtype of the arithmetic and of the result.
        options: options of `gemm`.
    """
    x, y = (summed(own, [*other.labels, *kept], dtype, options) for own, other in ((x, y), (y, x)))
    lie = [Axes(term.labels, term.array.shape, term.array.strides) for term in (x, y)]
    plan = _matrices(*lie, tuple(kept), bool(options.get("reproducible")))
    if plan is None:  # multiply element by element: a matrix product would not read any element twice
        labels = tuple(label for label in dict.fromkeys(kept) if label in x.labels or label in y.labels)
        return Term(np.multiply(x.spread(labels), y.spread(labels), dtype=dtype, casting="same_kind"), labels)
    if plan.swapped:
        x, y = y, x
    a, b = (term.array.transpose(to[0]).reshape(to[1]) for term, to in ((x, plan.left), (y, plan.right)))
    return Term(gemm(a, b, dtype=dtype, **options).reshape(plan.shape), plan.labels)


def summed(x: Term, kept: Labels, dtype: np.dtype[Any], options: dict[str, Any]) -> Term:
    """`x` summed in `dtype` over the labels that are not in `kept`, or `x` itself if there are no such labels.

    NumPy computes the sum. Reproducible sums of real and complex numbers are products with ones instead, because the
    bits of NumPy's sums depend on the CPU's vector length.
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
"""The options of `gemm` that all products of this package accept, in addition to dtype."""


def check(options: dict[str, Any]) -> None:
    """Raises TypeError if an option is not in OPTIONS."""
    if unknown := options.keys() - OPTIONS:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}; options are dtype, {', '.join(OPTIONS)}")


def kind_of(arrays: Mapping[str, np.ndarray], asked: DTypeLike | None) -> np.dtype[Any]:
    """The dtype of products of `arrays` ({name: array}), as for `gemm`. Raises TypeError if there is no such dtype."""
    kind, *others = [array.dtype for array in arrays.values()]
    if asked is None and kind.isbuiltin == 1 and kind.kind in "biufc" and all(kind is other for other in others):
        return kind
    return common_dtype(arrays, asked, None)
