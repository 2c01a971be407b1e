"""np.tensordot, np.vecdot and np.transpose for arrays of any library, and the batched matrix products that compute the
sums of tensordot and einsum.

The product of two tensors is one batched matrix product. In each tensor, the summed axes are merged into one axis of a
matrix, and the axes that the other tensor lacks are merged into the other axis. If the strides allow it, the axes are
merged in an order that needs no copy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gemm.core.problem import DeviceView, DType, Ints
from gemm.frontend import interop, plan_cache
from gemm.frontend.api import at_once as gemm
from gemm.frontend.arguments import Arithmetic, Host, Unpack, check_options, common_dtype

Labels = Sequence[Any]

OPTIONS = ("precision", "reproducible", "backend", "kernel")
"""The options of `gemm` that all products of this package accept, in addition to dtype."""


def check(options: dict[str, Any]) -> None:
    """Raise TypeError if an option is not in OPTIONS, or if `reproducible` is not a bool."""
    check_options(options, ("dtype", *OPTIONS))


@overload
def tensordot(
    a: Host, b: Host, axes: Any = 2, *, dtype: DTypeLike | None = None, **options: Unpack[Arithmetic]
) -> NDArray[Any]: ...
@overload
def tensordot(
    a: Any, b: Any, axes: Any = 2, *, dtype: DTypeLike | None = None, **options: Unpack[Arithmetic]
) -> Any: ...
def tensordot(a: Any, b: Any, axes: Any = 2, *, dtype: DTypeLike | None = None, **options: Any) -> Any:
    """np.tensordot(a, b, axes), computed as one matrix product. Operands are copied only if their strides require it.

    Args:
        a, b: arrays, both in host memory or both on one device. For device arrays, gemm uses the arrays' own methods
            for transpose and reshape.
        axes: a number n: sum over the last n axes of a and the first n axes of b. A pair (axes of a, axes of b): sum
            over these axes, paired in their order.
        dtype: the dtype of the arithmetic and of the result, as for `gemm`.
        options: precision, reproducible, backend and kernel of `gemm`.

    Returns:
        An array with the axes of a that are not summed, then those of b; a scalar if all axes are summed.

    Raises:
        ValueError: the numbers or lengths of the paired axes differ, or an axis is named twice.
        IndexError: an axis does not exist.
        TypeError: an argument is wrong.
    """
    check(options)
    plan_cache.settle()
    if made_by := interop.maker("tensordot", a.__class__, b.__class__):
        return made_by(a, b, axes, dtype=dtype, **options)
    x, y = interop.wrap(a, "a"), interop.wrap(b, "b")
    left, right = paired(x.shape, y.shape, axes)
    # The label of a summed axis is the number of its pair of axes. Each other axis has a string of its own as label.
    xs = tuple(left.index(i) if i in left else f"a{i}" for i in range(x.ndim))
    ys = tuple(right.index(i) if i in right else f"b{i}" for i in range(y.ndim))
    kept = [label for label in (*xs, *ys) if isinstance(label, str)]
    if isinstance(x, DeviceView) or isinstance(y, DeviceView):
        return _on_device(a, b, Axes(xs, x.shape), Axes(ys, y.shape), {"dtype": dtype, **options})
    kind = common_dtype({"a": x, "b": y}, dtype, None)
    return interop.like(product(Term(x, xs), Term(y, ys), kept, kind, options).ordered(kept), a, b)


def _on_device(a: Any, b: Any, x: Axes, y: Axes, options: dict[str, Any]) -> Any:
    """`tensordot` of the device arrays a and b, whose axes are x and y. The labels of summed axes are numbers."""
    rows, columns = ([label for label in own.labels if isinstance(label, str)] for own in (x, y))
    pairs = range(len(x.labels) - len(rows))
    order, shape = x.merged(rows, pairs)
    left = _shaped(_transposed(a, order, "a"), shape, "a")
    order, shape = y.merged(pairs, columns)
    right = _shaped(_transposed(b, order, "b"), shape, "b")
    return _shaped(gemm(left, right, **options), x.sizes(rows) + y.sizes(columns), "the result")


@overload
def vecdot(
    x1: Host, x2: Host, /, *, axis: int = -1, dtype: DTypeLike | None = None, **options: Unpack[Arithmetic]
) -> NDArray[Any]: ...
@overload
def vecdot(
    x1: Any, x2: Any, /, *, axis: int = -1, dtype: DTypeLike | None = None, **options: Unpack[Arithmetic]
) -> Any: ...
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, dtype: DTypeLike | None = None, **options: Any) -> Any:
    """The scalar products of vectors along `axis` of x1 and x2. x1 is conjugated; the other axes broadcast.

    This is the array API's vecdot and np.vecdot. dtype and options are as for `tensordot`. The result for two vectors
    is a scalar.

    Raises:
        ValueError: `axis` does not exist, or the lengths of the vectors differ.
        TypeError: an argument is wrong.
    """
    check(options)
    plan_cache.settle()
    left, right = _last(x1, axis, "x1"), _last(x2, axis, "x2")
    if left.shape[-1] != right.shape[-1]:
        raise ValueError(f"x1 has length {left.shape[-1]} along axis {axis}, x2 {right.shape[-1]}: they must agree")
    if left.ndim == right.ndim == 1:
        return gemm(left, right, trans_a="C", dtype=dtype, **options)
    columns = [_shaped(x, (*x.shape, 1), name) for x, name in ((left, "x1"), (right, "x2"))]
    result = gemm(*columns, trans_a="C", dtype=dtype, **options)
    return _shaped(result, tuple(result.shape[:-2]), "the result")


def matrix_transpose(x: Any, /) -> Any:
    """A view of `x` with its last two axes exchanged. Raises ValueError if `x` has fewer than two axes."""
    array = _array(x, "x")
    if array.ndim < 2:
        raise ValueError(f"x has {array.ndim} axes; a matrix has two or more")
    return _transposed(array, [*range(array.ndim - 2), array.ndim - 1, array.ndim - 2], "x")


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """np.transpose: `a` with its axes in the order `axes`, by default in reverse order.

    Arrays of other libraries are transposed by a method of their library.
    """
    array = _array(a, "a")
    if isinstance(array, np.ndarray):
        return array.transpose(axes)
    return _transposed(array, range(array.ndim)[::-1] if axes is None else axes, "a")


def paired(a: Ints, b: Ints, axes: Any) -> tuple[list[int], list[int]]:
    """Return (axes of the first array to sum over, axes of the second array), as non-negative numbers.

    a, b: the shapes of the two arrays. axes: as for `tensordot`. Raises the errors that `tensordot` documents.
    """
    try:
        left, right = axes
    except TypeError:
        count = operator.index(axes)
        left, right = range(-count, 0), range(count)
    pairs = []
    for given, shape in ((left, a), (right, b)):
        chosen = [operator.index(axis) for axis in (given if np.iterable(given) else [given])]
        for axis in chosen:
            if not -len(shape) <= axis < len(shape):
                raise np.exceptions.AxisError(axis, len(shape))
        pairs.append([axis % len(shape) for axis in chosen])
        if len(set(pairs[-1])) != len(chosen):
            raise ValueError(f"duplicate axes are not allowed in tensordot: {pairs[-1]}")
    if [a[axis] for axis in pairs[0]] != [b[axis] for axis in pairs[1]]:
        raise ValueError(f"shape-mismatch for sum: axes {pairs[0]} of {a} and {pairs[1]} of {b}")
    return pairs[0], pairs[1]


def _array(x: Any, name: str) -> Any:
    """`x` if it is an array of some library, else a NumPy array made from `x`."""
    return x if hasattr(x, "ndim") else interop.wrap(x, name)


def _last(x: Any, axis: int, name: str) -> Any:
    """`x` with `axis` moved to the last position."""
    array = _array(x, name)
    if not -array.ndim <= axis < array.ndim:
        raise np.exceptions.AxisError(axis, array.ndim, name)
    last = axis % array.ndim
    return _transposed(array, [*(i for i in range(array.ndim) if i != last), last], name)


def _transposed(array: Any, axes: Sequence[int], name: str) -> Any:
    """`array` with its axes in the order `axes`, by a method of the array's library."""
    if [*axes] == [*range(array.ndim)]:
        return array
    # PyTorch's transpose only exchanges two axes; its permute takes an order of all axes.
    transpose = getattr(array, "permute", None) or getattr(array, "transpose", None)
    if transpose is None:
        raise TypeError(f"{name} of type {type(array).__name__} has no method transpose; transpose {name} first")
    return transpose(tuple(axes))


def _shaped(array: Any, shape: Sequence[int], name: str) -> Any:
    """`array` reshaped to `shape`, by a method of the array's library."""
    shape = tuple(shape)
    if tuple(array.shape) == shape:
        return array
    if not hasattr(array, "reshape"):
        raise TypeError(
            f"{name} of type {type(array).__name__} has no method reshape; reshape {name} to two axes first"
        )
    try:
        return array.reshape(shape)
    except (ValueError, RuntimeError) as error:  # pyopencl's reshape raises an error where NumPy's would copy
        raise TypeError(
            f"{name} cannot be reshaped to {shape} without a copy: {error}; copy {name} in that order first"
        ) from error


class Term(NamedTuple):
    """An operand or an intermediate result: an array with one label for each axis. All labels differ."""

    array: np.ndarray
    labels: tuple[Any, ...]

    def ordered(self, labels: Labels) -> np.ndarray:
        """A view of the array with its axes in the order of `labels`, which must contain all labels."""
        view: np.ndarray = self.array.transpose([self.labels.index(label) for label in labels])
        return view

    def spread(self, labels: Labels) -> np.ndarray:
        """A view of the array with one axis for each of `labels`, of length 1 if the array lacks the label."""
        own = self.ordered([label for label in labels if label in self.labels])
        return own[tuple(slice(None) if label in self.labels else None for label in labels)]


class Axes(NamedTuple):
    """The labels, lengths and strides (in bytes) of a term's axes, without the term's elements."""

    labels: tuple[Any, ...]
    shape: Ints
    strides: Ints = ()

    def positions(self, labels: Labels) -> list[int]:
        return [self.labels.index(label) for label in labels]

    def sizes(self, labels: Labels) -> Ints:
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
        """The order of axes for a transpose and the shape for a reshape that merge each group of labels into one axis.

        The groups together contain all labels.
        """
        order = self.positions([label for group in groups for label in group])
        return order, [math.prod(self.sizes(group)) for group in groups]


class Matrices(NamedTuple):
    """How two terms become stacks of matrices.

    Attributes:
        swapped: True if the second term is the left operand.
        left, right: (order of axes, shape) for the transpose and the reshape that make a term the left or the right
            operand; see Axes.merged.
        shape, labels: the shape and labels that the result gets when its merged axes are split again.
    """

    swapped: bool
    left: tuple[list[int], list[int]]
    right: tuple[list[int], list[int]]
    shape: Ints
    labels: tuple[Any, ...]


@lru_cache(512)
def _matrices(x: Axes, y: Axes, kept: tuple[Any, ...], ordered: bool) -> Matrices | None:
    """How `product` multiplies terms with these axes; None if the terms have no label to sum over.

    ordered: True: sum in the sorted order of the labels, whatever the layouts of the operands. False: sum in the order
    that copies the fewest elements.
    """
    shared = [label for label in x.labels if label in y.labels]
    gone = [label for label in shared if label not in kept]
    if not gone:
        return None
    # The last axis of the result should be a column axis of the matrix product: swap the terms if only x has the axis.
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


def product(x: Term, y: Term, kept: Labels, dtype: DType, options: dict[str, Any]) -> Term:
    """The product of x and y, summed over every label that is not in `kept`.

    Args:
        kept: labels to keep, in the preferred order of the result. They may repeat, and may include labels of other
            terms. The order affects only which term is the left operand; the axes of the result may have another order.
        dtype: the dtype of the arithmetic and of the result.
        options: options of `gemm`.
    """
    x, y = (summed(own, [*other.labels, *kept], dtype, options) for own, other in ((x, y), (y, x)))
    axes = [Axes(term.labels, term.array.shape, term.array.strides) for term in (x, y)]
    plan = _matrices(*axes, tuple(kept), bool(options.get("reproducible")))
    if plan is None:  # no label is summed, so there is no matrix product: multiply element by element
        labels = tuple(label for label in dict.fromkeys(kept) if label in x.labels or label in y.labels)
        return Term(np.multiply(x.spread(labels), y.spread(labels), dtype=dtype, casting="same_kind"), labels)
    if plan.swapped:
        x, y = y, x
    a, b = (term.array.transpose(to[0]).reshape(to[1]) for term, to in ((x, plan.left), (y, plan.right)))
    return Term(gemm(a, b, dtype=dtype, **options).reshape(plan.shape), plan.labels)


def summed(x: Term, kept: Labels, dtype: DType, options: dict[str, Any]) -> Term:
    """`x` summed in `dtype` over the labels that are not in `kept`, or `x` itself if there are no such labels.

    NumPy computes the sum. Reproducible sums of floating-point and complex numbers are products with ones instead,
    because the bits of NumPy's sums depend on the CPU's vector length.
    """
    gone = [label for label in x.labels if label not in kept]
    if not gone:
        return x
    if options.get("reproducible") and dtype.kind not in "biu":
        ones = np.broadcast_to(np.ones((), dtype), [x.array.shape[x.labels.index(label)] for label in gone])
        return product(x, Term(ones, tuple(gone)), [label for label in x.labels if label in kept], dtype, options)
    array = x.array.sum(axis=tuple(map(x.labels.index, gone)), dtype=dtype)
    return Term(np.asarray(array), tuple(label for label in x.labels if label in kept))
