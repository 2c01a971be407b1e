"""np.tensordot, np.vecdot and np.transpose for arrays of NumPy and of other libraries. Matrix products compute the
sums.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm.core.problem import DeviceView
from gemm.frontend import interop, plan_cache
from gemm.frontend.api import at_once as gemm
from gemm.numpy_api.matrix_pairs import Term, check, kind_of, product


def tensordot(a: Any, b: Any, axes: Any = 2, *, dtype: DTypeLike | None = None, **options: Any) -> Any:
    """np.tensordot(a, b, axes), computed as one matrix product. Axes that can be merged into one axis are not copied.

    Args:
        a, b: arrays, both in host memory or both on one device. For device arrays, gemm uses the arrays' own methods
            for transpose and reshape.
        axes: n: sum over the last n axes of a and the first n axes of b. (axes of a, axes of b): sum over these pairs
            of axes.
        dtype: the dtype of the arithmetic and of the result, as for `gemm`.
        options: precision, reproducible, backend and kernel of `gemm`.

    Returns:
        An array with the other axes of a, then the other axes of b; a scalar if there are none.

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
    if isinstance(x, DeviceView) or isinstance(y, DeviceView):
        rows, columns = _others(x.ndim, left), _others(y.ndim, right)
        k = math.prod(x.shape[axis] for axis in left)
        m, n = (math.prod(o.shape[i] for i in rest) for o, rest in ((x, rows), (y, columns)))
        at = _shaped(_turned(a, (*rows, *left), "a"), (m, k), "a")
        bt = _shaped(_turned(b, (*right, *columns), "b"), (k, n), "b")
        shape = (*(x.shape[axis] for axis in rows), *(y.shape[axis] for axis in columns))
        return _shaped(gemm(at, bt, dtype=dtype, **options), shape, "the result")
    kind = kind_of({"a": x, "b": y}, dtype)
    # The label of a summed axis is the number of its pair. All other axes have labels of their own, from `pairs` on.
    pairs = len(left)
    xs, ys = list(range(pairs, pairs + x.ndim)), list(range(pairs + x.ndim, pairs + x.ndim + y.ndim))
    for label, (i, j) in enumerate(zip(left, right, strict=True)):
        xs[i] = ys[j] = label
    kept = [label for label in (*xs, *ys) if label >= pairs]
    result = product(Term(x, tuple(xs)), Term(y, tuple(ys)), kept, kind, options).ordered(kept)
    return interop.like(result, foreign(a, b))


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
    if left.ndim == right.ndim == 1:
        return gemm(left, right, trans_a="C", dtype=dtype, **options)
    columns = [_shaped(x, (*x.shape, 1), name) for x, name in ((left, "x1"), (right, "x2"))]
    result = gemm(*columns, trans_a="C", dtype=dtype, **options)
    return _shaped(result, tuple(result.shape[:-2]), "the result")


def matrix_transpose(x: Any, /) -> Any:
    """A view of `x` with its last two axes exchanged. Raises ValueError if `x` has fewer than two axes."""
    array = _array(x)
    if array.ndim < 2:
        raise ValueError(f"x has {array.ndim} axes; a matrix has two or more")
    return _turned(array, (*range(array.ndim - 2), array.ndim - 1, array.ndim - 2), "x")


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """np.transpose: `a` with its axes in the order `axes`, or in reverse order. Arrays of other libraries use their own
    method.
    """
    array = _array(a)
    if isinstance(array, np.ndarray):
        return array.transpose(axes)
    return _turned(array, tuple(reversed(range(array.ndim))) if axes is None else tuple(axes), "a")


def foreign(*arrays: Any) -> Any:
    """The first of `arrays` that is not a NumPy array, else the first array. The result belongs to this array's
    library.
    """
    return next((array for array in arrays if type(array) is not np.ndarray), arrays[0])


def paired(a: tuple[int, ...], b: tuple[int, ...], axes: Any) -> tuple[list[int], list[int]]:
    """The axes of the shapes a and b to sum over, as numbers that are not negative."""
    try:
        left, right = axes
    except TypeError:
        count = operator.index(axes)
        left, right = range(-count, 0), range(count)
    pairs = []
    for given, shape in ((left, a), (right, b)):
        chosen = list(given) if np.iterable(given) else [given]
        for axis in chosen:
            if not -len(shape) <= operator.index(axis) < len(shape):
                raise np.exceptions.AxisError(axis, len(shape))
        pairs.append([operator.index(axis) % len(shape) for axis in chosen])
    for chosen in pairs:
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"duplicate axes are not allowed in tensordot: {chosen}")
    if [a[axis] for axis in pairs[0]] != [b[axis] for axis in pairs[1]]:
        raise ValueError(f"shape-mismatch for sum: axes {pairs[0]} of {a} and {pairs[1]} of {b}")
    return pairs[0], pairs[1]


def _others(ndim: int, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(ndim) if axis not in axes]


def _array(x: Any) -> Any:
    """`x` if it is an array of some library, else a NumPy array made from `x`."""
    return x if hasattr(x, "ndim") else np.asarray(x)


def _last(x: Any, axis: int, name: str) -> Any:
    """`x` with `axis` moved to the last position."""
    array = _array(x)
    if not -array.ndim <= axis < array.ndim:
        raise np.exceptions.AxisError(axis, array.ndim, name)
    return _turned(array, (*_others(array.ndim, [axis % array.ndim]), axis % array.ndim), name)


def _turned(array: Any, axes: tuple[int, ...], name: str) -> Any:
    """`array` with its axes in the order `axes`, by a method of the array's library."""
    if axes == tuple(range(len(axes))) == tuple(range(array.ndim)):
        return array
    # PyTorch's transpose exchanges only two axes, so that its permute is used.
    turn = getattr(array, "permute", None) or getattr(array, "transpose", None)
    if turn is None:
        raise TypeError(f"{name} of type {type(array).__name__} has no transpose; turn its axes first")
    return turn(axes)


def _shaped(array: Any, shape: tuple[int, ...], name: str) -> Any:
    """`array` reshaped to `shape`, by a method of the array's library."""
    if tuple(array.shape) == shape:
        return array
    if not hasattr(array, "reshape"):
        raise TypeError(f"{name} of type {type(array).__name__} has no reshape; give it two axes first")
    try:
        return array.reshape(shape)
    except (ValueError, RuntimeError) as error:  # pyopencl's reshape never copies, and raises an error instead
        raise TypeError(
            f"{name} does not merge to {shape} where it lies: {error}; copy it in that order first"
        ) from error
