"""Repeated products: after the first one of a kind the checks in Python are skipped.

A small product takes less time than its arguments take to check. So each set of options has a Memo (see
csrc/python/memo.c). It knows the signatures of operands (dtype, shapes, strides) for which `gemm.frontend.call` and
`gemm.execute` ended in a native CPU plan, and runs them again by itself; `gemm.gemm` is a function in C that asks it
(front.c). What it does not know, or must not repeat (overlapping operands, subclasses, read-only outputs, other
dtypes), takes the long way, whose result is the same. Products of device arrays have Replays, which know launches whose
commands only need other buffers. To both, alpha, beta and the bias are arguments; only whether alpha and beta are 0 is
part of a kind.

What is known is of an era (`since`), which ends when a kernel or device fails, say. Nobody repeats a product that was
chosen in an era that has ended, or learns it, for it may have been at work meanwhile.
"""

from __future__ import annotations

import importlib
import inspect
import numbers
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from gemm.core import epilogue, operands
from gemm.core.errors import KernelFailed, delivering
from gemm.core.plan import Plan
from gemm.core.problem import Device, DeviceView, Problem
from gemm.execute.delivery import launcher
from gemm.frontend.arguments import DEFAULTS
from gemm.frontend.call import Call, scalar
from gemm.select import verification

Function = TypeVar("Function", bound=Callable[..., Any])
Operands = tuple[Any, Any, Any, Any, Any, Any, Any]
"""A product's a, b, c, out, bias, alpha and beta: a gemm.frontend.arguments.Given, or the same before it is one."""

OPTIONS, KINDS = 64, 4096
"""How many sets of options are remembered, and how many kinds of products each; of more, some give way by chance."""

memos: dict[object, Any] = {}
"""{options: Memo}, for `gemm.gemm`."""


def forget() -> None:
    """Let no product be repeated that was learned before, or that is being computed."""
    _end()
    replays.clear()
    memos.clear()


verification.repeating.append(forget)


class Known(NamedTuple):
    """A product of device arrays that can be repeated.

    Attributes:
        replay: a launch (see gemm.core.backend.Launch) of the caller's arrays; it returns `out`, or for None a new
            array, or None where the long way it is.
        dtype: of the product. alpha: what is launched for products of no terms, whatever the caller's is.
        problem, device: what it computed, and where.
    """

    replay: Callable[..., Any]
    dtype: Any
    alpha: Any
    problem: Problem
    device: Device

    def scales(self, alpha: Any, beta: Any) -> tuple[Any, Any] | None:
        """alpha and beta as they are launched; None: the long way tells what is wrong with them, or what they do."""
        try:
            found = _rounded(alpha, beta, self.dtype)
        except (TypeError, ValueError):
            return None
        return found if found is None or self.problem.k else (self.alpha, found[1])


@lru_cache(maxsize=256, typed=True)
def _rounded(alpha: Any, beta: Any, dtype: Any) -> tuple[Any, Any] | None:
    """Both rounded to `dtype`, which takes as long as a small launch; None: too small a number became 0."""
    x, y = scalar("alpha", alpha, dtype), scalar("beta", beta, dtype)
    return None if (x == 0) != (alpha == 0) or (y == 0) != (beta == 0) else (x.item(), y.item())


class Replays(threading.local):
    """Products of device arrays that can be repeated, each thread's own: a kernel's arguments are no thread's alone."""

    def __init__(self) -> None:
        self._array: Any = None  # the class of the arrays
        self._signature: Any = None
        self._known: dict[object, Known] = {}
        self._memo: Any = None  # a native one, for libraries that it can read
        self._era: Any = None

    def run(self, given: Operands) -> Any:
        """The product of operands like others before, or None; b is None where all have the same prepared one."""
        a, b, c, out, bias, alpha, beta = given
        if bias is None and self._memo is not None and self._era is since():
            result = self._memo.run(a, b, c, out, alpha, beta)
            if result is not None:
                return result
        known, scales = self.known(given)
        if known is None:
            return None
        try:
            return known.replay(a, b, c, out, *scales, *(() if bias is None else (bias,)))
        except KernelFailed as error:
            if not error.spoilt:
                return None  # the long way meets the same error, and knows what to do
            with delivering("a repeated product"):
                raise

    def known(self, given: Operands) -> tuple[Known, tuple[Any, Any]] | tuple[None, tuple[()]]:
        """What is known of a product of arrays like others before, with its alpha and beta as they are launched."""
        found = None
        if self._era is since() and all(x is None or x.__class__ is self._array for x in given[:5]):
            found = self._known.get(self._key(given))
        scales = None if found is None else found.scales(*given[5:])
        return (None, ()) if found is None or scales is None else (found, scales)

    def _key(self, given: Operands) -> object:
        """What a product is known by; None: it cannot be."""
        a, b, c, out, bias, *scales = given
        if not all(isinstance(x, numbers.Number) for x in scales):
            return None
        signature = self._signature(a, b, c, out, *(() if bias is None else (bias,)))
        return None if signature is None else (signature, *(bool(x == 0) for x in scales))

    def learn(self, began: object, launch: Any, call: Call, given: Operands) -> None:
        """Know again what `launch` has just done for the caller's arrays, if it can be repeated.

        began: `since()` before it was chosen.
        """
        if not call.direct or not call.shape or not isinstance(call.out, DeviceView):
            return
        a, b, c, out, bias, alpha, beta = given
        read = None if call.c is None else c
        replay = self._replay(launch, (a, b, read, call.out.owner, *(() if bias is None else (bias,))))
        if replay is None:
            return
        if self._era is not began:
            self._known.clear()
            self._array, self._memo, self._era = None, None, began
        if a.__class__ is not self._array:  # a native memo is for arrays of one class
            self._array, self._memo = a.__class__, None
        self._signature = launch.signature
        key = self._key(given)
        if key is None:
            return
        known = Known(replay, call.out.dtype, call.alpha, call.problem, call.out.device)
        if known.scales(alpha, beta) is None:
            return
        native = call.problem.k > 0 or alpha == 0  # what a native memo launches of k = 0 would be the caller's alpha
        if native and hasattr(replay, "taught") and bias is None:
            self._memo = replay.taught(self._memo, a, b, c, out, alpha, beta, call.alpha, _rounds(call), KINDS)
        if len(self._known) >= KINDS and key not in self._known:
            del self._known[next(iter(self._known))]
        self._known[key] = known

    @staticmethod
    def _replay(launch: Any, arrays: tuple[Any, ...]) -> Any:
        """What repeats a launch of the caller's arrays; None: nothing can."""
        if len({x.__class__ for x in arrays if x is not None}) > 1:
            return None  # which no replay can read
        try:
            return launch.replay(*arrays)
        except KernelFailed:  # this product is delivered; what is wrong shows in the next one
            return None


replays: dict[object, Replays] = {}
"""{options: Replays}, for `gemm.gemm`."""


def again(options: object, given: Operands) -> Any:
    """The product of device arrays like others before, or None."""
    try:
        known = replays.get(options)
    except TypeError:  # an option without a hash
        return None
    return None if known is None else known.run(given)


@cache
def _native() -> tuple[Any, int, int, int] | None:
    """gemm._memo, and where the engine has gemm_run, gemm_run_many and gemm_share; None where they were not built."""
    try:
        engine, memo = (importlib.import_module(name) for name in ("gemm._cpu", "gemm._memo"))
    except ImportError:
        return None
    run, many, share = (
        int(engine.ffi.cast("uintptr_t", engine.ffi.addressof(engine.lib, name)))
        for name in ("gemm_run", "gemm_run_many", "gemm_share")
    )
    return memo, run, many, share


class _Era:
    """What ends when it is forgotten: as gemm._memo has it, where that was not built."""

    def __init__(self) -> None:
        self._now: object = object()

    def since(self) -> object:
        return self._now

    def forget(self) -> None:
        self._now = object()


_built = _native()
_kept: Any = _Era() if _built is None else _built[0]
since: Callable[[], object] = _kept.since
"""The era; `learn` is to be given the one that a product was chosen in."""
_end: Callable[[], None] = _kept.forget


_at_once: dict[Any, Any] = {}


def quick(function: Function) -> Function:
    """`function`, which is gemm.gemm, as one in C that calls it only for products that no Memo knows; see front.c."""
    given, native = inspect.signature(function), _native()
    if native is None:
        return function
    bare = [parameter.replace(annotation=parameter.empty) for parameter in given.parameters.values()]
    text = f"{function.__name__}{inspect.Signature(bare)}\n--\n\n{inspect.getdoc(function)}"
    made, at_once = native[0].front(
        function, memos, (*DEFAULTS, "c", "out", "bias"), tuple(DEFAULTS.values()), function.__module__,
        function.__name__, text,
    )  # fmt: skip
    _at_once[made] = at_once
    return cast(Function, made)


def at_once(function: Function) -> Function:
    """What `quick` returned, for those who read its result at once: no `gemm.batching` makes it wait."""
    return cast(Function, _at_once.get(function, function))


def new(kinds: int, options: object = None) -> Any:
    """A Memo for `kinds` kinds of products with `options`, or None where there is none."""
    native = _native()
    return None if native is None else native[0].Memo(native[1], kinds, options)


def pending(owner: Any) -> Any:
    """A gemm._memo.Batch of `owner`, whose deliver() computes what it remembers; None where there is none."""
    native = _native()
    return None if native is None else native[0].Batch(*native[2:], owner)


def _nothing(_: Any = None) -> Any:
    return None


current: Callable[[], Any] = _nothing if (_found := _native()) is None else _found[0].current
"""The gemm.extras.batching.Batch that this thread's products may wait in, or None."""
exchange: Callable[[Any], Any] = _nothing if _found is None else _found[0].exchange
"""Gives this thread another gemm._memo.Batch (or None); returns the one before."""


def settle() -> None:
    """Compute what waits in this thread, before somebody reads it."""
    if (batch := current()) is not None and len(batch):
        batch.deliver()


_SEEN: tuple[Callable[[Any], Any], ...] = (
    lambda x: x, lambda x: x.swapaxes(-1, -2), lambda x: x[..., None, :], lambda x: x[..., None],
)  # fmt: skip
"""What a Call may make of an operand, before it is broadcast."""


def _widened(given: tuple[Any, Any, Any], call: Call, wide: np.dtype[Any]) -> tuple[Any, Any, Any, Any] | None:
    """The call's a, b, c and out as memo.c has them, which converts the caller's arrays `given` to `wide`, and makes
    one for the sums where the result is narrower; None where they are no arrays that it converts."""

    def converted(x: Any, view: Any) -> Any:
        made = np.empty_like(x, wide) if type(x) is np.ndarray else None
        for seen in () if made is None else _SEEN:
            with suppress(ValueError):
                if operands.identical(np.broadcast_to(seen(x), view.shape), view):
                    return np.broadcast_to(seen(made), view.shape)
        return None

    if call.problem.k:
        a, b = (converted(*each) for each in zip(given, (call.a, call.b), strict=False))
    else:  # which are not read
        a, b = (np.empty(x.shape, wide) for x in (call.a, call.b))
    c, out = call.c, call.out
    if out.dtype.itemsize < wide.itemsize:
        c, out = None if c is None else converted(given[2], c), np.empty(out.shape, wide)
    known = a is not None and b is not None and (c is None) == (call.c is None)
    return (a, b, c, out) if known else None


def _rounds(call: Call) -> str:
    """What alpha and beta are rounded to, as a text."""
    return f"{call.out.dtype.kind}{call.out.dtype.itemsize}"


def learn(began: object, memo: Any, plan: Plan, call: Call, given: Operands) -> None:
    """Let `memo` repeat what `plan` has just done for the caller's arrays, if that may be repeated.

    began: `since()` before it was chosen.
    """
    _, b, _, _, bias, *_ = given
    if getattr(b, "dtype", None) == call.b.dtype:
        merged = plan.kernel.backend != "numpy" and bias is None  # numpy's bits are not a stack's
        learn_native(began, memo, launcher(plan), call, given, merged=merged)


def learn_native(began: object, memo: Any, launch: Any, call: Call, given: Operands, *, merged: bool = False) -> None:
    """`learn` for a launch, of which only a native one can be repeated; b is whatever that multiplies by.

    merged: others are known to a Batch, at least, which computes them as a stack.
    """
    a, b, c, out, bias, *_ = given
    native = getattr(launch, "native", None)
    used = zip((a, c, out, bias), (call.a, call.c, call.out, call.bias), strict=True)
    converted = any(x is not None and y is not None and getattr(x, "dtype", None) != y.dtype for x, y in used)
    if (native is None and not merged) or not call.direct or not call.shape or converted:
        return
    problem = call.problem
    views: tuple[Any, Any, Any, Any] | None = (call.a, call.b, call.c, call.out)
    if problem.dtype == "bfloat16":  # which memo.c knows by the one object that NumPy has for it
        own = operands.bfloat16("repeated")
        if any(x is not None and x.dtype.kind == "V" and x.dtype is not own for x in (a, b, c, out, bias)):
            return
    finish = wide = None
    if native is None:
        ready: Any = 0, float(problem.m * problem.n * problem.k * problem.batch)
    else:
        if problem.fused:
            finish = partial(epilogue.finish, launch.activation, len(call.shape) < call.out.ndim)
        if getattr(launch, "wide", None) is not None:
            wide = np.dtype(launch.wide)
            views = _widened((a, b, c), call, wide)
        ready = None if views is None else native(*views)
    if ready is not None:
        make = (call.shape, call.out.dtype) if out is None else None
        memo.learn(*given, began, make, ready[0], _rounds(call), call.alpha, ready[1], finish, wide)


def remember(began: object, options: object, plan: Plan, call: Call, given: Operands) -> None:
    """`learn` for `gemm.gemm` called with `options`."""
    try:
        memo = memos.get(options)
    except TypeError:  # an option without a hash
        return
    if isinstance(call.out, DeviceView) and hasattr(launch := launcher(plan), "replay"):
        if len(replays) >= OPTIONS and options not in replays:
            replays.clear()
        replays.setdefault(options, Replays()).learn(began, launch, call, given)
        return
    if memo is None:
        if len(memos) >= OPTIONS:
            memos.clear()
        memo = memos[options] = new(KINDS, options)
    if memo is not None:
        learn(began, memo, plan, call, given)
