"""The products behind `gemm.use` and `gemm.Array`: np.matmul, np.dot and the like, computed by gemm.

Each function takes the options of the product, then the arguments of NumPy's function. NumPy handles arguments that a
function here does not have (casting=, axes=, order=, ...) and operands that gemm does not support. In these cases
`attempt` and the functions return NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm.frontend import plan_cache
from gemm.frontend.api import at_once as gemm
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
        live: False after the block has ended. A new asyncio task gets a copy of the context, with the same Frame
            objects, so a block that ends in one task is over in the other task as well.
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
    plan_cache.settle()  # ravel may copy an operand, so pending products must be written to it first
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
    contractions.check({name: value for name, value in options.items() if name != "dtype"})
    nothing = np.empty((0, 0), bool)  # an empty boolean array fits any dtype, so only the options can be wrong
    gemm(nothing, nothing, **options)
    return options
