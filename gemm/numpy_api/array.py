"""`gemm.Array`: NumPy arrays whose products, including `@`, gemm computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from gemm.core import numpy_original
from gemm.core.problem import DeviceView
from gemm.frontend import interop
from gemm.numpy_api import products
from gemm.numpy_api.products import Options, attempt, inside

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
    """The module gemm.numpy_api.namespace. It imports this module, so gemm/__init__.py sets this attribute."""

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
                raise ValueError(f"NumPy {np.__version__} follows no version of the array API: 2.0 does")
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
        """The result of `product`, a function of `products`; NotImplemented if it is None or NumPy must compute it."""
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


_PRODUCTS = {getattr(np, name): product for name, product in products.PRODUCTS.items() if hasattr(np, name)}


def array(x: Any, **options: Any) -> Array:
    """`x` as a `gemm.Array`, whose products gemm computes with `options`. The result is a view if `x` is a host array.

    Args:
        x: array or array-like. If `x` is an Array, its options are kept, except those that `options` replaces.
        options: precision, reproducible, backend, kernel and dtype of `gemm`.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    products.only_products(options)
    if isinstance(x, Array):
        options = {**x._options, **options}
    view = interop.wrap(x, "x")
    if isinstance(view, DeviceView):
        raise TypeError(f"x lies on {view.device.key}; a gemm.Array is in host memory (gemm.gemm multiplies there)")
    made = view.view(Array)
    made._options = options
    return made
