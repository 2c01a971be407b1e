"""What a check examines: something that multiplies like `gemm.gemm`, and how hard to examine it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.arena import guarded

Array = np.ndarray
Check = Callable[["Subject"], None]
CHECKS: dict[str, Check] = {}
"""What every kernel owes, by name; filled by the decorators below."""
CHAIN_CHECKS: dict[str, Check] = {}
"""What a kernel that offers reproducible=True owes besides."""


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def chain_check(function: Check) -> Check:
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
        ordered: reproducible=True gives the ORDERED chain; always: so does any other call.
        params: tile and block sizes, from which shapes at the edges follow.
        effort: THIN, DEFAULT or FULL.
        slow: a call costs 100 µs or more, so that checks of many calls take fewer.
    """

    name: str
    call: Callable[..., Any]
    dtype: np.dtype[Any]
    ordered: bool = True
    always: bool = False
    params: Mapping[str, int] = field(default_factory=dict, hash=False)
    effort: int = DEFAULT
    slow: bool = False

    def __call__(self, a: Array, b: Array, c: Array | None = None, **options: Any) -> Array:
        """The product, guarded: see arena.guarded."""
        return guarded(self.call, a, b, c, **options)

    def pick(self, thin: Any, default: Any, full: Any = None) -> Any:
        """A value by effort; a slow subject's default is the thin one."""
        if self.effort == FULL:
            return default if full is None else full
        return default if self.effort == DEFAULT and not self.slow else thin

    def edges(self, *names: str) -> list[int]:
        """1, and each tile size among `names` with its neighbours, ascending."""
        sizes = {self.params[name] for name in names if name in self.params}
        return sorted({1} | {size + d for size in sizes for d in (-1, 0, 1) if size + d > 0})


def integers(rng: np.random.Generator, dtype: Any, *shape: int, limit: int = 8) -> Array:
    """Integers of -limit … limit: their products and sums are exact in any order."""
    return rng.integers(-limit, limit + 1, shape).astype(dtype)


def normal(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def wide(rng: np.random.Generator, dtype: Any, *shape: int, exponent: int = 60) -> Array:
    """Numbers of 2^-exponent … 2^exponent in size, so that most of a sum cancels or vanishes."""
    return np.ldexp(rng.standard_normal(shape), rng.integers(-exponent, exponent + 1, shape)).astype(dtype)
