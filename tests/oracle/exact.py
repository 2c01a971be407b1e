"""α·A·B + β·C beyond the result's precision, and the componentwise bound of the numerical contract."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle.fma import two_product, two_sum

Array = np.ndarray

_REFERENCE_SLACK = 1 + 2.0**-10  # the reference's own error and second-order terms of the bound


@dataclass(frozen=True)
class Reference:
    """high + low is the product, unevaluated; |C - (high + low)| ≤ bound is what a kernel owes."""

    high: Array
    low: Array
    bound: Array


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """A·B of float64 matrices in double-double: relative to |A|·|B| its error is about k · 2⁻¹⁰⁴."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    high, low = np.zeros(shape), np.zeros(shape)
    for p in range(a.shape[-1]):
        term, term_low = two_product(a[..., :, p, None], b[..., p, None, :])
        high, carry = two_sum(high, term)
        low = low + (carry + term_low)
    return high, low


def exact(a: Array, b: Array, c: Array | None = None, alpha: float = 1.0, beta: float = 0.0) -> Reference:
    """The reference and its bound, (k + 2)·u·(|α|·|A|·|B| + |β·C|) plus an allowance for underflow.

    a (*batch, m, k), b (*batch, k, n), both float32 or both float64; alpha and beta are rounded to that dtype.
    Non-finite operands give the non-finite pattern of IEEE arithmetic, whatever the order of summation.
    """
    dtype, k = a.dtype, a.shape[-1]
    info = np.finfo(dtype)
    u = float(info.eps) / 2
    scale, beta_ = float(np.array(alpha, dtype)), float(np.array(beta, dtype))
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        if scale == 0:  # neither A nor B is read
            a, b, k = a[..., :0], b[..., :0, :], 0
        # float32: products are exact in float64 and sums lose 2⁻⁵³, nothing beside u = 2⁻²⁴.
        if dtype == np.float32:
            high = np.einsum("...ij,...jk->...ik", a, b)
            low = np.zeros_like(high)
        else:
            high, low = _product(a, b)
        magnitude = np.einsum("...ij,...jk->...ik", abs(a), abs(b)) * abs(scale)
        if scale != 1 and k:
            high, error = two_product(high, np.array(scale))
            low = low * scale + error
        if beta_ != 0:
            extra, error = two_product(np.asarray(c, np.float64), np.array(beta_))
            high, carry = two_sum(high, np.broadcast_to(extra, high.shape))
            low = low + carry + error
            magnitude = magnitude + abs(extra)
        # A rounding among subnormals loses up to half the smallest one, before or after the factor alpha.
        underflow = (k * max(abs(scale), 1.0) + 2) * float(info.smallest_subnormal)
        bound = (k + 2) * u * magnitude * _REFERENCE_SLACK + underflow
        finite = np.isfinite(high)
        return Reference(high, np.where(finite & np.isfinite(low), low, 0.0), bound)


def check_close(result: Array, reference: Reference, what: str = "result") -> None:
    """Fail unless the non-finite pattern is the reference's and every finite element is within its bound."""
    high = reference.high
    if result.shape != high.shape:
        raise AssertionError(f"{what}: shape {result.shape}, must be {high.shape}")
    value = result.astype(np.float64)
    finite = np.isfinite(high)
    with np.errstate(all="ignore"):
        error = np.where(finite, abs((value - high) - reference.low), 0.0)
        # `not <=` rather than `>`, so that a NaN is wrong where a number is due.
        wrong = ~np.where(finite, error <= reference.bound, (value == high) | (np.isnan(value) & np.isnan(high)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} elements are wrong; at {at} {value[at]!r}, must be "
            f"{high[at]!r}, error {error[at]:.3g} of {np.broadcast_to(reference.bound, high.shape)[at]:.3g} allowed"
        )
