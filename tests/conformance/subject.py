"""What a check examines: something that multiplies like `gemm.gemm`, and how hard to examine it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from oracle import finfo

from conformance.arena import POISON, guarded
from gemm.core.engine import engine

CHECKS = {}
"""What every kernel owes, by name; filled by the decorators below."""
CHAIN_CHECKS = {}
"""What a kernel that offers reproducible=True owes besides."""


ONLY = {}
"""The kinds of dtypes ("f" with bfloat16, "c", "i" for any integer) that a check is for, where it is not for all."""


def check(function):
    CHECKS[function.__name__] = function
    return function


def check_of(kinds):
    """`check` for some kinds of dtypes."""

    def add(function):
        ONLY[function.__name__] = kinds
        return check(function)

    return add


def chain_check(function):
    CHAIN_CHECKS[function.__name__] = function
    return function


THIN, DEFAULT, FULL = range(3)
"""Effort: for emulators, for every run, for releases."""


@dataclass(frozen=True)
class Subject:
    """A kernel on a device, reached as a user reaches it.

    Attributes:
        call: call(a, b, c=None, *, alpha, beta, trans_a, trans_b, out, reproducible) on host arrays.
        dtype: of operands and result.
        inputs: the types whose numbers a and b may be, if they are narrower: `call` converts them.
        ordered: reproducible=True gives the ORDERED chain; always: so does any other call.
        params: tile and block sizes, from which shapes at the edges follow.
        effort: THIN, DEFAULT or FULL.
        precision: what `call` asks for, and is held to.
        slow: a call costs 100 µs or more, so that checks of many calls take fewer.
        kin: how many earlier types the kernel's source has; at least 1 for a kernel whose source an earlier one has,
            and for one that is reached another way. Thin checks of many calls share them out.
    """

    name: str
    call: Callable[..., Any]
    dtype: np.dtype[Any]
    ordered: bool = True
    always: bool = False
    params: Mapping[str, int] = field(default_factory=dict, hash=False)
    effort: int = DEFAULT
    slow: bool = False
    inputs: tuple[str, ...] = ()
    precision: str = "highest"
    kin: int = 0

    @property
    def kind(self):
        """ "f", "c" or "i"."""
        return {"c": "c", "i": "i", "u": "i"}.get(self.dtype.kind, "f")

    def __call__(self, a, b, c=None, **options):
        """The product, guarded: see arena.guarded."""
        result = guarded(self.call, a, b, c, **options)
        if result.dtype != self.dtype:
            raise AssertionError(f"the result is {result.dtype}, must be {self.dtype}")
        return result

    def factor(self, value):
        """An alpha or beta like `value`: for integers a whole number."""
        return value if self.kind != "i" or value == int(value) else round(10 * value)

    def blank(self, shape):
        """An array of what no result is: NaN, or bytes of POISON."""
        return np.full(shape, POISON, np.uint8).repeat(self.dtype.itemsize, -1).view(self.dtype)

    def integers(self, rng, *shape, limit=8):
        """Integers of -limit … limit (from 0 on if a or b have no signs), complex ones too: products and sums of them
        are exact in any order, or wrap."""
        low = 0 if any(name.startswith("u") for name in self.inputs) else -limit
        values = rng.integers(low, limit + 1, shape)
        if self.kind == "c":
            return (values + 1j * rng.integers(low, limit + 1, shape)).astype(self.dtype)
        return values.astype(self.dtype)

    def normal(self, rng, *shape):
        """Standard normal numbers, both parts of complex ones; integers of the whole range."""
        if self.kind == "i":
            info = [np.iinfo(name) for name in (self.dtype, *self.inputs)]
            low, high = max(x.min for x in info), min(x.max for x in info)
            return rng.integers(low, high, shape, np.int64 if low else np.uint64, endpoint=True).astype(self.dtype)
        if self.kind == "c":
            return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(self.dtype)
        return self.narrowed(normal(rng, self.dtype, *shape))

    @staticmethod
    def operands(make, rng, m, n, k):
        """a, b and c, each of make(rng, rows, columns)."""
        return make(rng, m, k), make(rng, k, n), make(rng, m, n)

    def narrowed(self, x):
        """x rounded so that each of the narrower floats of `inputs` has such numbers."""
        for name in self.inputs:
            x = x.astype(np.dtype(name)).astype(self.dtype) if "float" in name else x
        return x

    def wide(self, rng, *shape, exponent=60):
        """Numbers of sizes 2^-exponent … 2^exponent, less where the type does not reach so far."""
        exponent = min(exponent, *(int(finfo(np.dtype(name)).maxexp) // 4 for name in (self.dtype.name, *self.inputs)
                                   if "int" not in name))  # fmt: skip
        if self.kind == "c":
            parts = (wide(rng, np.float64, *shape, exponent=exponent) for _ in "ri")
            return (next(parts) + 1j * next(parts)).astype(self.dtype)
        return self.narrowed(wide(rng, self.dtype, *shape, exponent=exponent))

    def far(self, rng, *shape, exponent=60):
        """Real numbers as far apart as the type allows; see `wide` below."""
        if not self.inputs:
            return wide(rng, self.dtype, *shape, exponent=exponent)
        return self.wide(rng, *shape, exponent=exponent)

    def pick(self, thin, default, full=None):
        """A value by effort; a slow subject's default is the thin one."""
        if self.effort == FULL:
            return default if full is None else full
        return default if self.effort == DEFAULT and not self.slow else thin

    def edges(self, *names):
        """1, and each tile size among `names` with its neighbours, ascending."""
        sizes = {self.params[name] for name in names if name in self.params}
        return sorted({1} | {size + d for size in sizes for d in (-1, 0, 1) if size + d > 0})


def blocked(row):
    """The parameters of a row, for a CPU row with MC, KC and NC: the engine splits products that are larger."""
    if row.backend != "cpu":
        return row.params
    loaded = engine()
    ffi, lib = loaded.ffi, loaded.lib
    if not hasattr(lib, row.name):
        return row.params

    def sizes(k):
        plan = ffi.new("gemm_plan *", {"kernel": ffi.addressof(getattr(lib, row.name)), "m": 1, "n": 1 << 20, "k": k})
        lib.gemm_set_blocks(plan)
        return plan.mc, plan.kc, plan.nc

    deep = next(k for k in range(8, 1 << 16, 8) if sizes(k + 1)[1] <= k)
    mc, _, nc = sizes(5)
    return {"MC": 2 * mc, "KC": deep, "NC": nc, **row.params}


def integers(rng, dtype, *shape, limit=8):
    """Integers of -limit … limit: their products and sums are exact in any order."""
    return rng.integers(-limit, limit + 1, shape).astype(dtype)


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def wide(rng, dtype, *shape, exponent=60):
    """Numbers of 2^-exponent … 2^exponent in size, so that most of a sum cancels or vanishes; less for float16."""
    exponent = min(exponent, int(0.47 * finfo(dtype).maxexp))
    return np.ldexp(rng.standard_normal(shape), rng.integers(-exponent, exponent + 1, shape)).astype(dtype)
