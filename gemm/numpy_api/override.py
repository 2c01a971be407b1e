"""`gemm.use`: NumPy's products of a program go through gemm for a while."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType, ModuleType, TracebackType
from typing import Any

import numpy as np

from gemm.frontend import plan_cache
from gemm.numpy_api import products
from gemm.numpy_api.array import Array, array
from gemm.numpy_api.products import Frame, Options, active


def use(**options: Any) -> Using:
    """A context in which np.matmul, np.dot, np.inner, np.vdot, np.vecdot, np.tensordot and np.einsum go through gemm;
    so do matmul, tensordot, vecdot and multi_dot of np.linalg.

        with gemm.use(backend="opencl"):
            c = np.matmul(a, b)

    It holds for the thread or asyncio task that entered it, and for tasks that it starts there, until the block ends;
    other threads and tasks compute by NumPy. Contexts nest: the inner one's options win, the others' hold on, and
    whichever ends first takes its own options with it. As a decorator it holds while a function, or a coroutine, runs.

    NumPy's own function computes what gemm does not: other dtypes than numbers, arguments such as casting=, order=,
    axes= or where=, products with scalars, other classes than NumPy's array. With reproducible=True what gemm
    refuses is an error instead: a dtype or an argument that it does not take.

    The modules numpy and numpy.linalg answer with gemm's functions to whoever asks them inside. So these are not
    reached, and compute by NumPy: `@` between NumPy's arrays and the method dot (make one of them a `gemm.array`),
    functions imported before (`from numpy import dot`), and code in C. Inside, and nowhere else, np.matmul is no ufunc:
    it has the attributes (np.matmul.reduce, .signature, ...; the ufunc is `np.matmul.__wrapped__`), but
    isinstance(np.matmul, np.ufunc) is False, and a function imported before cannot be pickled. An `__array_ufunc__` or
    `__array_function__` that asks for np.matmul, to compare it with what it is given, gets NumPy's own: `@` with dask's
    arrays is dask's, inside too. No product by gemm warns of overflow.

    Args:
        options: precision, reproducible, backend, kernel and dtype of `gemm`.

    Raises:
        TypeError, ValueError: an option is wrong. BackendUnavailable, from a product: what it names cannot run here.
    """
    return Using(products.only_products(options))


class Using:
    """What `use` returns: a context to enter any number of times, from any number of threads, and a decorator."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __enter__(self) -> None:
        outer = active.get()
        while outer is not None and not outer.live:  # ended elsewhere
            outer = outer.outer
        active.set(outer)
        around = products.inside()
        if around is not None:
            products.only_products({**around, **self._options})
        _install()
        active.set(Frame(self._options, outer, self))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The innermost block of this one that the context is in ends.

        Without one nothing does: this is another context (a generator was closed late), or one exit too many.
        """
        frame = active.get()
        while frame is not None and not (frame.live and frame.owner is self):
            frame = frame.outer
        if frame is None:
            return
        frame.live = False
        inner = active.get()
        while inner is not None and not inner.live:
            inner = inner.outer
        active.set(inner)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator, whose caller would be inside as well; write `with` within it"
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

        return computing


def _multi_dot(options: Options, arrays: Any, *, out: Any = None) -> Any:
    """np.linalg.multi_dot, whose products go through gemm as those of gemm.Array."""
    given = list(arrays)
    if any(x.__class__ is not np.ndarray for x in given):
        return NotImplemented
    result = _own["multi_dot"]([array(x, **options) for x in given], out=out)
    return result.view(np.ndarray) if isinstance(result, Array) else result


_own = {"multi_dot": np.linalg.multi_dot}
_PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": products.matmul, "dot": products.dot, "inner": products.inner, "vdot": products.vdot,
    "vecdot": products.vecdot, "tensordot": products.tensordot, "einsum": products.einsum, "multi_dot": _multi_dot,
}  # fmt: skip


def _replacement(own: Any, product: Callable[..., Any]) -> Any:
    """A function that goes through `product` inside `use` and else is `own`, with whose attributes it comes."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        options = products.inside()
        if options is not None:
            try:  # as functions.attempt, whose call would take a tenth of the time of a small product
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


class _Answering(ModuleType):
    """The class of numpy and numpy.linalg, once somebody has entered `use`.

    What the modules hold is not touched. Which function of _PRODUCTS they answer with depends on the context that asks,
    so that no thread, and no block that ends in a wrong order, can change another's.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)  # picklers of modules know them by their exact class


def _answer(name: str, own: Any, ours: Any) -> property:
    """An attribute of _Answering: `ours` inside `use`, where the module still holds `own`."""

    def held(module: ModuleType) -> Any:
        try:
            return module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name) from None

    def asked(module: ModuleType) -> Any:
        found = held(module)
        if active.get() is None or found is not own or products.inside() is None:
            return found
        return own if sys._getframe(1).f_code.co_name in _PROTOCOLS else ours

    def put(module: ModuleType, value: Any) -> None:
        module.__dict__[name] = own if value is ours else value  # who asked inside may give back what he was given

    def drop(module: ModuleType) -> None:
        held(module)
        del module.__dict__[name]

    return property(asked, put, drop)


_PROTOCOLS = ("__array_ufunc__", "__array_function__")


def _answering(module: ModuleType) -> type[ModuleType]:
    """The class for a module."""
    own = {name: getattr(module, name) for name in _PRODUCTS if hasattr(module, name)}
    answers = {name: _answer(name, each, _replacement(each, _PRODUCTS[name])) for name, each in own.items()}
    return type(_Answering.__name__, (_Answering,), answers)


_CLASSES = [(module, _answering(module)) for module in (np, np.linalg)]


def _install() -> None:
    """Give numpy and numpy.linalg their classes, if they have not yet."""
    for module, kind in _CLASSES:
        if module.__class__ is not kind:
            module.__class__ = kind
