"""The plan cache: after the first product of a kind, the checks in Python are skipped.

A small product takes less time than its arguments take to check. So each set of options has a `PlanCache`, and so has
each plan and each prepared matrix. It knows the signatures of operands (dtype, shapes, strides) that were multiplied
before, each with what computes such a product: a native CPU plan (csrc/python/memo.c), or a device's launches, which
only need other addresses. `gemm.gemm` is a function in C that asks it (front.c). What it does not know, or must not
repeat (overlapping operands, subclasses, read-only outputs, other dtypes), takes the long way, whose result is the
same. alpha, beta and the bias are arguments; only whether alpha and beta are 0 is part of a kind.

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
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from gemm.core import epilogue, operands
from gemm.core.errors import KernelFailed, delivering
from gemm.core.problem import Device, DeviceView, Problem
from gemm.frontend.arguments import DEFAULTS
from gemm.frontend.call import Call, scalar
from gemm.select import verification

Function = TypeVar("Function", bound=Callable[..., Any])
Operands = tuple[Any, Any, Any, Any, Any, Any, Any]
"""A product's a, b, c, out, bias, alpha and beta: a gemm.frontend.arguments.Given, or the same before it is one."""

OPTIONS, KINDS = 64, 4096
"""How many sets of options are remembered, and how many kinds of products each; of more, some give way by chance."""


class _Nothing:
    """gemm._memo.Memo where that was not built: it knows nothing."""

    def __new__(cls, *_: Any) -> _Nothing:
        return object.__new__(cls)

    def run(self, *_: Any) -> None:
        return None

    learn = run


def _without() -> Any:
    """gemm._memo where it was not built: its Memo, its eras, and no batches."""
    made = SimpleNamespace(era=object(), Memo=_Nothing, current=lambda: None, exchange=lambda _: None)
    made.since, made.forget = lambda: made.era, lambda: setattr(made, "era", object())
    return made


def _loaded() -> tuple[Any, list[int]]:
    """gemm._memo, and where the engine has gemm_run, gemm_run_many and gemm_share, if they were built."""
    try:
        engine, memo = (importlib.import_module(name) for name in ("gemm._cpu", "gemm._memo"))
    except ImportError:
        return _without(), []
    names = "gemm_run", "gemm_run_many", "gemm_share"
    return memo, [int(engine.ffi.cast("uintptr_t", engine.ffi.addressof(engine.lib, name))) for name in names]


_memo, _engine = _loaded()
_Memo: Any = _memo.Memo
built = bool(_engine)
"""Whether there is the C that repeats products on the CPU."""
since: Callable[[], object] = _memo.since
"""The era; `PlanCache.learn` is to be given the one that a product was chosen in."""
current: Callable[[], Any] = _memo.current
"""The gemm.extras.batching.Batch that this thread's products may wait in, or None."""
exchange: Callable[[Any], Any] = _memo.exchange
"""Gives this thread another gemm._memo.Batch (or None); returns the one before."""


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


class DevicePlans(threading.local):
    """A plan cache's products of device arrays, each thread's own: a kernel's arguments are no thread's alone."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, era: object) -> None:
        """Forget what was known before that era."""
        self._era = era
        self._signatures: dict[type, Callable[..., Any]] = {}  # by the class of arrays
        self._known: dict[object, Known] = {}

    def run(self, given: Operands) -> Any:
        """The product of operands like others before, or None; b is None where all have the same prepared one."""
        known, scales = self.known(given)
        if known is None:
            return None
        a, b, c, out, bias, *_ = given
        try:
            return known.replay(a, b, c, out, *scales, bias)
        except KernelFailed as error:
            if not error.spoilt:
                return None  # the long way meets the same error, and knows what to do
            with delivering("a repeated product"):
                raise

    def known(self, given: Operands) -> tuple[Known, tuple[Any, Any]] | tuple[None, tuple[()]]:
        """What is known of a product of arrays like others before, with its alpha and beta as they are launched."""
        found = self._known.get(self._key(given)) if self._era is since() else None
        scales = None if found is None else found.scales(*given[5:])
        return (None, ()) if found is None or scales is None else (found, scales)

    def _key(self, given: Operands) -> object:
        """What a product is known by; None: it cannot be."""
        a, b, c, out, bias, *scales = given
        kind = a.__class__
        read = self._signatures.get(kind)
        alike = read is not None and all(x is None or x.__class__ is kind for x in (b, c, out, bias))
        if read is None or not alike or not all(isinstance(x, numbers.Number) for x in scales):
            return None
        signature = read(a, b, c, out, bias)
        return None if signature is None else (signature, *(bool(x == 0) for x in scales))

    def learn(self, began: object, launch: Any, call: Call, given: Operands) -> Any:
        """The replay of a product of device arrays, if it can be known again."""
        a, b, c, _, bias, alpha, beta = given
        view = cast(DeviceView, call.out)
        arrays = a, b, None if call.c is None else c, view.owner, bias
        if len({x.__class__ for x in arrays if x is not None}) > 1:
            return None  # which nothing can read
        try:
            replay = launch.replay(*arrays)
        except KernelFailed:  # this product is delivered; what is wrong shows in the next one
            return None
        if replay is None:
            return None
        if self._era is not began:
            self.begin(began)
        self._signatures[a.__class__] = launch.signature
        known = Known(replay, view.dtype, call.alpha, call.problem, view.device)
        key = self._key(given)
        if key is None or known.scales(alpha, beta) is None:
            return None
        if len(self._known) >= KINDS and key not in self._known:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return replay


class PlanCache(_Memo):  # type: ignore[misc]
    """What repeats products with one set of options, of one plan, or by one prepared matrix.

    As a gemm._memo.Memo it knows those on the CPU, and those of arrays on devices that C can read: run(a, b, c, out,
    bias, alpha, beta) is the product of operands like others before, or None.

    Attributes:
        devices: those of all device arrays.
    """

    __slots__ = ("devices",)

    def __new__(cls, kinds: int = KINDS, options: object = None) -> PlanCache:
        made: PlanCache = super().__new__(cls, *_engine[:1], kinds, options)
        made.devices = DevicePlans()
        return made

    def learn_product(self, began: object, launch: Any, call: Call, given: Operands, *, merged: bool = False) -> None:
        """Know again what `launch` has just done for the caller's operands, if it may be repeated.

        Args:
            began: `since()` before it was chosen. given: b is whatever that multiplies by, or None on a device.
            merged: a launch that is not native is known to a Batch, at least, which computes such products as a stack.
        """
        if not call.direct or not call.shape:
            return
        if not isinstance(call.out, DeviceView):
            self._learn_native(began, launch, call, given, merged=merged)
        elif hasattr(launch, "replay"):
            native = getattr(self.devices.learn(began, launch, call, given), "native", None)
            if native is not None:
                make, sequence, device = native
                make = make if given[3] is None else None
                rest = call.out.dtype.str[1:], call.alpha, sequence, None, None, device
                self.learn(*given, began, make, 0, *rest)

    def _learn_native(self, began: object, launch: Any, call: Call, given: Operands, *, merged: bool) -> None:
        a, b, c, out, bias, *_ = given
        native, problem = getattr(launch, "native", None), call.problem
        right = None if isinstance(call.b, DeviceView) else call.b  # a prepared one is as it is
        used = zip((a, b, c, out, bias), (call.a, right, call.c, call.out, call.bias), strict=True)
        for x, y in used:  # what is converted is not the caller's
            if x is not None and y is not None and getattr(x, "dtype", None) != y.dtype:
                return
        if native is None and (not merged or bias is not None):
            return
        if problem.dtype == "bfloat16":  # which memo.c knows by the one object that NumPy has for it
            own = operands.bfloat16("repeated")
            if any(x is not None and x.dtype.kind == "V" and x.dtype is not own for x in (a, b, c, out, bias)):
                return
        finish = wide = None
        views: tuple[Any, Any, Any, Any] | None = (call.a, call.b, call.c, call.out)
        ready: Any = 0, float(problem.m * problem.n * problem.k * problem.batch)
        if native is not None:
            if problem.fused:
                finish = partial(epilogue.finish, launch.activation, len(call.shape) < call.out.ndim)
            if getattr(launch, "wide", None) is not None:
                wide = np.dtype(launch.wide)
                views = _widened((a, b, c), call, wide)
            ready = None if views is None else native(*views)
        if ready is not None:
            make = (call.shape, call.out.dtype) if out is None else None
            self.learn(*given, began, make, ready[0], call.out.dtype.str[1:], call.alpha, ready[1], finish, wide, None)


memos: dict[object, PlanCache] = {}
"""{options: PlanCache}, for `gemm.gemm`, which front.c reads."""


def forget() -> None:
    """Let no product be repeated that was learned before, or that is being computed."""
    _memo.forget()
    memos.clear()


verification.repeating.append(forget)


def plan_cache(options: object, caches: dict[object, PlanCache]) -> PlanCache | None:
    """The one of `caches` for these options, new if need be; None: one of them has no hash."""
    try:
        found = caches.get(options)
    except TypeError:
        return None
    if found is None:
        if len(caches) >= OPTIONS:
            caches.clear()
        found = caches[options] = PlanCache(options=options)
    return found


_at_once: dict[Any, Any] = {}


def quick(function: Function) -> Function:
    """`function`, gemm.gemm, as one in C that calls it only for products that no PlanCache has; see front.c."""
    if not built:
        return function
    given = inspect.signature(function)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in given.parameters.values()]
    text = f"{function.__name__}{inspect.Signature(bare)}\n--\n\n{inspect.getdoc(function)}"
    made, at_once = _memo.front(
        function, memos, (*DEFAULTS, "c", "out", "bias"), tuple(DEFAULTS.values()), function.__module__,
        function.__name__, text,
    )  # fmt: skip
    _at_once[made] = at_once
    return cast(Function, made)


def at_once(function: Function) -> Function:
    """What `quick` returned, for those who read its result at once: no `gemm.batching` makes it wait."""
    return cast(Function, _at_once.get(function, function))


def pending(owner: Any) -> Any:
    """A gemm._memo.Batch of `owner`, whose deliver() computes what it remembers; None where there is none."""
    return _memo.Batch(*_engine[1:], owner) if built else None


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
