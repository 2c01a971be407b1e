"""`gemm.use`: NumPy's products of a program go through gemm for a while."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from types import FunctionType, TracebackType
from typing import Any

import numpy as np

from gemm import functions, repeat
from gemm.arrays import Array, array
from gemm.functions import Frame, Options, active


def use(**options: Any) -> Using:
    """A context in which np.matmul, np.dot, np.inner, np.vdot, np.vecdot, np.tensordot and np.einsum go through gemm;
    so do matmul, tensordot, vecdot and multi_dot of np.linalg.

        with gemm.use(backend="opencl"):
            c = np.matmul(a, b)

    It holds for the thread or asyncio task that entered it, and for tasks that it starts there, as long as somebody is
    inside; other threads compute by NumPy. Contexts nest: the inner one's options win, the others' hold on. As a
    decorator it holds while a function, or a coroutine, runs.

    NumPy's own function computes what gemm does not: other dtypes than numbers, arguments such as casting=, order=,
    axes= or where=, products with scalars, other classes than NumPy's array. With reproducible=True what gemm
    refuses is an error instead: a dtype or an argument that it does not take.

    The functions of the module numpy are replaced, so that these are not reached, and compute by NumPy: `@` between
    NumPy's arrays and the method dot (make one of them a `gemm.array`), functions imported before
    (`from numpy import dot`), and code in C. np.matmul is a ufunc no longer: it has the attributes (np.matmul.reduce,
    .signature, ...; the ufunc is `np.matmul.__wrapped__`), but isinstance(np.matmul, np.ufunc) is False, and
    `ufunc is np.matmul` too, in the `__array_ufunc__` of others; nor can a function imported before be pickled
    meanwhile. No product by gemm warns of overflow.

    Args:
        options: precision, reproducible, backend, kernel and dtype of `gemm`.

    Raises:
        TypeError, ValueError: an option is wrong. BackendUnavailable, from a product: what it names cannot run here.
    """
    return Using(functions.only_products(options))


class Using:
    """What `use` returns: a context to enter any number of times, from any number of threads, and a decorator."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __enter__(self) -> None:
        outer = active.get()
        options = self._options
        if outer is not None:
            options = functions.only_products({**outer.options, **options})
        _entered()
        active.set(Frame(options, outer, self))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frame = active.get()
        if frame is not None and frame.owner is self:  # else this is another context: a generator was closed late
            active.set(frame.outer)
        _left()

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
    "matmul": functions.matmul, "dot": functions.dot, "inner": functions.inner, "vdot": functions.vdot,
    "vecdot": functions.vecdot, "tensordot": functions.tensordot, "einsum": functions.einsum, "multi_dot": _multi_dot,
}  # fmt: skip
_PLACES = [(module, name) for module in (np, np.linalg) for name in _PRODUCTS if hasattr(module, name)]

_lock = threading.Lock()
_users = 0
_saved: list[tuple[Any, str, Any, Any]] = []
"""(module, name, NumPy's function, ours) while there are users."""


def _entered() -> None:
    """One user more: the first one puts our functions in their places."""
    global _users
    with _lock:
        if _users == 0:
            for module, name in _PLACES:
                own = getattr(module, name)
                _saved.append((module, name, own, _replacement(own, _PRODUCTS[name])))
                setattr(module, name, _saved[-1][-1])
        _users += 1


def _left() -> None:
    """One user less: the last one puts NumPy's functions back, but where somebody has put another since."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            for module, name, own, ours in _saved:
                if getattr(module, name) is ours:
                    setattr(module, name, own)
            _saved.clear()


@lru_cache(64)
def _replacement(own: Any, product: Callable[..., Any]) -> Any:
    """A function that goes through `product` inside `use` and else is `own`, with whose attributes it comes."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        frame = active.get()
        if frame is not None:
            try:  # as functions.attempt, whose call would take a tenth of the time of a small product
                result = product(frame.options, *args, **kwargs)
            except (TypeError, ValueError):
                if frame.options.get("reproducible"):
                    raise
            else:
                if result is not NotImplemented:
                    return result
            repeat.settle()
        return own(*args, **kwargs)

    wraps(own)(replaced)
    for name in set(dir(own)) - set(dir(FunctionType)):
        if not name.startswith("__"):
            setattr(replaced, name, getattr(own, name))
    return replaced
