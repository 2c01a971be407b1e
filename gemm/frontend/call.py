"""Check and normalise a call to `gemm`: operands as views of equal rank, a Problem, and a function that returns the
result.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gemm.backends import registry
from gemm.catalog import INPUTS, KERNELS
from gemm.core import operands
from gemm.core.errors import delivering
from gemm.core.problem import ACTIVATIONS, FP8, NARROW, PRECISIONS, DeviceView, Operand, Problem
from gemm.frontend import interop
from gemm.frontend.arguments import Given, Options

_CLASSES = {0: "0", 1: "1"}
"""How a Problem represents alpha and beta: "0", "1", or "x" for all other values."""


@dataclass
class Call:
    """A checked call to `gemm`, ready to launch.

    Attributes:
        a, b, c, out: operands of shape (*batch, rows, columns). All have one dtype, except that a and b may have the
            types problem.inputs. c is None if beta = 0.
        alpha, beta: the scalars, rounded to the dtype.
        bias: an operand of shape (1, n) or (m, 1) with the dtype of the product, or None.
        problem: the Problem by which a plan is chosen.
        shape: the shape of the result that the caller receives.
        direct: True if the kernel reads the caller's own operands, not conjugated copies, and writes to the caller's
            result: to the caller's `out`, or to the new array that is returned.
        finish: function that returns the caller's result. If the field `out` is a temporary array, `finish` first
            copies this array to the caller's out.
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


class Arithmetic(NamedTuple):
    """The types and scalars of a product.

    Attributes:
        kind: the dtype of the result.
        inputs: the types of a and b as a Problem has them.
        types: the dtypes in which a and b are multiplied.
        alpha, beta: the scalars, rounded to `kind`.
        activation: the activation as a Problem has it.
    """

    kind: np.dtype[Any]
    inputs: tuple[str, ...]
    types: tuple[np.dtype[Any], ...]
    alpha: Any
    beta: Any
    activation: str


class Shaped(NamedTuple):
    """a and b as stacks of matrices, and the shape of their product.

    Attributes:
        sizes: m, n, k.
        shape: the shape of the result that the caller receives.
        row: True if a is a vector; the result then has no row axis.
        column: True if b is a vector; the result then has no column axis.
    """

    a: Operand
    b: Operand
    sizes: tuple[int, int, int]
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    row: bool
    column: bool

    def as_matrices(self, operand: Operand) -> Operand:
        """An operand of the result's shape as a stack of matrices: the dropped row and column axes are added again."""
        operand = operands.expanded(operand, -1) if self.column else operand
        return operands.expanded(operand, operand.ndim - 1) if self.row else operand


def normalise(given: Given, options: Options) -> Call:
    """Check every argument and build the Call. Writes nothing. An error names the argument that is wrong."""
    if options.precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {options.precision!r}")
    views = _views(given)
    device = _one_place(views)
    what = _arithmetic(views, options)
    lie = _shaped(views, options)
    z, added = _summands(views, what, lie)
    x, y, k, alpha = _factors(what, lie)
    target, direct, finish = _target((x, y, z, added), views.out, lie, what.kind, given)
    if lie.batch:
        x, y = (operands.broadcast(each, (*lie.batch, *each.shape[-2:])) for each in (x, y))
    alpha, beta = alpha.item(), what.beta.item()
    places = tuple(map(operands.place, (x, y, z, target)))
    m, n, _ = lie.sizes
    problem = Problem(
        dtype=operands.name_of(what.kind), m=m, n=n, k=k, batch=math.prod(lie.batch),
        layout="".join(map(operands.layout, (x, y, target))),
        alpha=_CLASSES.get(alpha, "x"), beta=_CLASSES.get(beta, "x"), precision=options.precision,
        reproducible=bool(options.reproducible), device=device, inputs=what.inputs,
        places=places if any(places) else (), bias=added is not None, activation=what.activation,
    )  # fmt: skip
    if what.kind.kind == "c":
        conjugated = (views.a.dtype.kind, options.trans_a), (views.b.dtype.kind, options.trans_b)
        direct = direct and not {("c", "C"), ("c", "c")} & {*conjugated}
    return Call(x, y, z, target, alpha, beta, problem, lie.shape, direct, finish, added)


def _views(given: Given) -> Given:
    """The caller's operands as NumPy arrays and DeviceViews."""
    a, b, c, out, bias, alpha, beta = given
    return Given(
        interop.wrap(a, "a"), interop.wrap(b, "b"), None if c is None else interop.wrap(c, "c"),
        None if out is None else interop.wrap_output(out), None if bias is None else interop.wrap(bias, "bias"),
        alpha, beta,
    )  # fmt: skip


def _arithmetic(views: Given, options: Options) -> Arithmetic:
    x, y, z = views[:3]
    kind = common_dtype({"a": x, "b": y, "c": z}, options.dtype, views.out)
    held = isinstance(x, DeviceView)  # y and z are on the same device
    inputs = _inputs(x.dtype, y.dtype, kind, x.device.backend if isinstance(x, DeviceView) else None)
    for name, operand, own in (("a", x, inputs), ("b", y, inputs), ("c", z, ())) if held else ():
        if operand is not None and operand.dtype != kind and not own:
            raise TypeError(f"{name} has dtype {operand.dtype}, the product {kind}; convert it on the device first")
    types = tuple(map(operands.named, inputs, inputs)) or (kind, kind)
    alpha, beta = scalar("alpha", views.alpha, kind), scalar("beta", views.beta, kind)
    applied = _activation(options.activation, kind, options.reproducible) if options.activation is not None else ""
    if z is None and beta != 0:
        raise ValueError(f"beta = {views.beta} scales c, but c is None; pass c (c=out to update out in place)")
    return Arithmetic(kind, inputs, types, alpha, beta, applied)


def _shaped(views: Given, options: Options) -> Shaped:
    x, row = _matrix("a", views.a, options.trans_a, axis=0)
    y, column = _matrix("b", views.b, options.trans_b, axis=-1)
    (m, k), (rows, n) = x.shape[-2:], y.shape[-2:]
    if k != rows:
        raise ValueError(
            f"a is {m} × {k} and b is {rows} × {n}: the columns of a ({k}) and rows of b ({rows}) must agree"
        )
    batch, other = x.shape[:-2], y.shape[:-2]
    try:
        batch = batch if batch == other else np.broadcast_shapes(batch, other)
    except ValueError:
        raise ValueError(f"the batches of a {batch} and b {other} do not broadcast") from None
    shape = (*batch, *(() if row else (m,)), *(() if column else (n,)))
    return Shaped(x, y, (m, n, k), batch, shape, row, column)


def _summands(views: Given, what: Arithmetic, lie: Shaped) -> tuple[Operand | None, Operand | None]:
    """c and bias as the kernel reads them. None: the kernel does not read the operand."""
    z, added = views.c, views.bias
    if z is not None:
        try:
            z = lie.as_matrices(operands.broadcast(z, lie.shape))
        except ValueError:
            raise ValueError(f"c has shape {z.shape}, which does not broadcast to the result's {lie.shape}") from None
    if views.out is not None and views.out.shape != lie.shape:
        raise ValueError(f"out has shape {views.out.shape}; the result's is {lie.shape}")
    if what.beta == 0:
        z = None
    if added is not None:
        m, n, _ = lie.sizes
        added = _bias(added, m, n, what.kind, column=lie.column)
    if z is not None and all(lie.shape):
        z = operands.kernel_ready(z, what.kind)
    return z, added


def _factors(what: Arithmetic, lie: Shaped) -> tuple[Operand, Operand, int, Any]:
    """a and b as the kernel multiplies them, k, and alpha."""
    x, y, (m, n, k) = lie.a, lie.b, lie.sizes
    if k == 0 or what.alpha == 0:
        # The product has no terms: the kernel computes out = fma(beta, c, t) with t = alpha·0, and reads neither A nor
        # B. alpha = -1 makes t = -0, so that out is exactly beta·c, including the sign of zeros.
        alpha = what.kind.type(-1 if what.beta != 0 and what.kind.kind not in "biu" else 1)
        left, right = what.types
        return _nothing(x, left, (*lie.batch, m, 0)), _nothing(y, right, (*lie.batch, 0, n)), 0, alpha
    if all(lie.shape):
        left, right = what.types
        x, y = operands.kernel_ready(x, left), operands.kernel_ready(y, right)
    return x, y, k, what.alpha


def _one_place(views: Given) -> str:
    """The key of the device that holds all operands, or "host". Raises TypeError if the operands are in different
    memories.
    """
    if DeviceView not in map(type, views[:5]):
        return "host"
    places = {
        name: operand.device.key if isinstance(operand, DeviceView) else "host"
        for name, operand in zip(Given._fields, views[:5], strict=False)
        if operand is not None
    }
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise TypeError(f"operands must lie in one place, but {where}; move them to one first")
    return next(iter(places.values()))


def common_dtype(given: Mapping[str, Operand | None], asked: DTypeLike | None, out: Operand | None) -> np.dtype[Any]:
    """The dtype of the arithmetic and of the result: `asked`, or NumPy's promotion of the operands' dtypes.

    Raises TypeError if an operand or out has a dtype that does not fit.
    """
    if asked is not None:
        asked = np.dtype(operands.bfloat16("dtype is bfloat16") if asked == "bfloat16" else asked)
    present, numbers_of = [], [asked and asked.num]
    for name, operand in given.items():
        if operand is not None:
            present.append((name, operand.dtype))
            numbers_of.append(operand.dtype.num)
    kind = _common(tuple(present), asked, *numbers_of)
    if out is not None and not np.can_cast(kind, out.dtype, "same_kind"):
        raise TypeError(f"out has dtype {out.dtype}, which cannot hold the result's {kind}")
    if isinstance(out, DeviceView) and out.dtype != kind:
        raise TypeError(f"out has dtype {out.dtype}; on a device it must be the result's {kind}")
    return kind


@lru_cache(maxsize=256)
def _common(
    given: tuple[tuple[str, np.dtype[Any]], ...], asked: np.dtype[Any] | None, *numbers: object
) -> np.dtype[Any]:
    """`common_dtype` of operands with these names and dtypes.

    `numbers` are NumPy's type numbers of the dtypes. They are only part of the cache's key: int64 and longlong are
    equal as dtypes, but their scalars have different types.
    """
    for name, dtype in given:
        if not operands.is_number(dtype):
            raise TypeError(f"{name} has dtype {dtype}; it must be boolean, integer, real or complex")
    kind: np.dtype[Any]
    if asked is None:
        try:
            # fp8 counts as bfloat16, as in PyTorch's scaled products.
            kind = np.result_type(*(operands.bfloat16("fp8") if own.name in FP8 else own for _, own in given))
        except TypeError:  # such as bfloat16 and float16, or bfloat16 and int32
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
    """The names of the types of a and b if a kernel reads these types directly and they are narrower than `kind`; else
    ().

    For operands on a device, the kernel must belong to `backend`, because gemm does not convert operands on a device.
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
    if value.__class__ is float and value in (0.0, 1.0) and kind.kind in "fc":  # the usual values
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
    """The scalar 1 or 0 of a dtype."""
    return kind.type(one)


def _activation(name: str, kind: np.dtype[Any], reproducible: bool) -> str:
    """Check the activation `name` and return it in the form of Problem.activation."""
    if name not in ACTIVATIONS[1:]:
        raise ValueError(f"activation must be None or one of {', '.join(ACTIVATIONS[1:])}, not {name!r}")
    if kind.kind != "f" and kind.name not in NARROW:
        raise TypeError(f"activation={name!r} is for real numbers, not for {kind}")
    if reproducible and name != "relu":
        raise ValueError(f"activation={name!r} has not the same bits on every device; reproducible=True allows relu")
    return name


def _bias(bias: Operand, m: int, n: int, kind: np.dtype[Any], *, column: bool) -> Operand:
    """`bias` as a matrix with one row or one column.

    Args:
        column: whether b is a vector, so that the result has no column axis.
    """
    if not operands.is_number(bias.dtype) or not np.can_cast(bias.dtype, kind, "same_kind"):
        raise TypeError(f"bias has dtype {bias.dtype}, which the product's {kind} would not keep; convert it first")
    if bias.ndim == 1:
        bias = operands.expanded(bias, -1 if column else 0)
    if bias.shape not in ((1, n), (m, 1)):
        raise ValueError(f"bias has shape {bias.shape}; of {m} × {n} it must be ({n},), (1, {n}) or ({m}, 1)")
    if isinstance(bias, DeviceView) and bias.dtype != kind:
        raise TypeError(f"bias has dtype {bias.dtype}, the product {kind}; convert it on the device first")
    return operands.kernel_ready(bias, kind)


def _matrix(name: str, operand: Operand, trans: bool | str, axis: int) -> tuple[Operand, bool]:
    """`operand` as a stack of matrices, transposed as `trans` says; and whether an axis was added at `axis`."""
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
    """An operand without elements, in the same memory as `operand`."""
    if isinstance(operand, DeviceView):
        return operands.nothing_of(operand, *shape)
    return np.empty(shape, kind)


def _target(
    read: Sequence[Operand | None], out: Operand | None, lie: Shaped, kind: np.dtype[Any], given: Given
) -> tuple[Operand, bool, Callable[[], Any]]:
    """The array that the kernel writes, whether the caller reads that array, and a function that returns the caller's
    result.

    The kernel writes directly to `out`, with two exceptions: `out` overlaps an operand that the kernel still reads, or
    the result needs a cast. Then the kernel writes to a temporary array, which is copied to `out` at the end. read: a,
    b, c and bias.
    """
    if out is not None and _direct(out, read, lie, kind):
        return lie.as_matrices(out), True, lambda: given.out
    x, result = read[0], None
    if isinstance(x, DeviceView):
        with delivering(x.device.key):
            result = registry.backend(x.device.backend).empty(lie.shape, replace(x, dtype=kind))
    made: Operand = np.empty(lie.shape, kind) if result is None else result
    if out is None:
        example = given.a
        for array in given[2::-1]:  # the first operand that belongs to another library
            example = example if array is None or type(array) is np.ndarray else array
        return lie.as_matrices(made), True, lambda: interop.like(made, example)

    def copied() -> Any:
        if made.size == 0:
            return given.out
        if isinstance(out, DeviceView) and isinstance(made, DeviceView):
            _copy_on_device(lie.as_matrices(made), lie.as_matrices(out))
        elif isinstance(out, np.ndarray) and isinstance(made, np.ndarray):
            np.copyto(out, made, casting="same_kind")
        return given.out

    return lie.as_matrices(made), False, copied


def _direct(given: Operand, read: Sequence[Any], lie: Shaped, kind: np.dtype[Any]) -> bool:
    """Whether a kernel may write directly to `given` while it reads the operands `read` (a, b, c and bias)."""
    x, y, z, bias = read
    return (
        given.dtype == kind
        and given.dtype.isnative
        and operands.distinct(given)
        and not operands.overlap(given, x)
        and not operands.overlap(given, y)
        and (bias is None or not operands.overlap(given, bias))
        and (z is None or not operands.overlap(given, z) or operands.identical(lie.as_matrices(given), z))
        and operands.kernel_ready(given, kind) is given
    )


def _copy_on_device(source: Operand, target: Operand) -> None:
    """Copy `source` to `target` on a device, as a product without terms: k = 0, c = `source`, beta = 1.

    A product copies arrays with any strides on any device, so that no other copy code is needed. The catalog lists the
    simplest kernel of each dtype last. That kernel is named explicitly, so that no probe of other devices starts.
    """
    from gemm.execute import run
    from gemm.select.candidates import unavailable

    assert isinstance(source, DeviceView)
    *batch, m, n = source.shape
    device, dtype = source.device, source.dtype.name
    rows = [
        row for row in KERNELS if (row.backend, row.dtype) == (device.backend, dtype) and not unavailable(row, device)
    ]
    row = ([row for row in rows if not row.inputs] or rows)[-1]
    a, b = (operands.nothing_of(source, *batch, *ends) for ends in ((m, 0), (0, n)))
    inputs = row.inputs  # the kernel reads no elements of a and b
    problem = Problem(dtype, m, n, 0, math.prod(batch), alpha="x", beta="1", device=device.key, inputs=inputs)
    run(problem, "auto", row.name, (a, b, source, target, -1.0, 1.0, None))
