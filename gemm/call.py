"""A call to `gemm` checked and normalised: operands as views of equal rank, a Problem, and what to hand back."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm import interop, operands
from gemm.catalog import INPUTS, KERNELS
from gemm.dispatch import registry
from gemm.errors import delivering
from gemm.problem import ACTIVATIONS, FP8, NARROW, PRECISIONS, DeviceView, Operand, Problem

Scalar = complex | float | int


@dataclass
class Call:
    """What `gemm` was asked, ready to launch.

    Attributes:
        a, b, c, out: (*batch, rows, columns) operands of one dtype, but for a and b of problem.inputs; c is None when
            beta = 0.
        alpha, beta: rounded to the dtype.
        bias: (1, n) or (m, 1), of the dtype; or None.
        problem: the key for dispatch.
        shape: of the result as the caller sees it.
        direct: the kernel reads what the caller gave, not conjugates of it, and writes where the caller reads: to
            `out`, or to the new array that is returned.
        finish: hands the caller its result (and fills `out` where `out` here is a temporary).
    """

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand
    alpha: Any
    beta: Any
    problem: Problem
    shape: tuple[int, ...]
    direct: bool
    finish: Callable[[], Any]
    bias: Operand | None = None


def normalise(
    a: Any, b: Any, c: Any, *, alpha: Scalar, beta: Scalar, trans_a: bool | str, trans_b: bool | str,
    out: Any, dtype: DTypeLike | None, precision: str, reproducible: bool, bias: Any = None,
    activation: str | None = None,
) -> Call:  # fmt: skip
    """Check every argument and build the Call. Nothing is written; errors name the argument."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    x, y = interop.wrap(a, "a"), interop.wrap(b, "b")
    z = None if c is None else interop.wrap(c, "c")
    given = None if out is None else interop.wrap_output(out)
    added = None if bias is None else interop.wrap(bias, "bias")
    device = _one_place({"a": x, "b": y, "c": z, "out": given, "bias": added})
    kind = common_dtype({"a": x, "b": y, "c": z}, dtype, given)
    inputs = _inputs(x.dtype, y.dtype, kind, x.device.backend if isinstance(x, DeviceView) else None)
    for name, operand, own in (("a", x, inputs), ("b", y, inputs), ("c", z, ())):
        if isinstance(operand, DeviceView) and operand.dtype != kind and not own:
            raise TypeError(f"{name} has dtype {operand.dtype}, the product {kind}; convert it on the device first")
    types = [operands.named(name, name) for name in inputs] or [kind, kind]
    alpha_, beta_ = scalar("alpha", alpha, kind), scalar("beta", beta, kind)
    applied = _activation(activation, kind, reproducible)
    if z is None and beta_ != 0:
        raise ValueError(f"beta = {beta} scales c, but c is None; pass c (c=out to update out in place)")

    conjugated = any(o.dtype.kind == "c" and t in ("C", "c") for o, t in ((x, trans_a), (y, trans_b)))
    x, drop_row = _matrix("a", x, trans_a, axis=0)
    y, drop_column = _matrix("b", y, trans_b, axis=-1)
    (m, k), (rows, n) = x.shape[-2:], y.shape[-2:]
    if k != rows:
        raise ValueError(
            f"a is {m} × {k} and b is {rows} × {n}: the columns of a ({k}) and rows of b ({rows}) must agree"
        )
    try:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise ValueError(f"the batches of a {x.shape[:-2]} and b {y.shape[:-2]} do not broadcast") from None
    dropped = (*(() if drop_row else (m,)), *(() if drop_column else (n,)))
    shape = (*batch, *dropped)  # as the caller sees it
    full = (*batch, m, n)

    def as_matrices(operand: Operand) -> Operand:
        operand = operands.expanded(operand, -1) if drop_column else operand
        return operands.expanded(operand, operand.ndim - 1) if drop_row else operand

    if z is not None:
        try:
            z = as_matrices(operands.broadcast(z, shape))
        except ValueError:
            raise ValueError(f"c has shape {z.shape}, which does not broadcast to the result's {shape}") from None
    if given is not None and given.shape != shape:
        raise ValueError(f"out has shape {given.shape}; the result's is {shape}")
    if beta_ == 0:
        z = None
    if added is not None:
        added = _bias(added, m, n, kind, column=drop_column)

    empty = math.prod(full) == 0
    if k == 0 or alpha_ == 0:
        # A product of no terms: C is scaled, A and B are not read. acc = +0, t = -0 and fma(beta, c, -0) = beta·c,
        # signed zeros included.
        k, alpha_ = 0, kind.type(-1 if beta_ != 0 and kind.kind not in "biu" else 1)
        x, y = _nothing(x, types[0], (*batch, m, 0)), _nothing(y, types[1], (*batch, 0, n))
    elif not empty:
        x, y = (
            o if isinstance(o, DeviceView) else operands.kernel_ready(o, own)
            for o, own in zip((x, y), types, strict=True)
        )
    if isinstance(z, np.ndarray) and not empty:
        z = operands.kernel_ready(z, kind)

    target, direct, finish = _target(x, y, z, added, given, shape, as_matrices, kind, like=(a, b, c), returned=out)
    x, y = operands.broadcast(x, (*batch, *x.shape[-2:])), operands.broadcast(y, (*batch, *y.shape[-2:]))
    places = tuple(map(operands.place, (x, y, z, target)))
    problem = Problem(
        dtype=operands.name_of(kind), m=m, n=n, k=k, batch=math.prod(batch),
        layout="".join(map(operands.layout, (x, y, target))),
        alpha=_class(alpha_), beta=_class(beta_), precision=precision, reproducible=bool(reproducible),
        device=device, inputs=inputs, places=places if any(places) else (), bias=added is not None, activation=applied,
    )  # fmt: skip
    return Call(x, y, z, target, alpha_.item(), beta_.item(), problem, shape, direct and not conjugated, finish, added)


def _one_place(given: dict[str, Operand | None]) -> str:
    """The key of the device that holds every operand, or "host"."""
    places = {
        name: operand.device.key if isinstance(operand, DeviceView) else "host"
        for name, operand in given.items()
        if operand is not None
    }
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise TypeError(f"operands must lie in one place, but {where}; move them to one first")
    return next(iter(places.values()))


def common_dtype(given: Mapping[str, Operand | None], asked: DTypeLike | None, out: Operand | None) -> np.dtype[Any]:
    """The one dtype of operands, arithmetic and result: NumPy's promotion, or `asked`."""
    if asked is not None:
        asked = np.dtype(operands.bfloat16("dtype is bfloat16") if asked == "bfloat16" else asked)
    present = [(name, operand.dtype) for name, operand in given.items() if operand is not None]
    kind = _common(tuple(present), asked, tuple(dtype.num for _, dtype in present), asked and asked.num)
    if out is not None and not np.can_cast(kind, out.dtype, "same_kind"):
        raise TypeError(f"out has dtype {out.dtype}, which cannot hold the result's {kind}")
    if isinstance(out, DeviceView) and out.dtype != kind:
        raise TypeError(f"out has dtype {out.dtype}; on a device it must be the result's {kind}")
    return kind


@lru_cache(maxsize=256)
def _common(
    given: tuple[tuple[str, np.dtype[Any]], ...], asked: np.dtype[Any] | None, *numbers: object
) -> np.dtype[Any]:
    """`common_dtype` of operands of those names and dtypes. `numbers`: theirs, which tell int64 from longlong: both are
    equal, and their scalars are not of one type."""
    for name, dtype in given:
        if not operands.is_number(dtype):
            raise TypeError(f"{name} has dtype {dtype}; it must be boolean, integer, real or complex")
    kind: np.dtype[Any]
    if asked is None:
        try:
            # Of fp8 it is bfloat16, as PyTorch's scaled products have it.
            kind = np.result_type(*(operands.bfloat16("fp8") if own.name in FP8 else own for _, own in given))
        except TypeError:  # bfloat16 and float16, bfloat16 and int32, ...
            types = ", ".join(f"{name} {dtype}" for name, dtype in given)
            raise TypeError(f"NumPy has no common type for {types}; pass dtype=float32, say") from None
    else:
        kind = asked.newbyteorder("=")
        if not operands.is_number(kind) or kind.name in FP8:
            raise TypeError(f"dtype {kind} is no result's; pass a boolean, integer, real or complex one, no fp8")
    for name, dtype in given:
        if not np.can_cast(dtype, kind, "same_kind"):
            raise TypeError(f"{name} has dtype {dtype}, which dtype={kind} would not keep; convert it first")
    return kind


@lru_cache(maxsize=256)
def _inputs(a: np.dtype[Any], b: np.dtype[Any], kind: np.dtype[Any], backend: str | None) -> tuple[str, ...]:
    """The types of a and b if there are kernels that take them as they are, though narrower than `kind`; or ().

    On a device they must be its `backend`'s: what a device holds is not converted.
    """
    pair = a.name, b.name
    if pair not in INPUTS:
        return ()
    known = any(
        row.inputs == pair and row.multiplies(kind.name, pair) and backend in (None, row.backend) for row in KERNELS
    )
    return pair if known else ()


def scalar(name: str, value: Any, kind: np.dtype[Any]) -> Any:
    """alpha or beta rounded to `kind`, as a NumPy scalar."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value.__class__ is float and value in (0.0, 1.0) and kind.kind in "fc":  # as they mostly are
        return _constant(kind, value == 1.0)
    if not isinstance(value, numbers.Number | np.generic):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, complex | np.complexfloating) and kind.kind != "c":
        raise TypeError(f"{name} = {value} is complex and the product {kind}; pass dtype=complex128")
    number: Any = value
    if kind.kind in "biu" and not isinstance(number, numbers.Integral) and number != np.trunc(number):
        raise TypeError(f"{name} = {value} cannot scale a product of {kind} exactly; pass dtype=float64")
    if kind.kind == "b" and number not in (0, 1):
        raise TypeError(f"{name} = {value} cannot scale a boolean product; pass dtype=int64")
    try:
        with np.errstate(over="ignore"):
            return kind.type(int(number) if kind.kind in "iu" else number)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{name} = {value} does not fit {kind}: {error}") from None


@lru_cache(maxsize=64)
def _constant(kind: np.dtype[Any], one: bool) -> Any:
    """1 or 0 of that type."""
    return kind.type(one)


def _activation(name: str | None, kind: np.dtype[Any], reproducible: bool) -> str:
    """`activation` as a Problem has it."""
    if name is None:
        return ""
    if name not in ACTIVATIONS[1:]:
        raise ValueError(f"activation must be None or one of {', '.join(ACTIVATIONS[1:])}, not {name!r}")
    if kind.kind != "f" and kind.name not in NARROW:
        raise TypeError(f"activation={name!r} is for real numbers, not for {kind}")
    if reproducible and name != "relu":
        raise ValueError(f"activation={name!r} has not the same bits on every device; reproducible=True allows relu")
    return name


def _bias(bias: Operand, m: int, n: int, kind: np.dtype[Any], *, column: bool) -> Operand:
    """`bias` as a matrix of one row or one column; `column`: the result has dropped its columns."""
    if not operands.is_number(bias.dtype) or not np.can_cast(bias.dtype, kind, "same_kind"):
        raise TypeError(f"bias has dtype {bias.dtype}, which the product's {kind} would not keep; convert it first")
    if bias.ndim == 1:
        bias = operands.expanded(bias, -1 if column else 0)
    if bias.shape not in ((1, n), (m, 1)):
        raise ValueError(f"bias has shape {bias.shape}; of {m} × {n} it must be ({n},), (1, {n}) or ({m}, 1)")
    if isinstance(bias, np.ndarray):
        return operands.kernel_ready(bias, kind)
    if bias.dtype != kind:
        raise TypeError(f"bias has dtype {bias.dtype}, the product {kind}; convert it on the device first")
    return bias


def _matrix(name: str, operand: Operand, trans: bool | str, axis: int) -> tuple[Operand, bool]:
    """`operand` transposed as asked and of two or more axes; whether an axis was added at `axis`."""
    if isinstance(trans, str):
        if trans.upper() not in ("N", "T", "C"):
            raise ValueError(f'trans_{name} must be a bool, "N", "T" or "C", not {trans!r}')
        flip, conjugate = trans.upper() != "N", trans.upper() == "C"
    elif isinstance(trans, bool | np.bool_):
        flip, conjugate = bool(trans), False
    else:
        raise TypeError(f'trans_{name} must be a bool, "N", "T" or "C", not {type(trans).__name__}')
    if operand.ndim == 0:
        raise ValueError(f"{name} is a scalar; it must have one axis or more (alpha scales a product)")
    if conjugate and operand.dtype.kind == "c":
        operand = interop.conjugated(operand)
    if operand.ndim == 1:
        return operands.expanded(operand, axis), True
    return (operands.transposed(operand) if flip else operand), False


def _nothing(operand: Operand, kind: np.dtype[Any], shape: tuple[int, ...]) -> Operand:
    """An operand of no elements, lying where `operand` does."""
    if isinstance(operand, DeviceView):
        return operands.nothing_of(operand, *shape)
    return np.empty(shape, kind)


def _class(value: Any) -> str:
    return "0" if value == 0 else "1" if value == 1 else "x"


def _target(
    x: Operand, y: Operand, z: Operand | None, bias: Operand | None, given: Operand | None, shape: Sequence[int],
    as_matrices: Callable[[Operand], Operand], kind: np.dtype[Any], *, like: Sequence[Any], returned: Any,
) -> tuple[Operand, bool, Callable[[], Any]]:  # fmt: skip
    """Where the kernel writes, whether the caller reads there, and how the caller gets its result.

    Writes go to `given` itself unless it overlaps an input that is still to be read, or needs a cast: then to a
    temporary that is copied at the end.
    """
    direct = given is not None and (
        given.dtype == kind
        and given.dtype.isnative
        and operands.distinct(given)
        and not operands.overlap(given, x)
        and not operands.overlap(given, y)
        and (bias is None or not operands.overlap(given, bias))
        and (z is None or not operands.overlap(given, z) or operands.identical(as_matrices(given), z))
        and (isinstance(given, DeviceView) or operands.kernel_ready(given, kind) is given)
    )
    if direct and given is not None:
        return as_matrices(given), True, lambda: returned
    result: Operand
    if isinstance(x, DeviceView):
        with delivering(x.device.key):
            result = registry.backend(x.device.backend).empty(tuple(shape), replace(x, dtype=kind))
    else:
        result = np.empty(tuple(shape), kind)
    if given is None:
        example = next((array for array in like if type(array) is not np.ndarray and array is not None), like[0])
        return as_matrices(result), True, lambda: interop.like(result, example)

    def copied() -> Any:
        if result.size == 0:
            return returned
        if isinstance(given, DeviceView) and isinstance(result, DeviceView):
            _copy_on_device(as_matrices(result), as_matrices(given))
        elif isinstance(given, np.ndarray) and isinstance(result, np.ndarray):
            np.copyto(given, result, casting="same_kind")
        return returned

    return as_matrices(result), False, copied


def _copy_on_device(source: Operand, target: Operand) -> None:
    """target = source, as a product of no terms: 1·source. One mechanism copies any strides on any device.

    The plainest kernel for the dtype does it, which the catalog lists last; it is named, so that nothing is probed for.
    """
    from gemm.dispatch import run, unavailable

    assert isinstance(source, DeviceView)
    *batch, m, n = source.shape
    device, dtype = source.device, source.dtype.name
    rows = [
        row for row in KERNELS if (row.backend, row.dtype) == (device.backend, dtype) and not unavailable(row, device)
    ]
    row = ([row for row in rows if not row.inputs] or rows)[-1]
    a, b = (operands.nothing_of(source, *batch, *ends) for ends in ((m, 0), (0, n)))
    inputs = row.inputs  # nothing of which is read
    problem = Problem(dtype, m, n, 0, math.prod(batch), alpha="x", beta="1", device=device.key, inputs=inputs)
    run(problem, "auto", row.name, a, b, source, target, -1.0, 1.0)
