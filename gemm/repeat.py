"""Repeated products: after the first one of a kind the checks in Python are skipped.

A small product takes less time than its arguments take to check. So each set of options has a Memo (see
csrc/python/memo.c). It knows the signatures of operands (dtype, shapes, strides) for which `gemm.call` and
`gemm.dispatch` ended in a native CPU plan, and runs them again by itself; `gemm.gemm` is a function in C that asks it
(front.c). What it does not know, or must not repeat (overlapping operands, subclasses, read-only outputs, other
dtypes), takes the long way, whose result is the same. Products of device arrays have Replays, which know launches whose
commands only need other buffers.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from gemm import operands
from gemm.call import Call
from gemm.dispatch import Plan, launcher, trust
from gemm.errors import KernelFailed, delivering
from gemm.problem import Device, DeviceView, Problem

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS, KINDS = 64, 4096
"""How many sets of options are remembered, and how many kinds of products each; of more, some give way by chance."""

memos: dict[object, Any] = {}
"""{options: Memo}, for `gemm.gemm`."""


_era: object = object()


def since() -> object:
    """What `remember` is to be given of when a product was chosen for."""
    return _era


def forget() -> None:
    """Let no product be repeated that was learned before, or that is being computed."""
    global _era
    _era = object()
    replays.clear()
    for memo in list(memos.values()):
        if memo is not None:
            memo.clear()  # calls in C may have it at hand
    memos.clear()


trust.repeating.append(forget)


class Replays(threading.local):
    """Products of device arrays that can be repeated, each thread's own: a kernel's arguments are no thread's alone."""

    def __init__(self) -> None:
        self._array: Any = None  # the class of the arrays
        self._signature: Any = None
        self._known: dict[object, Any] = {}
        self._calls: dict[object, tuple[Problem, Device]] = {}  # what those of `_known` computed, and where
        self._memo: Any = None  # a native one, for libraries that it can read
        self._biased = False  # some had a bias

    def run(self, a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> Any:
        """The product of operands like others before, or None; b is None where all have the same prepared one."""
        if bias is not None:
            if not self._biased or bias.__class__ is not self._array:
                return None
        elif self._memo is not None:
            result = self._memo.run(a, b, c, out)
            if result is not None:
                return result
        kind = self._array
        if a.__class__ is not kind or (b is not None and b.__class__ is not kind):
            return None
        if out is not None and out.__class__ is not kind:
            return None
        if c is not None and c.__class__ is not kind:
            return None
        more = () if bias is None else (bias,)
        replay = self._known.get(self._signature(a, b, c, out, *more))
        if replay is None:
            return None
        try:
            return replay(a, b, c, out, *more)
        except KernelFailed as error:
            if not error.spoilt:
                return None  # the long way meets the same error, and knows what to do
            with delivering("a repeated product"):
                raise

    def known(self, a: Any, b: Any, c: Any, out: Any) -> tuple[Any, Problem, Device] | None:
        """(its replay, problem and device) of a product of arrays like others before, or None."""
        if any(x is not None and x.__class__ is not self._array for x in (a, b, c, out)):
            return None
        key = self._signature(a, b, c, out)
        return (self._known[key], *self._calls[key]) if key in self._calls else None

    def learn(self, launch: Any, call: Call, a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> None:
        """Know again what `launch` has just done for the caller's a, b, c, out and bias, if it can be repeated."""
        if not call.direct or not call.shape or not isinstance(call.out, DeviceView):
            return
        made = call.out.owner
        more = () if bias is None else (bias,)
        if len({x.__class__ for x in (a, b, None if call.c is None else c, made, *more) if x is not None}) > 1:
            return  # which no replay can read
        try:
            replay = launch.replay(a, b, None if call.c is None else c, made, *more)
        except KernelFailed:  # this product is delivered; what is wrong shows in the next one
            return
        if replay is None:
            return
        self._biased |= bias is not None
        if a.__class__ is not self._array:  # a native memo is for arrays of one class
            self._array, self._memo = a.__class__, None
        if hasattr(replay, "taught") and bias is None:
            self._memo = replay.taught(self._memo, a, b, c, out, KINDS)
        self._signature = launch.signature
        key = self._signature(a, b, c, out, *more)
        if key is not None:
            if len(self._known) >= KINDS and key not in self._known:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._calls.pop(oldest, None)
            self._known[key] = replay
            if bias is None:
                self._calls[key] = call.problem, call.out.device


replays: dict[object, Replays] = {}
"""{`scaled` options: Replays}, for `gemm.gemm`."""


def scaled(options: Any, alpha: Any, beta: Any) -> tuple[Any, ...]:
    """A set of options with alpha and beta, which a Replays' launches have as they are."""
    return (alpha, beta, options, alpha.__class__, beta.__class__)  # 1 is not 1+0j, nor True


def again(options: object, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any, bias: Any = None) -> Any:
    """The product of device arrays like others before, or None."""
    try:
        known = replays.get(scaled(options, alpha, beta))
    except TypeError:  # an option without a hash
        return None
    return None if known is None else known.run(a, b, c, out, bias)


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


_at_once: dict[Any, Any] = {}
defaults: dict[str, Any] = {}
"""alpha, beta and gemm.gemm's options, and what they are if they are not given; a set of options begins with the values
of those after alpha and beta."""


def named(options: Any, alpha: Any, beta: Any) -> dict[str, Any]:
    """alpha, beta and a set of options as arguments of gemm.gemm."""
    return dict(zip(defaults, (alpha, beta, *options), strict=False))


def quick(function: Function) -> Function:
    """`function`, which is gemm.gemm, as one in C that calls it only for products that no Memo knows; see front.c."""
    given, native = inspect.signature(function), _native()
    names = [name for name in given.parameters if name not in ("a", "b", "c", "out", "bias")]
    defaults.update((name, given.parameters[name].default) for name in names)
    if native is None:
        return function
    bare = [parameter.replace(annotation=parameter.empty) for parameter in given.parameters.values()]
    text = f"{function.__name__}{inspect.Signature(bare)}\n--\n\n{inspect.getdoc(function)}"
    made, at_once = native[0].front(
        function, memos, (*names, "c", "out", "bias"), tuple(defaults.values()), function.__module__,
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
"""The gemm.pending.Batch that this thread's products may wait in, or None."""
exchange: Callable[[Any], Any] = _nothing if _found is None else _found[0].exchange
"""Gives this thread another gemm._memo.Batch (or None); returns the one before."""


def settle() -> None:
    """Compute what waits in this thread, before somebody reads it."""
    if (batch := current()) is not None and len(batch):
        batch.deliver()


def learn(memo: Any, plan: Plan, call: Call, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any) -> None:
    """Let `memo` repeat what `plan` has just done for the caller's a, b, c and out, if that may be repeated."""
    if getattr(b, "dtype", None) == call.b.dtype:
        merged = plan.kernel.backend != "numpy"  # whose bits are not a stack's
        learn_native(memo, launcher(plan), call, a, b, c, out, alpha, beta, merged=merged)


def learn_native(
    memo: Any, launch: Any, call: Call, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any, *,
    merged: bool = False,
) -> None:  # fmt: skip
    """`learn` for a launch, of which only a native one can be repeated; `b` is whatever that multiplies by.

    merged: others are known to a Batch, at least, which computes them as a stack.
    """
    native = getattr(launch, "native", None)
    used = zip((a, c, out), (call.a, call.c, call.out), strict=True)
    converted = any(x is not None and y is not None and getattr(x, "dtype", None) != y.dtype for x, y in used)
    if (native is None and not merged) or not call.direct or converted:
        return
    if call.problem.dtype == "bfloat16":  # which memo.c knows by the one object that NumPy has for it
        own = operands.bfloat16("repeated")
        if any(x is not None and x.dtype.kind == "V" and x.dtype is not own for x in (a, b, c, out)):
            return
    if native is None:
        problem = call.problem
        ready = 0, float(problem.m * problem.n * problem.k * problem.batch)
    else:
        ready = native(call.a, call.b, call.c, call.out)
    if ready is not None and call.shape:
        make = (call.shape, call.out.dtype) if out is None else None
        rounds = f"{call.out.dtype.kind}{call.out.dtype.itemsize}"
        memo.learn(a, b, c, out, alpha, beta, make, ready[0], rounds, call.alpha, ready[1])


def remember(
    began: object, options: object, plan: Plan, call: Call, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any,
    bias: Any = None,
) -> None:  # fmt: skip
    """`learn` for `gemm.gemm` called with `options`; products of host arrays that have a bias are not repeated.

    What another thread forgets meanwhile is not learned: its choice was made before. `began`: `since()` before it.
    """
    try:
        memo = memos.get(options)
    except TypeError:  # an option without a hash
        return
    if isinstance(call.out, DeviceView) and hasattr(launch := launcher(plan), "replay"):
        if len(replays) >= OPTIONS:
            replays.clear()
        key = scaled(options, alpha, beta)
        replays.setdefault(key, Replays()).learn(launch, call, a, b, c, out, bias)
        if began is not _era:
            replays.pop(key, None)
        return
    if bias is not None:
        return
    if memo is None:
        if len(memos) >= OPTIONS:
            began = _forgotten(began)
        memo = memos[options] = new(KINDS, options)
    if memo is not None:
        learn(memo, plan, call, a, b, c, out, alpha, beta)
        if began is not _era:  # calls in C may have it at hand
            memo.clear()


def _forgotten(began: object) -> object:
    """`forget`, which makes what began then stale only if it was so before."""
    stale = began is not _era
    forget()
    return began if stale else _era
