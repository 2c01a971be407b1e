"""np.einsum by matrix products: read the subscripts, find a path (the operands to multiply in each step), and multiply
each pair of operands with `tensordot.product`.
"""

from __future__ import annotations

import operator
import string
from functools import lru_cache
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gemm.core import numpy_original
from gemm.core.problem import NARROW, DeviceView, DType, Ints
from gemm.frontend import interop, plan_cache
from gemm.frontend.arguments import Arithmetic, Host, Unpack, common_dtype
from gemm.numpy_api.tensordot import Term, check, product, summed


@overload
def einsum(
    *arguments: Host | str, out: np.ndarray | None = None, optimize: Any = True, dtype: DTypeLike | None = None,
    **options: Unpack[Arithmetic],
) -> NDArray[Any]: ...  # fmt: skip
@overload
def einsum(
    *arguments: Any, out: Any = None, optimize: Any = True, dtype: DTypeLike | None = None,
    **options: Unpack[Arithmetic],
) -> Any: ...  # fmt: skip
def einsum(
    *arguments: Any, out: Any = None, optimize: Any = True, dtype: DTypeLike | None = None, **options: Any
) -> Any:
    """np.einsum. If a step multiplies two operands and sums over a label of both, gemm computes one batched product.

    NumPy computes the other steps: diagonals, sums within one operand, products element by element, and steps with more
    than two operands, which np.einsum_path chooses where pairs would need more memory. With reproducible=True, gemm
    computes steps with more than two operands pair by pair, and sums within one operand as products with ones.

    Args:
        arguments: subscripts, *operands; or operand, labels, operand, labels, ..., and optionally the labels of the
            result. Operands are arrays in host memory.
        out: an array of exactly the result's shape. Default: a new array, or a view of a single operand without sums.
        optimize: as for np.einsum: an algorithm of np.einsum_path, or a path. True: "greedy". False: a single step.
        dtype: the dtype of every step and of the result, as for `gemm`. Default: NumPy's promotion of all operands'
            dtypes. For float16 and bfloat16, the steps are computed in float32, and the result is rounded once.
        options: precision, reproducible, backend and kernel of `gemm`.

    Returns:
        `out`, or an array whose axes may have any order in memory; a scalar if it has no axes.

    Raises:
        ValueError, TypeError: the subscripts or an argument are wrong, or do not fit the operands.
    """
    check(options)
    plan_cache.settle()
    subscripts, given = _spelled(arguments)
    arrays = {f"operand {i}": _host(array, f"operand {i}") for i, array in enumerate(given)}
    kind = common_dtype(arrays, dtype, None)
    reading = _reading(subscripts, tuple(array.shape for array in arrays.values()), _hashable(optimize))
    target = None if out is None else _target(out, reading.shape, kind)
    work = np.dtype(np.float32) if kind.itemsize == 2 and kind.name in NARROW else kind
    terms = [view.of(array) for view, array in zip(reading.views, arrays.values(), strict=True)]
    for step in reading.path:
        terms.append(_contracted(step, terms, reading.output, work, options))
    result = terms[0].ordered(reading.output).astype(kind, copy=False)
    if target is None:
        return interop.like(result, *given)
    np.copyto(target, result)
    return out


def _target(given: Any, shape: Ints, kind: DType) -> np.ndarray:
    """The array that receives a result with this shape and dtype. Raises TypeError or ValueError if `given` does not
    fit.
    """
    out = interop.wrap_output(given)
    if isinstance(out, DeviceView):
        raise TypeError(f"out is on {out.device.key}; einsum writes to host memory")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; the result has shape {shape}")
    if not np.can_cast(kind, out.dtype, "safe"):
        raise TypeError(f"out has dtype {out.dtype}, which cannot hold the result's {kind} safely")
    return out


def _contracted(step: Ints, terms: list[Term], output: str, work: DType, options: dict[str, Any]) -> Term:
    """One step of a path: take the terms at the positions `step` out of `terms`, multiply them, and sum over the labels
    that are in neither the other terms nor `output`.
    """
    chosen = [terms.pop(i) for i in sorted(step, reverse=True)][::-1]
    kept = [*output, *(label for term in terms for label in term.labels)]
    if len(chosen) > 2 and not options.get("reproducible"):
        labels = tuple(label for label in dict.fromkeys(kept) if any(label in term.labels for term in chosen))
        subscripts = f"{','.join(''.join(term.labels) for term in chosen)}->{''.join(labels)}"
        arrays = [term.array for term in chosen]
        return Term(np.asarray(numpy_original.einsum(subscripts, *arrays, dtype=work, casting="same_kind")), labels)
    first, *rest = chosen
    while rest:
        second, *rest = rest
        first = product(first, second, [*kept, *(label for term in rest for label in term.labels)], work, options)
    return summed(first, kept, work, options)


class View(NamedTuple):
    """How an operand becomes a Term, which is an array with one label for each axis.

    Attributes:
        diagonal: subscripts for np.einsum that take the diagonals of repeated labels; "" if no label is repeated.
        broadcast: the axes of length 1 whose label has a greater length in another operand. These axes are dropped.
        labels: the labels of the remaining axes.
    """

    diagonal: str
    broadcast: Ints
    labels: tuple[str, ...]

    def of(self, array: np.ndarray) -> Term:
        if self.diagonal:
            array = numpy_original.einsum(self.diagonal, array)
        return Term(array.squeeze(self.broadcast) if self.broadcast else array, self.labels)


class Reading(NamedTuple):
    """The meaning of subscripts for operands with known shapes.

    Attributes:
        views: the View of each operand.
        output: the labels of the result.
        shape: the shape of the result.
        path: for each step, the positions of its terms in the list of terms. A step removes its terms from the list
            and appends its result.
    """

    views: tuple[View, ...]
    output: str
    shape: Ints
    path: tuple[Ints, ...]


@lru_cache(256)
def _reading(subscripts: str, shapes: tuple[Ints, ...], optimize: Any) -> Reading:
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"{subscripts!r} is for {len(terms)} operands, but there are {len(shapes)}")
    unused = [letter for letter in string.ascii_letters if letter not in subscripts]
    counts = [_ellipsis(term, len(shape), i) for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))]
    if max(counts) > len(unused):
        raise ValueError(f"{subscripts!r} has an ellipsis of {max(counts)} axes, but too few letters are unused")
    rest = "".join(unused[: max(counts)])
    terms = [term.replace("...", rest[len(rest) - count :]) for term, count in zip(terms, counts, strict=True)]
    if arrow:
        if rest and "..." not in output:
            raise ValueError(f"{subscripts!r} has axes in an ellipsis, but its output has no ellipsis")
        output = output.replace("...", rest, 1)
    else:
        letters = "".join(terms)
        output = rest + "".join(sorted(label for label in set(letters) - set(rest) if letters.count(label) == 1))
    for label in output:
        if label not in "".join(terms) or output.count(label) > 1:
            raise ValueError(f"the output of {subscripts!r} must have labels of the operands, each label once")
    sizes: dict[str, int] = {}
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, length in zip(term, shape, strict=True):
            # The axes of a diagonal must have the same length. (NumPy accepts lengths 0 and 1 for some subscripts.)
            if own.setdefault(label, length) != length:
                raise ValueError(f"label {label!r} of operand {i} has lengths {own[label]} and {length}")
        for label, length in own.items():
            if sizes.get(label, 1) != 1 and length not in (1, sizes[label]):
                raise ValueError(
                    f"label {label!r} of operand {i} has length {length}; in an earlier operand it has {sizes[label]}"
                )
            sizes[label] = sizes[label] if length == 1 and label in sizes else length
    stand_ins = [np.broadcast_to(0.0, shape) for shape in shapes]
    if isinstance(optimize, tuple) and optimize[0] == "einsum_path":
        optimize = [*optimize]  # NumPy requires a list for a path
    path = numpy_original.einsum_path(f"{','.join(terms)}->{output}", *stand_ins, optimize=optimize)[0][1:]
    views = tuple(_view(term, shape, sizes) for term, shape in zip(terms, shapes, strict=True))
    return Reading(views, output, tuple(sizes[label] for label in output), tuple(map(tuple, path)))


def _ellipsis(term: str, ndim: int, position: int) -> int:
    """The number of axes that the ellipsis of `term` represents. Raises ValueError if `ndim` does not fit."""
    name = f"operand {position}"
    letters = term.replace("...", "", 1)
    if wrong := set(letters) - set(string.ascii_letters):
        raise ValueError(f"{name} has subscripts {term!r}, but {min(wrong)!r} is not a letter")
    if len(letters) > ndim or (letters == term and len(letters) != ndim):
        raise ValueError(f"{name} has {ndim} axes, but {len(letters)} subscripts: {term!r}")
    return ndim - len(letters)


def _view(term: str, shape: Ints, sizes: dict[str, int]) -> View:
    lengths = dict(zip(term, shape, strict=True))
    labels = "".join(dict.fromkeys(term))
    broadcast = tuple(i for i, label in enumerate(labels) if lengths[label] != sizes[label])
    kept = tuple(label for label in labels if lengths[label] == sizes[label])
    return View(f"{term}->{labels}" if labels != term else "", broadcast, kept)


def _spelled(arguments: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Return (subscripts, operands) from either form of np.einsum's arguments: with a string, or lists of labels."""
    if len(arguments) < 2:
        raise ValueError("einsum needs subscripts and at least one operand, or an operand and its labels")
    if isinstance(arguments[0], str):
        return arguments[0], list(arguments[1:])
    pairs = len(arguments) // 2
    subscripts = ",".join(map(_letters, arguments[1 : 2 * pairs : 2]))
    output = f"->{_letters(arguments[-1])}" if len(arguments) % 2 else ""
    return subscripts + output, list(arguments[: 2 * pairs : 2])


def _letters(labels: Any) -> str:
    """A list of integer labels as letters, in NumPy's order: string.ascii_uppercase + string.ascii_lowercase."""
    order = string.ascii_uppercase + string.ascii_lowercase
    letters = []
    for label in labels:
        if label is Ellipsis:
            letters.append("...")
        elif 0 <= operator.index(label) < len(order):
            letters.append(order[operator.index(label)])
        else:
            raise ValueError(f"label {label} is not in [0, {len(order)})")
    return "".join(letters)


def _hashable(path: Any) -> Any:
    return tuple(map(_hashable, path)) if isinstance(path, list | tuple) else path


def _host(array: Any, name: str) -> np.ndarray:
    view = interop.wrap(array, name)
    if isinstance(view, DeviceView):
        raise TypeError(f"{name} is on {view.device.key}; einsum takes host arrays, tensordot also arrays on a device")
    return view
