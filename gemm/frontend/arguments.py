"""The arguments of a product: their names and defaults, and `normalise`, which checks a call and builds its `Call`:
operands as views of equal rank, a Problem, and a function that returns the result.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from gemm import execute
from gemm.backends import registry
from gemm.catalog import INPUTS, KERNELS, Backend
from gemm.core import operands
from gemm.core.backend import Launch
from gemm.core.errors import delivering, unknown
from gemm.core.problem import (
    ACTIVATIONS,
    FP8,
    NARROW,
    PRECISIONS,
    Activation,
    DeviceView,
    DType,
    Ints,
    Operand,
    Plan,
    Precision,
    Problem,
    layout_of,
    place_of,
)
from gemm.frontend import interop
from gemm.select import candidates

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    Unpack = Any

Scalar = complex | float | int
Trans = bool | np.bool_ | Literal["N", "T", "C", "n", "t", "c"]

Host = np.ndarray | list[Any] | tuple[Any, ...]
"""Operands whose product is a NumPy array."""


class Packed(Protocol):
    """A packed matrix, as gemm.prepare returns it. It can be passed as b."""

    def product(self, given: Given, options: Options) -> Any: ...


class Arithmetic(TypedDict, total=False):
    """The keyword arguments that every function for products accepts, with the exception of dtype."""

    precision: Precision
    reproducible: bool
    backend: Backend
    kernel: str | None


class Product(Arithmetic, total=False):
    """The keyword arguments of gemm.use and gemm.array."""

    dtype: DTypeLike | None


class Keywords(Arithmetic, total=False):
    """The keyword arguments of gemm.gemm, with the exception of out and dtype."""

    alpha: Scalar
    beta: Scalar
    trans_a: Trans
    trans_b: Trans
    bias: Any
    activation: Activation | None


_CLASSES = {0: "0", 1: "1"}
"""How a Problem represents alpha and beta: "0", "1", or "x" for all other values."""


class Given(NamedTuple):
    """The caller's operands and scalars, as they are passed to `gemm.gemm`."""

    a: Any
    b: Any
    c: Any = None
    out: Any = None
    bias: Any = None
    alpha: Scalar = 1.0
    beta: Scalar = 0.0


class Options(NamedTuple):
    """The options of `gemm.gemm`, and the Python classes of trans_a, trans_b and reproducible.

    An Options is a key of `plan_cache.memos`. The classes keep 1 and True apart in the key: the two are equal, but 1 is
    not a valid option. front.c builds the same key as a tuple with the items in the order of these fields.
    """

    trans_a: Trans = False
    trans_b: Trans = False
    dtype: DTypeLike | None = None
    precision: Precision = "highest"
    reproducible: bool = False
    backend: Backend = "auto"
    kernel: str | None = None
    activation: Activation | None = None
    class_a: type = bool
    class_b: type = bool
    class_reproducible: type = bool


DEFAULTS: dict[str, Any] = {
    "alpha": 1.0, "beta": 0.0,
    **{name: value for name, value in Options._field_defaults.items() if not name.startswith("class_")},
}  # fmt: skip
"""{name: default value} of alpha, beta and the options of `gemm.gemm`."""


def named(options: Options, alpha: Any, beta: Any) -> dict[str, Any]:
    """alpha, beta and `options` as keyword arguments for gemm.gemm."""
    return dict(zip(DEFAULTS, (alpha, beta, *options), strict=False))


def check_options(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise TypeError if the name of an option is not in `known`, or if `reproducible` is not a bool."""
    for name in options:
        if name not in known:
            raise TypeError(unknown("option", name, known))
    check_reproducible(options.get("reproducible", False))


def check_reproducible(value: object) -> None:
    """Raise TypeError if the option `reproducible` is not a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"reproducible must be a bool, not {type(value).__name__}")


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
        direct: True if two conditions hold: no operand is a conjugated copy, and the kernel writes to the caller's
            `out` or to the new array that is returned. Operands that were converted or aligned may still be copies.
        options: the caller's options.
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
    shape: Ints
    direct: bool
    finish: Callable[[], Any]
    options: Options
    bias: Operand | None = None

    def run(self, first: tuple[Plan, Launch] | None = None) -> Plan | None:
        """Compute the product by `execute.run`, and return the result of `execute.run`: a plan or None.

        first: (the plan to try first, its launch).
        """
        return execute.run(
            self.problem, self.options.backend, self.options.kernel,
            (self.a, self.b, self.c, self.out, self.alpha, self.beta, self.bias), first,
        )  # fmt: skip


class Types(NamedTuple):
    """The types and scalars of a product.

    Attributes:
        kind: the dtype of the result.
        inputs: the value of Problem.inputs.
        alpha, beta: the scalars, rounded to `kind`.
    """

    kind: DType
    inputs: tuple[str, ...]
    alpha: Any
    beta: Any


class Shapes(NamedTuple):
    """The shapes of a product.

    Attributes:
        whole: the shape of the result that the caller receives.
        row: True if a is a vector; the result then has no row axis.
        column: True if b is a vector; the result then has no column axis.
    """

    m: int
    n: int
    k: int
    batch: Ints
    whole: Ints
    row: bool
    column: bool

    def as_matrices(self, operand: Operand) -> Operand:
        """An operand of the result's shape as a stack of matrices: the dropped row and column axes are added again."""
        operand = operands.expanded(operand, -1) if self.column else operand
        return operands.expanded(operand, operand.ndim - 1) if self.row else operand


def normalise(given: Given, options: Options, own: tuple[Ints, ...] = ()) -> Call:
    """Check every argument and build the Call. Does not write to out. The message of an error names the wrong argument.

    own: the shapes of a and b as the caller passed them, for messages. (): the shapes of the operands in `given`.
    """
    if options.reproducible is not True and options.reproducible is not False:
        check_reproducible(options.reproducible)
    if options.precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {options.precision!r}")
    a, b, c, out, bias, *scales = given
    views = Given(
        interop.wrap(a, "a"), interop.wrap(b, "b"), None if c is None else interop.wrap(c, "c"),
        None if out is None else interop.wrap_output(out), None if bias is None else interop.wrap(bias, "bias"),
        *scales,
    )  # fmt: skip
    device = _one_place(views) if DeviceView in map(type, views) else "host"
    types = _types(views, options)
    x, row = _matrix("a", views.a, options.trans_a, axis=0)
    y, column = _matrix("b", views.b, options.trans_b, axis=-1)
    shapes = _shapes((x, row), (y, column), own or (views.a.shape, views.b.shape), options)
    z, added = _summands(views, types, shapes)
    x, y, k, alpha = _factors(x, y, types, shapes)
    target, direct, finish = _target(Given(x, y, z, views.out, added), shapes, types.kind, given)
    if shapes.batch:
        x, y = (operands.broadcast(each, (*shapes.batch, *each.shape[-2:])) for each in (x, y))
    alpha, beta = alpha.item(), types.beta.item()
    places = tuple(map(place_of, (x, y, z, target)))
    problem = Problem(
        dtype=operands.name_of(types.kind), m=shapes.m, n=shapes.n, k=k, batch=math.prod(shapes.batch),
        layout="".join(map(layout_of, (x, y, target))), alpha=_CLASSES.get(alpha, "x"),
        beta=_CLASSES.get(beta, "x"), precision=options.precision, reproducible=bool(options.reproducible),
        device=device, inputs=types.inputs, places=places if any(places) else (), bias=added is not None,
        activation=options.activation or "",
    )  # fmt: skip
    if types.kind.kind == "c":
        given_factors = (views.a.dtype.kind, options.trans_a), (views.b.dtype.kind, options.trans_b)
        direct = direct and not {("c", "C"), ("c", "c")} & {*given_factors}  # a conjugated operand is a copy
    return Call(x, y, z, target, alpha, beta, problem, shapes.whole, direct, finish, options, added)


def _one_place(views: Given) -> str:
    """The key of the device that holds all operands. Raises TypeError if the operands are in different memories."""
    places = {
        name: operand.device.key if isinstance(operand, DeviceView) else "host"
        for name, operand in zip(Given._fields[:5], views, strict=False)
        if operand is not None
    }
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise TypeError(f"operands must be in the memory of one device, but {where}; move them to one device first")
    return places["a"]


def _types(views: Given, options: Options) -> Types:
    x, y, z = views[:3]
    kind = common_dtype({"a": x, "b": y, "c": z}, options.dtype, views.out)
    inputs = _inputs(x.dtype, y.dtype, kind, x.device.backend if isinstance(x, DeviceView) else None)
    if isinstance(x, DeviceView):  # then y and z are DeviceViews, too
        for name, operand in (("c", z),) if inputs else (("a", x), ("b", y), ("c", z)):
            _on_device_as(kind, name, operand)
    alpha, beta = scalar("alpha", views.alpha, kind), scalar("beta", views.beta, kind)
    activation = options.activation
    if activation is not None:
        if activation not in ACTIVATIONS[1:]:
            raise ValueError(f"activation must be None or one of {', '.join(ACTIVATIONS[1:])}, not {activation!r}")
        if kind.kind != "f" and kind.name not in NARROW:
            raise TypeError(f"activation={activation!r} is for real numbers, not for {kind}")
        if options.reproducible and activation != "relu":
            raise ValueError(
                f"activation={activation!r} does not have the same bits on every device; reproducible=True "
                "permits only relu"
            )
    if z is None and beta != 0:
        raise ValueError(f"beta = {views.beta} scales c, but c is None; pass c (c=out to update out in place)")
    return Types(kind, inputs, alpha, beta)


def _on_device_as(kind: DType, name: str, operand: Operand | None) -> None:
    """Raises TypeError if an operand on a device has another dtype than `kind`: gemm does not convert on devices."""
    if isinstance(operand, DeviceView) and operand.dtype != kind:
        raise TypeError(f"{name} has dtype {operand.dtype}, the product has {kind}; convert {name} on the device first")


def _shapes(left: tuple[Operand, bool], right: tuple[Operand, bool], own: tuple[Ints, ...], options: Options) -> Shapes:
    """The Shapes of a product. Raises ValueError if the shapes of a and b do not agree.

    left, right: the results of `_matrix` for a and for b. own: the shapes that the caller passed, for messages.
    """
    (x, row), (y, column) = left, right
    (m, k), (rows, n) = x.shape[-2:], y.shape[-2:]
    if k != rows:
        left_name, right_name = ("op(a)", "op(b)") if options.trans_a or options.trans_b else ("a", "b")
        raise ValueError(
            f"{passed(own, options)}: the columns of {left_name} ({k}) and rows of {right_name} ({rows}) must agree"
        )
    batch, other = x.shape[:-2], y.shape[:-2]
    try:
        batch = batch if batch == other else np.broadcast_shapes(batch, other)
    except ValueError:
        raise ValueError(f"{passed(own, options)}: the batches of a {batch} and b {other} do not broadcast") from None
    return Shapes(m, n, k, batch, (*batch, *(() if row else (m,)), *(() if column else (n,))), row, column)


def passed(own: tuple[Ints, ...], options: Options) -> str:
    """Text for messages: the shapes `own` of a and b as the caller passed them, and the options that transpose them."""
    flags = (f", trans_a={options.trans_a!r}", options.trans_a), (f", trans_b={options.trans_b!r}", options.trans_b)
    of_a, of_b = (text if flag not in (False, "N", "n") else "" for text, flag in flags)
    return f"a has shape {own[0]}{of_a} and b has shape {own[1]}{of_b}"


def _summands(views: Given, types: Types, shapes: Shapes) -> tuple[Operand | None, Operand | None]:
    """Return (c, bias) as the kernel reads them. None stands for an operand that the kernel does not read."""
    z, bias, whole = views.c, views.bias, shapes.whole
    if z is not None:
        try:
            z = shapes.as_matrices(operands.broadcast(z, whole))
        except ValueError:
            raise ValueError(f"c has shape {z.shape}, which does not broadcast to the result's {whole}") from None
    if views.out is not None and views.out.shape != whole:
        raise ValueError(f"out has shape {views.out.shape}; the result has shape {whole}")
    if types.beta == 0:
        z = None
    if bias is not None:
        bias = _bias(bias, shapes, types.kind)
    if z is not None and all(whole):
        z = _kernel_ready(z, types.kind)
    return z, bias


def _factors(x: Operand, y: Operand, types: Types, shapes: Shapes) -> tuple[Operand, Operand, int, Any]:
    """Return (a as the kernel reads it, b as the kernel reads it, k, alpha)."""
    m, n, k, batch = shapes[:4]
    kinds = tuple(map(operands.named, types.inputs, types.inputs)) or (types.kind, types.kind)
    if k == 0 or types.alpha == 0:
        # The product has no terms: the kernel computes out = fma(beta, c, t) with t = alpha·0, and reads neither a nor
        # b. alpha = -1 makes t = -0, so that out is exactly beta·c, including the sign of zeros.
        alpha = types.kind.type(-1 if types.beta != 0 and types.kind.kind not in "biu" else 1)
        left, right = (*batch, m, 0), (*batch, 0, n)
        if isinstance(x, DeviceView) and isinstance(y, DeviceView):
            return operands.nothing_of(x, *left), operands.nothing_of(y, *right), 0, alpha
        return np.empty(left, kinds[0]), np.empty(right, kinds[1]), 0, alpha
    if all(shapes.whole):
        x, y = _kernel_ready(x, kinds[0]), _kernel_ready(y, kinds[1])
    return x, y, k, types.alpha


def _kernel_ready(array: Operand, dtype: DType) -> Operand:
    """`array` as an aligned array of `dtype` in native byte order, whose strides are multiples of the element size.

    Returns `array` itself if it already has these properties, or if it is on a device.
    """
    if isinstance(array, DeviceView):
        return array
    if array.dtype != dtype or not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype)
    elif math.gcd(dtype.itemsize, *array.strides) != dtype.itemsize:
        array = array.copy()
    return array


def common_dtype(given: Mapping[str, Operand | None], asked: DTypeLike | None, out: Operand | None) -> DType:
    """The dtype of the arithmetic and of the result: `asked`, or NumPy's promotion of the operands' dtypes.

    Raises TypeError if an operand or out has a dtype that does not fit.
    """
    if asked is not None:
        known = operands.bfloat16("dtype") if asked == "bfloat16" else asked
        try:
            asked = np.dtype(known)
        except TypeError as error:
            raise TypeError(f"dtype={asked!r} is not a dtype: {error}") from error
    present = []
    for name, operand in given.items():
        if operand is not None:
            present.append((name, operand.dtype, operand.dtype.num))
    kind = _common(tuple(present), asked, asked and asked.num)
    if out is not None and not np.can_cast(kind, out.dtype, "same_kind"):
        raise TypeError(f"out has dtype {out.dtype}, which cannot hold the result's {kind}")
    if isinstance(out, DeviceView) and out.dtype != kind:
        raise TypeError(f"out has dtype {out.dtype}; on a device it must be the result's {kind}")
    return kind


@lru_cache(256)
def _common(given: tuple[tuple[str, DType, int], ...], asked: DType | None, _: int | None) -> DType:
    """`common_dtype` of operands with these names, dtypes and type numbers.

    The type numbers (the last argument is that of `asked`) only distinguish entries of this function's cache: int64 and
    longlong are equal as dtypes, but their scalars have different types.
    """
    for name, dtype, _ in given:
        if not operands.is_number(dtype):
            raise TypeError(f"{name} has dtype {dtype}; it must be boolean, integer, real or complex")
    kind: DType
    if asked is None:
        try:
            # fp8 counts as bfloat16, as in PyTorch's scaled products.
            kind = np.result_type(*(operands.bfloat16("fp8") if own.name in FP8 else own for _, own, _ in given))
        except TypeError:  # such as bfloat16 and float16, or bfloat16 and int32
            types = ", ".join(f"{name} {dtype}" for name, dtype, _ in given)
            raise TypeError(f"NumPy has no common type for {types}; pass dtype=float32, say") from None
    else:
        kind = asked.newbyteorder("=")
        if not operands.is_number(kind) or kind.name in FP8:
            raise TypeError(
                f"a result cannot have dtype {kind}; pass a boolean, integer, real or complex dtype, not fp8"
            )
    for name, dtype, _ in given:
        if not np.can_cast(dtype, kind, "same_kind"):
            raise TypeError(f"{name} has dtype {dtype}, which cannot be cast to dtype={kind}; convert {name} first")
    return kind


@lru_cache(256)
def _inputs(a: DType, b: DType, kind: DType, backend: str | None) -> tuple[str, ...]:
    """Return (name of a's type, name of b's type) if a kernel reads these types and has results of the wider `kind`.

    Else return ().

    backend: the backend of the device that holds the operands, or None for operands in host memory. With a backend,
    only kernels of this backend count, because gemm does not convert operands on a device.
    """
    pair = a.name, b.name
    if pair not in INPUTS:
        return ()
    known = any(
        row.inputs == pair and row.multiplies(kind.name, pair) and backend in (None, row.backend) for row in KERNELS
    )
    return pair if known else ()


def scalar(name: str, value: Any, kind: DType) -> Any:
    """alpha or beta rounded to `kind`, as a NumPy scalar. `name` is for messages.

    Raises TypeError if `value` is not a number or cannot scale a product of `kind`, and ValueError if `value` does not
    fit `kind`.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value.__class__ is float and value in (0.0, 1.0) and kind.kind in "fc":  # a fast path for the usual values
        return kind.type(value)
    if not isinstance(value, numbers.Number | np.generic):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, complex | np.complexfloating) and kind.kind != "c":
        raise TypeError(f"{name} = {value} is complex, but the product is {kind}; pass dtype=complex128")
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


def _bias(bias: Operand, shapes: Shapes, kind: DType) -> Operand:
    """`bias` as a matrix with one row or one column. Raises TypeError or ValueError for a wrong dtype or shape."""
    m, n = shapes[:2]
    if not operands.is_number(bias.dtype) or not np.can_cast(bias.dtype, kind, "same_kind"):
        raise TypeError(f"bias has dtype {bias.dtype}, which cannot be cast to the product's {kind}; convert it first")
    given = bias.shape
    if bias.ndim == 1:
        bias = operands.expanded(bias, -1 if shapes.column else 0)
    if bias.shape not in ((1, n), (m, 1)):
        length = m if shapes.column else n
        raise ValueError(f"bias has shape {given}; for {m} × {n} results it must be ({length},), (1, {n}) or ({m}, 1)")
    _on_device_as(kind, "bias", bias)
    return _kernel_ready(bias, kind)


def transposes(name: str, trans: Trans) -> tuple[bool, bool]:
    """Return (whether the value `trans` of trans_a or trans_b exchanges the last two axes, whether it conjugates).

    Raises ValueError or TypeError if `trans` is no value of this option.
    """
    if isinstance(trans, str):
        if trans.upper() not in ("N", "T", "C"):
            raise ValueError(f'trans_{name} must be a bool, "N", "T" or "C", not {trans!r}')
        return trans.upper() != "N", trans.upper() == "C"
    if not isinstance(trans, bool | np.bool_):
        raise TypeError(f'trans_{name} must be a bool, "N", "T" or "C", not {type(trans).__name__}')
    return bool(trans), False


def _matrix(name: str, operand: Operand, trans: Trans, axis: int) -> tuple[Operand, bool]:
    """Return (`operand` as a stack of matrices, transposed as `trans` says; whether `operand` is a vector).

    A vector gets a new axis of length 1 at `axis` and is not transposed.
    """
    flip, conjugate = transposes(name, trans) if trans is not False else (False, False)
    if operand.ndim == 0:
        raise ValueError(f"{name} is a scalar; it must have one axis or more (alpha scales a product)")
    if conjugate and operand.dtype.kind == "c":
        operand = interop.conjugated(operand)
    if operand.ndim == 1:
        return operands.expanded(operand, axis), True
    return (operands.transposed(operand) if flip else operand), False


def _target(read: Given, shapes: Shapes, kind: DType, given: Given) -> tuple[Operand, bool, Callable[[], Any]]:
    """Return (the array that the kernel writes, whether it is the caller's result, Call.finish).

    The kernel writes directly to the caller's `out` if `_direct` allows it. Otherwise, for example if `out` overlaps an
    operand or the result needs a cast, the kernel writes to a temporary array, which is copied to `out` at the end.
    """
    out, x = read.out, read.a
    if out is not None and _direct(read, shapes, kind):
        return shapes.as_matrices(out), True, lambda: given.out
    made: Operand | None = None
    if isinstance(x, DeviceView):
        with delivering(x.device.key):
            made = registry.backend(x.device.backend).empty(shapes.whole, replace(x, dtype=kind))
    result: Operand = np.empty(shapes.whole, kind) if made is None else made
    target = shapes.as_matrices(result)
    if out is None:
        return target, True, partial(interop.like, result, *given[:3])

    def copied() -> Any:
        if not result.size:
            return given.out
        if isinstance(result, DeviceView):
            _copy_on_device(target, shapes.as_matrices(out))
        else:
            np.copyto(out, result, casting="same_kind")
        return given.out

    return target, False, copied


def _direct(read: Given, shapes: Shapes, kind: DType) -> bool:
    """Whether a kernel may write directly to `read.out` while it reads the other operands."""
    x, y, z, out, bias = read[:5]
    return (
        out.dtype == kind
        and out.dtype.isnative
        and operands.distinct(out)
        and not operands.overlap(out, x)
        and not operands.overlap(out, y)
        and (bias is None or not operands.overlap(out, bias))
        and (z is None or not operands.overlap(out, z) or operands.identical(shapes.as_matrices(out), z))
        and _kernel_ready(out, kind) is out
    )


def _copy_on_device(source: Any, target: Operand) -> None:
    """Copy `source` to `target` on a device, as a product without terms: k = 0, c = `source`, beta = 1.

    A product copies arrays with any strides on any device; no other copy code is needed. The catalog lists the
    simplest kernel of each dtype last. That kernel is named explicitly, so that no probe of other devices starts.
    """
    *batch, m, n = source.shape
    device, dtype = source.device, source.dtype.name
    rows = [row for row in KERNELS if (row.backend, row.dtype) == (device.backend, dtype)]
    rows = [row for row in rows if not candidates.unavailable(row, device)]
    row = ([row for row in rows if not row.inputs] or rows)[-1]
    a, b = (operands.nothing_of(source, *batch, *ends) for ends in ((m, 0), (0, n)))
    inputs = row.inputs  # the kernel reads no elements of a and b, so their types do not matter
    problem = Problem(dtype, m, n, 0, math.prod(batch), alpha="x", beta="1", device=device.key, inputs=inputs)
    execute.run(problem, "auto", row.name, (a, b, source, target, -1.0, 1.0, None))
