"""Check some rows of the contestants' results against a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .duel import Entry

_WORK = 1 << 25
"""The largest number of multiply-adds of the reference, which computes in types without a BLAS."""


def worst_errors(a: np.ndarray, b: np.ndarray, entries: Sequence[Entry]) -> dict[str, float]:
    """{key: the largest error of the checked rows, in units of the contract's bound (k + 2)·u·|a|·|b|; inf for NaN}.

    The reference is the longdouble product of some rows of some matrices. The bound is larger in two
    cases. If longdouble is no wider than the results, the reference has the same error, so the bound is doubled.
    A complex product sums 2·k products of parts, so the bound is multiplied by four. Integers wrap around; any integer
    error is infinite.
    """
    m, k = a.shape[-2:]
    cost = k * b.shape[-1]
    stack = slice(None, None, -(-len(a) * m * cost // _WORK)) if a.ndim == 3 else slice(None)
    rows = np.unique(np.linspace(0, m - 1, max(1, min(m, _WORK // cost))).astype(int))
    x, y = (a[stack] if a.ndim == 3 else a)[..., rows, :], b[stack] if b.ndim == 3 else b
    results = {entry.key: entry.part(stack, rows) for entry in entries}
    dtype = next(iter(results.values())).dtype
    if dtype.kind in "iu":
        whole = np.matmul(x.astype(np.int64), y.astype(np.int64)).astype(dtype)
        return {key: 0.0 if np.array_equal(result, whole) else math.inf for key, result in results.items()}
    wide = np.clongdouble if dtype.kind == "c" else np.longdouble
    exact = np.matmul(x.astype(wide), y.astype(wide))
    unit = unit_roundoff(dtype)
    slack = (4 if dtype.kind == "c" else 1) * (2 if np.finfo(np.longdouble).eps / 2 >= unit else 1)
    bound = slack * (k + 2) * unit * np.matmul(np.abs(x.astype(wide)), np.abs(y.astype(wide)))
    found = {}
    for key, result in results.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(result.astype(wide) - exact)
            share = np.where(error == 0, 0, error / bound)
        found[key] = math.inf if np.isnan(share).any() else float(share.max())
    return found


def unit_roundoff(dtype: np.dtype) -> float:
    """The unit roundoff u of the type; for complex types, that of the parts."""
    return 2.0**-8 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps) / 2
