"""The plan cache: gemm skips the checks in Python for a product that is like an earlier one.

Checking the arguments of a small product takes longer than computing the product. Each set of options therefore has a
`PlanCache`, and so does each plan and each prepacked matrix. A PlanCache is keyed by the signature of the operands:
their dtypes, shapes and strides. A value is either a plan of the CPU engine (csrc/python/memo.c) or the launches on a
device, which need only new addresses. `gemm.gemm` is a C function that looks up the PlanCache first (front.c).

A product that is not in the cache goes through the checks in Python, with the same result. So does a product that must
not be repeated from the cache because of its operands: overlapping operands, subclasses of arrays, read-only outputs,
other dtypes. alpha, beta and the bias are arguments of a launch; the key contains only whether alpha and beta are 0.

Cached plans belong to an era (`since`). An era ends when a kernel or device fails, for example. A plan that was chosen
in an ended era is neither repeated nor added to the cache, even if its product was running when the era ended.
"""

from __future__ import annotations

import importlib
import inspect
import numbers
import os
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from gemm.core import epilogue, operands
from gemm.core.errors import KernelFailed, delivering
from gemm.core.problem import Device, DeviceView, DType, Problem
from gemm.frontend.arguments import DEFAULTS, Call, Given, normalise, scalar
from gemm.select import verification

Function = TypeVar("Function", bound=Callable[..., Any])
Operands = tuple[Any, Any, Any, Any, Any, Any, Any]
"""The operands a, b, c, out, bias, alpha and beta of a product: a gemm.frontend.arguments.Given, or a plain tuple."""

OPTIONS, KINDS = 64, 4096
"""OPTIONS: the maximum number of cached sets of options. KINDS: the maximum number of signatures in each PlanCache.

A full cache in C replaces randomly chosen entries.
"""


class _Nothing:
    """Replaces Memo and Batch of gemm._memo if the C extension was not built: caches and collects nothing."""

    def __new__(cls, *_: Any) -> _Nothing:
        return object.__new__(cls)

    def run(self, *_: Any) -> None:
        return None

    learn = enter = leave = remembers = at_once = run

    def pending(self) -> int:
        return 0

    def extend(self, _: Any, start: int, *__: Any) -> int:
        return start


def _without() -> Any:
    """A replacement for the module gemm._memo, used if that module was not built."""
    made = SimpleNamespace(era=object(), Memo=_Nothing, Batch=_Nothing, current=lambda: None, exchange=lambda _: None)
    made.since, made.forget = lambda: made.era, lambda: setattr(made, "era", object())
    return made


def _loaded() -> tuple[Any, list[int]]:
    """The module gemm._memo, and the addresses of the engine's gemm_run, gemm_run_many and gemm_share.

    If the C extensions were not built, the module is a replacement and the list of addresses is empty.
    """
    try:
        engine, memo = (importlib.import_module(name) for name in ("gemm._cpu", "gemm._memo"))
    except ImportError:
        return _without(), []
    names = "gemm_run", "gemm_run_many", "gemm_share"
    return memo, [int(engine.ffi.cast("uintptr_t", engine.ffi.addressof(engine.lib, name))) for name in names]


_memo, _engine = _loaded()
_Memo: Any = _memo.Memo
built = bool(_engine)
"""Whether the C extension that repeats CPU products was built."""
since: Callable[[], object] = _memo.since
"""Returns the current era. A caller reads the era before it chooses a plan, and passes the era to
`PlanCache.learn_product`.
"""
current: Callable[[], Any] = _memo.current
"""Returns the gemm.extras.batching.Batch that collects this thread's products, or None."""
exchange: Callable[[Any], Any] = _memo.exchange
"""Sets this thread's gemm._memo.Batch (or None) and returns the previous one."""


class Known(NamedTuple):
    """A product on a device that can be repeated.

    Attributes:
        replay: launches the product for the caller's arrays (see gemm.core.backend.Launch). It returns `out`, or a new
            array if out is None. It returns None if the product must go through the checks in Python.
        dtype: the dtype of the product.
        alpha: the value that replaces the caller's alpha if the caller's alpha is 0 or k is 0. The product then has no
            terms: see `_factors` in arguments.py.
        problem: the problem that was computed.
        device: the device that holds the operands; None for operands in host memory.
    """

    replay: Callable[..., Any]
    dtype: Any
    alpha: Any
    problem: Problem
    device: Device | None

    def scales(self, alpha: Any, beta: Any) -> tuple[Any, Any] | None:
        """Return (alpha, beta), rounded for the launch. If the problem has k = 0, `self.alpha` replaces alpha.

        Return None if the checks in Python must handle these values: a value is wrong, or a value other than 0 would be
        rounded to 0.
        """
        try:
            found = _rounded(alpha, beta, self.dtype)
        except (TypeError, ValueError):
            return None
        return found if found is None or self.problem.k else (self.alpha, found[1])


def _is_number(x: Any) -> bool:
    return x.__class__ is float or isinstance(x, numbers.Number)  # float: the check by `numbers` takes 0.3 µs


@lru_cache(256, typed=True)
def _rounded(alpha: Any, beta: Any, dtype: Any) -> tuple[Any, Any] | None:
    """alpha and beta rounded to `dtype`. None: a value other than 0 became 0.

    The results are cached because the rounding takes as long as a small launch.
    """
    x, y = scalar("alpha", alpha, dtype), scalar("beta", beta, dtype)
    return None if (x == 0) != (alpha == 0) or (y == 0) != (beta == 0) else (x.item(), y.item())


class DevicePlans(threading.local):
    """The device products of a plan cache.

    Each thread has its own table, because two threads must not change the arguments of one kernel at the same time.

    Attributes:
        signatures: {a class of arrays: the function that reads the signature of a product of such arrays}.
    """

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, era: object) -> None:
        """Forget all products, and record the new era."""
        self._era = era
        self.signatures: dict[type, Callable[..., Any]] = {}  # key: the class of arrays
        self._known: dict[object, Known] = {}

    def run(self, given: Operands) -> Any:
        """Repeat a cached product for operands with the same signature.

        Returns None if there is no such product, or if it cannot be repeated. If this cache belongs to a prepacked
        matrix, that matrix is b in all products, and the argument b is None.
        """
        known, scales = self.known(given)
        if known is None:
            return None
        a, b, c, out, bias, *_ = given
        try:
            return known.replay(a, b, c, out, *scales, bias)
        except KernelFailed as error:
            if not error.spoilt:
                return None  # the caller then computes the product by execute.run, which handles a second failure
            with delivering("a repeated product"):
                raise

    def known(self, given: Operands) -> tuple[Known, tuple[Any, Any]] | tuple[None, tuple[()]]:
        """Return (product, (alpha, beta)): the cached product with the signature of `given`, and the rounded scalars.

        The scalars are those of `given`, rounded for the launch. Returns (None, ()) if there is no such product.
        """
        found = self._known.get(self._key(given)) if self._era is since() else None
        scales = None if found is None else found.scales(*given[5:])
        return (None, ()) if found is None or scales is None else (found, scales)

    def _key(self, given: Operands) -> object:
        """The key of a product in `self._known`; None if no product with such operands can be in this cache."""
        a, b, c, out, bias, alpha, beta = given
        kind = a.__class__
        read = self.signatures.get(kind)
        if read is None or not (_is_number(alpha) and _is_number(beta)):
            return None
        for x in (b, c, out, bias):
            if x is not None and x.__class__ is not kind:
                return None
        signature = read(a, b, c, out, bias)
        return None if signature is None else (signature, bool(alpha == 0), bool(beta == 0))

    def learn(self, began: object, launch: Any, call: Call, given: Operands) -> Any:
        """Add a product on a device to the cache and return its replay; None if the product cannot be repeated."""
        a, b, c, _, bias, alpha, beta = given
        view = call.out if isinstance(call.out, DeviceView) else None
        out, device = (call.finish(), None) if view is None else (view.owner, view.device)
        arrays = a, b, None if call.c is None else c, out, bias
        if len({x.__class__ for x in arrays if x is not None}) > 1:
            return None  # no signature function reads arrays of several classes
        try:
            replay = launch.replay(*arrays)
        except KernelFailed:  # the result is complete; the next product reports the failure
            return None
        if replay is None:
            return None
        if self._era is not began:
            self.begin(began)
        self.signatures[a.__class__] = launch.signature
        known = Known(replay, call.out.dtype, call.alpha, call.problem, device)
        key = self._key(given)
        if key is None or known.scales(alpha, beta) is None:
            return None
        if len(self._known) >= KINDS and key not in self._known:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return replay


class PlanCache(_Memo):  # type: ignore[misc]
    """The plan cache of one set of options, one plan, or one prepacked matrix.

    The base class gemm._memo.Memo holds the CPU products, and the device products whose arrays C code can read. The
    method run(a, b, c, out, bias, alpha, beta) of the base class repeats a product that it holds, and returns None for
    other products.

    Attributes:
        devices: the products on devices, of device arrays or of NumPy arrays, including those in the base class.
    """

    __slots__ = ("devices",)

    def __new__(cls, kinds: int = KINDS, options: object = None) -> PlanCache:
        made: PlanCache = super().__new__(cls, *_engine[:1], kinds, options)
        made.devices = DevicePlans()
        return made

    def repeat(self, given: Operands) -> Any:
        """Repeat a cached product, in host memory or on a device. Returns None if this product is not in the cache."""
        result = self.run(*given)
        return self.repeat_on_device(given) if result is None else result

    def repeat_on_device(self, given: Operands) -> Any:
        """Repeat a cached product on a device. Returns None if this product is not in the cache."""
        settle()
        return self.devices.run(given)

    def learn_product(self, began: object, launch: Any, call: Call, given: Operands, *, merged: bool = False) -> None:
        """Add the product that `launch` has just computed to the cache, if the product may be repeated.

        Args:
            began: the value of `since()` before the plan was chosen.
            given: the caller's operands. For a prepacked matrix, b is the packed array, or None on a device.
            merged: True: also add a product that has no plan of the CPU engine (no `launch.native`). Only gemm.batching
                uses such an entry, to compute many products like this one as one stack.
        """
        if not call.direct or not call.shape:
            return
        if not isinstance(call.out, DeviceView):
            self._learn_native(began, launch, call, given, merged=merged)
            if given[0].__class__ is not np.ndarray:
                return
        if hasattr(launch, "replay"):
            native = getattr(self.devices.learn(began, launch, call, given), "native", None)
            if native is not None:
                make, sequence, device = native
                make = make if given[3] is None else None
                rest = call.out.dtype.str[1:], call.alpha, sequence, None, None, device
                self.learn(*given, began, make, 0, *rest)

    def _learn_native(self, began: object, launch: Any, call: Call, given: Operands, *, merged: bool) -> None:
        a, b, c, out, bias, *_ = given
        native, problem = getattr(launch, "native", None), call.problem
        if native is None and (not merged or bias is not None):
            return
        # memo.c accepts only the bfloat16 that operands.bfloat16 returns.
        bfloat16 = operands.bfloat16("repeated") if problem.dtype == "bfloat16" else None
        right = None if isinstance(call.b, DeviceView) else call.b  # a prepacked b fits; None skips the check below
        for x, y in zip((a, b, c, out, bias), (call.a, right, call.c, call.out, call.bias), strict=True):
            kind = getattr(x, "dtype", None)
            if x is not None and y is not None and kind != y.dtype:
                return  # the launch read a converted copy of the caller's array
            if bfloat16 is not None and getattr(kind, "kind", "") == "V" and kind is not bfloat16:
                return
        finish = wide = None
        ready: Any = 0, float(problem.m * problem.n * problem.k * problem.batch)
        if native is not None:
            if problem.fused:
                finish = partial(epilogue.finish, launch.activation, len(call.shape) < call.out.ndim)
            views: tuple[Any, ...] | None = (call.a, call.b, call.c, call.out)
            if getattr(launch, "wide", None) is not None:
                wide = np.dtype(launch.wide)
                views = _widened(given, call, wide)
            ready = None if views is None else native(*views)
        if ready is not None:
            make = (call.shape, call.out.dtype) if out is None else None
            self.learn(*given, began, make, ready[0], call.out.dtype.str[1:], call.alpha, ready[1], finish, wide, None)


memos: dict[object, PlanCache] = {}
"""{options: PlanCache} for `gemm.gemm`. front.c reads this dictionary."""


_inherited: list[dict[object, PlanCache]] = []
_owner = [os.getpid()]


def forget() -> None:
    """End the era: no product that was learned or started before this call is repeated from the cache.

    The child of a fork keeps the caches of its parent in memory. Freeing them would call drivers, which do not survive
    a fork: their locks may be held.
    """
    if _owner[0] != os.getpid():
        _owner[0] = os.getpid()
        _inherited.append(dict(memos))
    _memo.forget()
    memos.clear()


verification.repeating.append(forget)


def find(options: object) -> PlanCache | None:
    """The PlanCache in `memos` for these options; None if `memos` has no such PlanCache, or an option is unhashable."""
    try:
        return memos.get(options)
    except TypeError:
        return None


def begin(options: object, caches: dict[object, PlanCache]) -> tuple[object, PlanCache | None]:
    """Begin a product: compute the pending products of this thread, whose results may be operands.

    Returns:
        The current era, and the PlanCache in `caches` for these options, which is created if necessary. If an option is
        not hashable, the second value is None.
    """
    era = since()
    if batch := current():
        batch.deliver()
    try:
        found = caches.get(options)
    except TypeError:
        return era, None
    if found is None:
        if len(caches) >= OPTIONS:
            caches.clear()
        found = caches[options] = PlanCache(options=options)
    return era, found


_at_once: dict[Any, Any] = {}


def front(function: Function) -> Function:
    """Return a C function that replaces `function` (gemm.gemm). See front.c.

    The C function calls `function` only for products that no PlanCache knows. If the C extension was not built, the
    result is `function` itself.
    """
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
    """The variant of a C function from `front` for callers that need the result immediately.

    `gemm.batching` does not delay the products of this variant. If the C extension was not built, the result is
    `function` itself.
    """
    return cast(Function, _at_once.get(function, function))


def pending(owner: Any) -> Any:
    """A gemm._memo.Batch that calls owner.deliver() to compute its pending products."""
    return _memo.Batch(*_engine[1:], owner)


def settle() -> None:
    """Compute the pending products of this thread, so that their results can be read."""
    if batch := current():
        batch.deliver()


def _widened(given: Operands, call: Call, wide: DType) -> tuple[Any, Any, Any, Any] | None:
    """The operands a, b, c and out from which memo.c's plan of a product in the dtype `wide` is made.

    memo.c converts the caller's arrays to `wide` in each product. If the result is narrower than `wide`, memo.c also
    creates an array for the sums. Returns None if memo.c cannot convert the operands because the product's launch read
    a copy of an operand instead of the caller's array.
    """
    a, b, c, *_, alpha, beta = given
    factors = ((a, call.a), (b, call.b)) if call.problem.k else ()  # with k = 0, the kernel does not read a and b
    for x, view in (*factors, (c, call.c)):
        if view is not None and not (type(x) is np.ndarray and operands.overlap(x, view)):
            return None
    a, b, c = (None if x is None else np.empty_like(x, wide) for x in (a, b, c))
    again = normalise(Given(a, b, c, None, None, alpha, beta), call.options._replace(dtype=wide, activation=None))
    c, out = (again.c, again.out) if call.out.dtype.itemsize < wide.itemsize else (call.c, call.out)
    return again.a, again.b, c, out
