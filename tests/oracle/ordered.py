"""The ORDERED chain: the one bit pattern that every kernel with `ordered` must produce."""

import numpy as np

from oracle.exact import is_narrow
from oracle.fma import fma, fma32, fma64


def chain(a, b):
    """The sums of `ordered`, before alpha and beta: float32 for float16 and bfloat16."""
    if is_narrow(a.dtype):
        a, b = a.astype(np.float32), b.astype(np.float32)
    acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    step = fma32 if a.dtype == np.float32 else fma64
    with np.errstate(all="ignore"):
        for p in range(a.shape[-1]):
            acc = step(a[..., :, p, None], b[..., p, None, :], acc)
    return acc


def ordered(a, b, c=None, alpha=1.0, beta=0.0, sums=None):
    """acc = fma(a[i, p], b[p, j], acc) for p = 0 … k-1 from +0; alpha·acc; fma(beta, c, ·): each rounded.

    a (*batch, m, k) and b (*batch, k, n) of one dtype, c broadcasting to the result; alpha and beta are rounded
    to the dtype. alpha = 0 and k = 0 give beta·C and look at neither a nor b. float16 and bfloat16 take the chain of
    float32 and one rounding more. `sums` are chain(a, b), if they are known.
    """
    dtype = a.dtype
    if is_narrow(dtype):
        scale, beta_ = (float(np.array(x, dtype)) for x in (alpha, beta))
        single = (None if x is None else x.astype(np.float32) for x in (a, b, c))
        with np.errstate(all="ignore"):
            return ordered(*single, scale, beta_, sums).astype(dtype)
    scale, beta_ = np.array(alpha, dtype), np.array(beta, dtype)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    k = a.shape[-1]
    with np.errstate(all="ignore"):
        if k == 0 or scale == 0:
            return np.zeros(shape, dtype) if beta_ == 0 else np.broadcast_to(beta_ * c, shape).astype(dtype)
        acc = chain(a, b) if sums is None else sums
        scaled = acc if scale == 1 else scale * acc
        return scaled if beta_ == 0 else fma(beta_, c, scaled)


def check_same_bits(result, expected, what="result"):
    """Fail unless both have the same shape, dtype and bits; any NaN equals any NaN."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        raise AssertionError(f"{what}: {result.dtype}{result.shape}, must be {expected.dtype}{expected.shape}")
    integer = np.dtype(f"u{result.dtype.itemsize}")
    have, want = (np.ascontiguousarray(x).view(integer) for x in (result, expected))
    wrong = (have != want) & ~(np.isnan(result) & np.isnan(expected))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} elements differ in their bits; at {at} "
            f"{float(result[at]).hex()}, must be {float(expected[at]).hex()}"
        )
