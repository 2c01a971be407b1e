"""NumPy's products by gemm: what `gemm.use` and `gemm.Array` do for np.matmul, np.dot and the like.

A function here takes the options of the product, then what NumPy's takes. What its signature lacks (casting=, axes=,
order=, ...) and what gemm refuses is left to NumPy: `attempt` returns NotImplemented then, as the functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm.frontend import plan_cache
from gemm.frontend.api import at_once as gemm
from gemm.numpy_api import contractions, matrix_pairs, summation

Options = dict[str, Any]


class Frame:
    """One `with gemm.use(...)` that a thread or task is in.

    Attributes:
        options: its own. outer: the one around it. owner: what was entered. live: its block has not ended. Contexts are
            copied to tasks, which keep their frames: by this they see the end of a block, too.
    """

    __slots__ = ("live", "options", "outer", "owner")

    def __init__(self, options: Options, outer: Frame | None, owner: object) -> None:
        self.options, self.outer, self.owner, self.live = options, outer, owner, True


active: ContextVar[Frame | None] = ContextVar("gemm.use", default=None)
"""The innermost one, which may have ended."""


def inside() -> Options | None:
    """The options of the blocks of `gemm.use` that this context is in, the inner ones' first; None outside."""
    frame = active.get()
    if frame is None:
        return None
    if frame.outer is None:  # the short way
        return frame.options if frame.live else None
    found: Options | None = None
    while frame is not None:
        if frame.live:
            found = {**frame.options, **(found or {})}
        frame = frame.outer
    return found


def attempt(function: Callable[..., Any], options: Options, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """function(options, *args, **kwargs), or NotImplemented where NumPy's own has to do it.

    Raises TypeError or ValueError instead if the result was to be reproducible, which NumPy's is not.
    """
    try:
        return function(options, *args, **kwargs)
    except (TypeError, ValueError):  # gemm raises them before it writes anything
        if options.get("reproducible"):
            raise
        return NotImplemented


_ndarray = np.ndarray  # found sooner than by way of the module
_OURS = frozenset((_ndarray, list, tuple, str, int, float, complex, bool))


def _ours(*operands: Any) -> bool:
    """Whether no operand has a class that means more to NumPy than its numbers: no subclass, nobody else's array."""
    return _OURS.issuperset(map(type, operands))


_LAST_TWO = [(-2, -1)] * 3


def matmul(
    options: Options, x1: Any, x2: Any, out: Any = None, *, dtype: DTypeLike | None = None, axes: Any = None
) -> Any:
    if not (x1.__class__ is x2.__class__ is _ndarray or _ours(x1, x2)):
        return NotImplemented
    if out is dtype is axes is None:  # the short way
        return gemm(x1, x2, **options)
    if axes is not None and (axes != _LAST_TWO or min(np.ndim(x1), np.ndim(x2)) < 2):  # `@=` says so, and no 1-D
        return NotImplemented
    if dtype is not None:
        options = {**options, "dtype": dtype}
    if out.__class__ is tuple:
        (out,) = out
    return gemm(x1, x2, out=out, **options)


def dot(options: Options, a: Any, b: Any, out: Any = None) -> Any:
    if not _ours(a, b) or not (np.ndim(a) and np.ndim(b)):  # with a scalar it is no product of matrices
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
    plan_cache.settle()  # before ravel copies
    return gemm(np.ravel(a), np.ravel(b), trans_a="C", **options)


def vecdot(options: Options, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return contractions.vecdot(x1, x2, axis=axis, **options) if _ours(x1, x2) else NotImplemented


def tensordot(options: Options, a: Any, b: Any, axes: Any = 2) -> Any:
    if not _ours(a, b):
        return NotImplemented
    return np.asarray(contractions.tensordot(a, b, axes, **options))  # NumPy's is an array without axes, too


def einsum(options: Options, *operands: Any, out: Any = None, optimize: Any = True) -> Any:
    return summation.einsum(*operands, out=out, optimize=optimize, **options) if _ours(*operands) else NotImplemented


def only_products(options: Options) -> Options:
    """`options`, if they are such as `use` and `array` take, and name something. Raises what `gemm.gemm` would."""
    matrix_pairs.check({name: value for name, value in options.items() if name != "dtype"})
    nothing = np.empty((0, 0), bool)  # which any dtype can hold: the options alone are checked
    gemm(nothing, nothing, **options)
    return options
