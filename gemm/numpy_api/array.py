"""`gemm.Array`, whose products gemm computes, and the products behind `gemm.use` and `gemm.Array`.

Each product function, such as `matmul`, takes the options of the product, then the arguments of NumPy's function. NumPy
handles arguments that a function here does not have (casting=, axes=, order=, ...) and operands that gemm does not
support. In these cases `attempt` and the functions return NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm.core import numpy_original
from gemm.core.problem import DeviceView
from gemm.frontend import interop, plan_cache
from gemm.frontend.api import at_once as gemm
from gemm.frontend.arguments import Product, Unpack
from gemm.numpy_api import einsum as sums
from gemm.numpy_api import tensordot as contractions

Options = dict[str, Any]


@dataclass(slots=True, eq=False)
class Frame:
    """One active `with gemm.use(...)` block of a thread or task.

    Attributes:
        options: the options of this block.
        outer: the frame of the enclosing block, or None.
        owner: the object that the `with` statement entered (a `Using`).
        live: False after the block has ended. A new asyncio task gets a copy of the context, which has the same Frame
            objects. A block that ends in one task therefore ends in the other task as well.
    """

    options: Options
    outer: Frame | None
    owner: object
    live: bool = True


active: ContextVar[Frame | None] = ContextVar("gemm.use", default=None)
"""The frame of the innermost block, which may have ended already; None if there was no block."""


def inside() -> Options | None:
    """The combined options of all active `gemm.use` blocks of this context; None outside of all blocks.

    An inner block's options override those of the outer blocks.
    """
    frame = active.get()
    if frame is None:
        return None
    if frame.outer is None:  # a single block, the common case
        return frame.options if frame.live else None
    found: Options | None = None
    while frame is not None:
        if frame.live:
            found = {**frame.options, **(found or {})}
        frame = frame.outer
    return found


def attempt(function: Callable[..., Any], options: Options, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """function(options, *args, **kwargs), or NotImplemented if NumPy must compute the result.

    With reproducible=True, the function's TypeError or ValueError is raised instead, because NumPy's results are not
    reproducible.
    """
    try:
        return function(options, *args, **kwargs)
    except (TypeError, ValueError):  # gemm raises these errors before it writes to memory
        if options.get("reproducible"):
            raise
        return NotImplemented


_ndarray = np.ndarray  # a module variable is found faster than the attribute of numpy
_OURS = frozenset((_ndarray, list, tuple, str, int, float, complex, bool))


def _ours(*operands: Any) -> bool:
    """Whether all operands are plain NumPy arrays, lists, tuples, strings or numbers: no subclasses, no arrays of other
    libraries.
    """
    return _OURS.issuperset(map(type, operands))


_LAST_TWO = [(-2, -1)] * 3


def matmul(
    options: Options, x1: Any, x2: Any, out: Any = None, *, dtype: DTypeLike | None = None, axes: Any = None
) -> Any:
    if not (x1.__class__ is x2.__class__ is _ndarray or _ours(x1, x2)):
        return NotImplemented
    if out is dtype is axes is None:  # the common case
        return gemm(x1, x2, **options)
    # `@=` passes axes=_LAST_TWO. This function accepts no other axes=, and only if both operands have two or more axes.
    if axes is not None and (axes != _LAST_TWO or min(np.ndim(x1), np.ndim(x2)) < 2):
        return NotImplemented
    if dtype is not None:
        options = {**options, "dtype": dtype}
    if out.__class__ is tuple:
        (out,) = out
    return gemm(x1, x2, out=out, **options)


def dot(options: Options, a: Any, b: Any, out: Any = None) -> Any:
    if not _ours(a, b) or not (np.ndim(a) and np.ndim(b)):  # a product with a scalar is not a matrix product
        return NotImplemented
    if np.ndim(b) <= 2:
        return gemm(a, b, out=out, **options)
    return NotImplemented if out is not None else contractions.tensordot(a, b, (-1, -2), **options)


def inner(options: Options, a: Any, b: Any, /) -> Any:
    if not _ours(a, b) or not (np.ndim(a) and np.ndim(b)):
        return NotImplemented
    return gemm(a, b, trans_b=True, **options) if np.ndim(b) <= 2 else contractions.tensordot(a, b, (-1, -1), **options)


def vdot(options: Options, a: Any, b: Any, /) -> Any:
    if not _ours(a, b):
        return NotImplemented
    plan_cache.settle()  # ravel may copy an operand that a pending product has yet to write
    return gemm(np.ravel(a), np.ravel(b), trans_a="C", **options)


def vecdot(options: Options, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return contractions.vecdot(x1, x2, axis=axis, **options) if _ours(x1, x2) else NotImplemented


def tensordot(options: Options, a: Any, b: Any, axes: Any = 2) -> Any:
    if not _ours(a, b):
        return NotImplemented
    return np.asarray(contractions.tensordot(a, b, axes, **options))  # NumPy returns an array even without axes


def einsum(options: Options, *operands: Any, out: Any = None, optimize: Any = True) -> Any:
    return sums.einsum(*operands, out=out, optimize=optimize, **options) if _ours(*operands) else NotImplemented


PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": matmul, "dot": dot, "inner": inner, "vdot": vdot, "vecdot": vecdot, "tensordot": tensordot,
    "einsum": einsum,
}  # fmt: skip
"""{name of a NumPy function: the function of this module that computes the same with gemm}."""


def only_products(options: Options) -> Options:
    """Check the options of `use` and `array`, and return them. Raises the errors of `gemm.gemm`."""
    contractions.check(options)
    nothing = np.empty((0, 0), bool)  # an empty boolean array fits any dtype, so only the options can be wrong
    gemm(nothing, nothing, **options)
    return options


_NONE: Options = {}


class Array(np.ndarray):
    """A NumPy array whose products gemm computes; create one with `gemm.array`.

    gemm computes `@`, `@=`, the method dot, np.matmul, np.dot, np.inner, np.vdot, np.vecdot, np.tensordot, np.einsum,
    and NumPy functions that call one of them, such as np.linalg.multi_dot. NumPy does everything else. Views, copies,
    unpickled copies and the results of NumPy functions are Arrays with the same options. A result without axes is a
    scalar. A product of two Arrays uses the options of both; if both set an option, the first operand's value counts.
    An Array's options take precedence over the options of `gemm.use`.
    """

    _options: Options
    _namespace: ModuleType
    """The module gemm.numpy_api.namespace, which imports this module. gemm/__init__.py therefore sets the attribute."""

    def __array_finalize__(self, obj: Any) -> None:
        self._options = getattr(obj, "_options", _NONE)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that were passed to `gemm.array`."""
        return MappingProxyType(self._options)

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        bare = Bare(inputs, kwargs)
        result = bare.attempt(_PRODUCTS.get(ufunc) if method == "__call__" else None)
        if result is NotImplemented:
            result = super().__array_ufunc__(ufunc, method, *bare.args, **bare.kwargs)
        return bare.back(result)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if product := _PRODUCTS.get(func):
            bare = Bare(args, kwargs)
            result = bare.attempt(product)
            if result is not NotImplemented:
                return bare.back(result)
        result = super().__array_function__(func, types, args, kwargs)
        if result.__class__ is not np.ndarray or any(result is x for x in (*args, *kwargs.values())):
            return result
        # Functions such as np.stack return a plain ndarray even for Arrays.
        return _made(result, self._options)

    def dot(self, b: Any, out: Any = None) -> Any:
        """np.dot(self, b, out)."""
        return numpy_original.dot(self, b, out)

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        function, arguments, state = reduced
        return function, arguments, (state, self._options)

    def __setstate__(self, state: Any) -> None:
        own, self._options = state
        super().__setstate__(own)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """`gemm.numpy_api.namespace`: the functions of the array API, with products computed by gemm.

        Raises ValueError for a version of the standard that NumPy does not support.
        """
        if api_version is not None:
            if not hasattr(np.ndarray, "__array_namespace__"):
                raise ValueError(f"NumPy {np.__version__} does not follow the array API; NumPy 2.0 and newer do")
            numpys: Any = super()
            # NumPy raises an error for a version that it does not support.
            numpys.__array_namespace__(api_version=api_version)
        return self._namespace


class Bare:
    """The arguments of one call, with Arrays as plain NumPy arrays. `back` converts the result for the caller.

    Attributes:
        args, kwargs: the converted arguments.
        options: the combined options of the arguments.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.options = _NONE
        self._seen: dict[int, tuple[Any, Any]] = {}  # {id of a plain array: (plain array, original argument)}
        self.args = [self._bare(x) for x in args]
        self.kwargs = {name: self._bare(x) for name, x in kwargs.items()}

    def _bare(self, argument: Any) -> Any:
        if argument.__class__ is tuple:
            return tuple(map(self._bare, argument))
        if not isinstance(argument, np.ndarray):
            return argument
        array = argument
        if isinstance(argument, Array):
            array = argument.view(np.ndarray)
            if argument._options is not self.options:
                self.options = {**argument._options, **self.options}
        self._seen[id(array)] = array, argument
        return array

    def around(self) -> Options:
        """The options of the arguments together with those of `gemm.use`. Options of arguments take precedence."""
        return {**(inside() or _NONE), **self.options}

    def attempt(self, product: Callable[..., Any] | None) -> Any:
        """The result of `product`, which is a product function or None.

        NotImplemented if `product` is None, or if NumPy must compute the result.
        """
        return attempt(product, self.around(), self.args, self.kwargs) if product else NotImplemented

    def back(self, result: Any) -> Any:
        """`result` for the caller: an Array, a scalar, or the original argument into which the result was written."""
        if result.__class__ is tuple:
            return tuple(map(self.back, result))
        if id(result) in self._seen:
            return self._seen[id(result)][1]
        return _made(result, self.options) if result.__class__ is np.ndarray else result


def _made(array: np.ndarray, options: Options) -> Any:
    """`array` as an Array with these options, or as a scalar if `array` has no axes."""
    if not array.ndim:
        return array[()]
    made = array.view(Array)
    made._options = options
    return made


_PRODUCTS = {getattr(np, name): product for name, product in PRODUCTS.items() if hasattr(np, name)}


def array(x: Any, **options: Unpack[Product]) -> Array:
    """`x` as a `gemm.Array`, whose products gemm computes with `options`. The result is a view if `x` is a host array.

    Args:
        x: array or array-like. If `x` is an Array, its options are kept, except those that `options` replaces.
        options: precision, reproducible, backend, kernel and dtype of `gemm`.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    asked: Options = {**options}
    only_products(asked)
    view = interop.wrap(x, "x")
    if isinstance(view, DeviceView):
        raise TypeError(f"x is on {view.device.key}, a gemm.Array in host memory; gemm.gemm multiplies x on its device")
    made = view.view(Array)
    made._options = {**x._options, **asked} if isinstance(x, Array) else asked
    return made
