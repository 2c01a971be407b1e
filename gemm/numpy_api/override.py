"""`gemm.use`: inside a block, gemm computes the products that a program calls through NumPy."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.linalg import multi_dot

from gemm.frontend import plan_cache
from gemm.frontend.arguments import Product, Unpack
from gemm.numpy_api.array import PRODUCTS, Array, Frame, Options, active, array, inside, only_products

Function = TypeVar("Function", bound=Callable[..., Any])


def use(**options: Unpack[Product]) -> Using:
    """A context in which gemm computes NumPy's products.

        with gemm.use(backend="opencl"):
            c = np.matmul(a, b)

    gemm replaces np.matmul, np.dot, np.inner, np.vdot, np.vecdot, np.tensordot and np.einsum, and np.linalg's matmul,
    tensordot, vecdot and multi_dot.

    The context applies to the thread or asyncio task that enters it, and to tasks that are started inside, until the
    block ends. Other threads and tasks use NumPy's own functions. Contexts nest: an option of the inner context takes
    precedence, and the other options of the outer context still apply. The contexts may end in any order; each removes
    only its own options. As a decorator, the context applies while the decorated function or coroutine runs.

    NumPy's own function computes what gemm does not support: dtypes that are not numbers, arguments such as casting=,
    order=, axes= or where=, products with scalars, and classes other than NumPy's array. With reproducible=True, a
    dtype or an argument that gemm does not support is an error instead.

    Inside the context, a lookup of these names in the modules numpy and numpy.linalg returns gemm's functions. Products
    without such a lookup still use NumPy: `@` between NumPy's arrays and the method dot (use a `gemm.array` for one
    operand), functions imported earlier (`from numpy import dot`), and C code. gemm's products do not warn of overflow.

    Inside the context only, np.matmul is not a ufunc: isinstance(np.matmul, np.ufunc) is False, and an np.matmul that
    was imported earlier cannot be pickled. np.matmul keeps the attributes of the ufunc (np.matmul.reduce, .signature,
    ...), and the ufunc itself is `np.matmul.__wrapped__`.

    If an `__array_ufunc__` or `__array_function__` method looks up np.matmul, it gets NumPy's own function. Such
    methods compare np.matmul with the function for which NumPy called them, and gemm's function would differ. dask
    therefore computes `@` of dask arrays itself, even inside the context.

    Args:
        options: precision, reproducible, backend, kernel and dtype of `gemm`.

    Raises:
        TypeError, ValueError: an option is wrong.
        BackendUnavailable: raised by a product if the backend or kernel that was named cannot run here.
    """
    return Using(only_products({**options}))


class Using:
    """The result of `use`: a decorator, and a context that any number of threads may enter any number of times."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __enter__(self) -> None:
        outer = _live(active.get())
        around = inside()
        if around is not None:
            only_products({**around, **self._options})
        for module, kind in _CLASSES:
            if module.__class__ is not kind:
                module.__class__ = kind
        active.set(Frame(self._options, outer, self))

    def __exit__(self, *_: object) -> None:
        """End the innermost block of this object that is active in the current context.

        If there is no such block, nothing happens. Then the call either comes from another context (a generator was
        closed late), or there were more exits than entries.
        """
        frame = active.get()
        while frame is not None and not (frame.live and frame.owner is self):
            frame = frame.outer
        if frame is None:
            return
        frame.live = False
        active.set(_live(active.get()))

    def __call__(self, function: Function) -> Function:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator: the decorator would also affect the generator's caller; write "
                "`with gemm.use(...)` inside the generator"
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def computing(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)
        else:

            @wraps(function)
            def computing(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return cast(Function, computing)


def _live(frame: Frame | None) -> Frame | None:
    """The innermost frame whose block has not ended, among `frame` and the frames around `frame`; or None.

    Blocks may have ended in another context, so any of these frames may belong to a block that has ended.
    """
    while frame is not None and not frame.live:
        frame = frame.outer
    return frame


def _multi_dot(options: Options, arrays: Any, *, out: Any = None) -> Any:
    """np.linalg.multi_dot on `gemm.Array`s, so that gemm computes its products."""
    given = list(arrays)
    if any(x.__class__ is not np.ndarray for x in given):
        return NotImplemented
    result = multi_dot([array(x, **options) for x in given], out=out)
    return result.view(np.ndarray) if isinstance(result, Array) else result


_PRODUCTS = {**PRODUCTS, "multi_dot": _multi_dot}


def _replacement(own: Any, product: Callable[..., Any]) -> Any:
    """Return a function that calls `product` inside `use`, and `own`, which is NumPy's function, outside.

    Inside `use`, it also calls `own` if gemm does not support the arguments. It has the attributes of `own`.
    """

    def replaced(*args: Any, **kwargs: Any) -> Any:
        options = inside()
        if options is not None:
            # This code repeats `attempt`: a call of attempt would take a tenth of the time of a small product.
            try:
                result = product(options, *args, **kwargs)
            except (TypeError, ValueError):
                if options.get("reproducible"):
                    raise
            else:
                if result is not NotImplemented:
                    return result
            plan_cache.settle()
        return own(*args, **kwargs)

    wraps(own)(replaced)
    for name in set(dir(own)) - set(dir(FunctionType)):
        if not name.startswith("__"):
            setattr(replaced, name, getattr(own, name))
    return replaced


class _Patched(ModuleType):
    """The class of the modules numpy and numpy.linalg after the first entry into `use`.

    The modules' own attributes stay unchanged. Each access to a name in _PRODUCTS returns a function that depends on
    the current context. Therefore other threads are not affected, and `with` blocks may end in any order.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)  # picklers recognise a module by its exact class


def _replaced(name: str, original: Any, ours: Any) -> property:
    """The property `name` of a _Patched class: `ours` inside `use`, else the object that the module contains.

    If a program has replaced `original` in the module, the property is the program's object inside `use` as well.
    """

    def stored(module: ModuleType) -> Any:
        try:
            return module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name) from None

    def read(module: ModuleType) -> Any:
        found = stored(module)
        if active.get() is None or found is not original or inside() is None:
            return found
        return original if sys._getframe(1).f_code.co_name in _PROTOCOLS else ours

    def write(module: ModuleType, value: Any) -> None:
        # Code inside `use` that reads this name gets `ours`, and may later assign `ours` to the name. The module must
        # then contain `original`.
        module.__dict__[name] = original if value is ours else value

    def delete(module: ModuleType) -> None:
        stored(module)
        del module.__dict__[name]

    return property(read, write, delete)


_PROTOCOLS = ("__array_ufunc__", "__array_function__")
"""Methods that get NumPy's own functions even inside `use`; the docstring of `use` says why."""


def _patched(module: ModuleType) -> type[ModuleType]:
    """Create the subclass of _Patched for numpy or numpy.linalg, with a property for each product of the module."""
    originals = {name: getattr(module, name) for name in _PRODUCTS if hasattr(module, name)}
    names = {name: _replaced(name, own, _replacement(own, _PRODUCTS[name])) for name, own in originals.items()}
    return type(_Patched.__name__, (_Patched,), names)


_CLASSES = [(module, _patched(module)) for module in (np, np.linalg)]
