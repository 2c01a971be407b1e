"""α·A·B + β·C beyond the result's precision, and the componentwise bound of the numerical contract."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oracle.fma import two_product, two_sum
from oracle.residues import norms

EMULATED = 48  # units of roundoff that float32's products of narrower numbers may lose besides k; see oracle.planes
_REFERENCE_SLACK = 1 + 2.0**-10  # the reference's own error and second-order terms of the bound
EXTENDED = bool(np.longdouble(1) + np.longdouble(2.0**-63) > 1)  # long double has at least 64 bits


@dataclass(frozen=True)
class Reference:
    """high + low is the product, unevaluated; |C - (high + low)| ≤ bound is what a kernel owes, and infinity for what
    is not below `limit`. Of complex products this holds for each part."""

    high: np.ndarray
    low: np.ndarray
    bound: np.ndarray
    limit: float


def finfo(dtype):
    """np.finfo, for ml_dtypes' types as well."""
    if np.dtype(dtype).kind in "fc" and not np.dtype(dtype).name.startswith("float8"):
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def is_narrow(dtype):
    """Whether sums of `dtype` are float32's, rounded once at the end."""
    return np.dtype(dtype).name in ("float16", "bfloat16")


def _product(a, b, plain):
    """A·B of float64 matrices as high + low, and |A|·|B|.

    `plain`: entries have at most 24 bits, so that products are exact and sums lose 2⁻⁵³, nothing beside 2⁻²⁴. Else in
    long double, if that has 64 bits or more: relative to |A|·|B| its error is below (k + 1) · 2⁻⁶⁴, half of what
    `_REFERENCE_SLACK` allows. Else in double-double, with an error of about k · 2⁻¹⁰⁴ in much more time.
    """
    magnitude = np.einsum("...ij,...jk->...ik", abs(a), abs(b))
    if plain:
        high = np.einsum("...ij,...jk->...ik", a, b)
        return high, np.zeros_like(high), magnitude
    if EXTENDED:
        total = np.einsum("...ij,...jk->...ik", a.astype(np.longdouble), b.astype(np.longdouble))
        high = total.astype(np.float64)
        return high, (total - high).astype(np.float64), magnitude
    high, low = np.zeros(magnitude.shape), np.zeros(magnitude.shape)
    for p in range(a.shape[-1]):
        term, term_low = two_product(a[..., :, p, None], b[..., p, None, :])
        high, carry = two_sum(high, term)
        low = low + (carry + term_low)
    return high, low, magnitude


def _parts(x):
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    x = np.empty(parts[0].shape, np.complex128)
    x.real, x.imag = parts
    return x


def _combination(terms):
    """Σ factor · (high + low), and Σ |factor| · magnitude; a factor of 1 is no multiplication."""
    total = None
    for factor, (high, low, magnitude) in terms:
        if factor != 1:
            high, error = two_product(high, np.array(factor))
            low, magnitude = low * factor + error, magnitude * abs(factor)
        if total is not None:
            high, carry = two_sum(total[0], np.broadcast_to(high, total[0].shape))
            low, magnitude = low + total[1] + carry, magnitude + total[2]
        total = high, low, magnitude
    assert total is not None
    return total


def _scaled(factor, parts):
    """For each part of factor · (a complex or real number), its terms. A real factor scales both parts on their own."""
    if factor.imag == 0:
        return [[(float(factor.real), part)] for part in parts]
    (re, im), (x, y) = (float(factor.real), float(factor.imag)), parts
    return [[(re, x), (-im, y)], [(re, y), (im, x)]]


def _loose(dtype, k, precision, inputs):
    """What |A|·|B| is multiplied by where it is not (k + 2)·u; see tensor_core.py and planes.py."""
    if precision == "medium" and any(name.startswith("float8") for name in inputs):
        return 2.0**-5 + (k + 2) * 2.0**-24
    if dtype != np.float32 or precision == "highest" or inputs:
        return None
    return (k + EMULATED) * 2.0**-24 if precision == "high" else 2.0**-10 + (k + 2) * 2.0**-22


def exact(
    a, b, c = None, alpha = 1.0, beta = 0.0, precision = "highest",
    inputs = (),
):  # fmt: skip
    """The reference and its bound plus an allowance for underflow.

    a (*batch, m, k), b (*batch, k, n), both of one floating-point or complex dtype with unit roundoff u; alpha and beta
    are rounded to that dtype. The bound is (k + 2)·u·(|α|·|A|·|B| + |β·C|); for float16 and bfloat16, whose sums are
    float32's, with 2⁻²⁴ for u, and u·|C| for the one rounding at the end; for complex numbers, whose parts are sums of
    2k products, 2(k + 2)·u, absolute values being those of the products of parts. Non-finite operands give the
    non-finite pattern of IEEE arithmetic, whatever the order of summation. With precision="medium" the sums of
    float16 are float16's themselves: u is 2⁻¹¹, and nothing is owed where |A|·|B| reaches the largest number.
    What float32 owes with less than the highest precision, and products of fp8 (by the names of `inputs`), is
    `_loose`'s; of float32 below its smallest normal number nothing is owed then. What float64 owes with
    precision="high" is in oracle.residues.
    """
    dtype, k = a.dtype, a.shape[-1]
    info, complex_, narrow = finfo(dtype), dtype.kind == "c", is_narrow(dtype)
    half_sums = dtype == np.float16 and precision == "medium"
    sums = np.finfo(np.float32) if narrow and not half_sums else info
    loose = _loose(dtype, k, precision, inputs)
    scale, beta_ = (np.array(x, dtype).astype(np.complex128)[()] for x in (alpha, beta))
    wide = np.complex128 if complex_ else np.float64
    a, b = a.astype(wide), b.astype(wide)
    plain = narrow or dtype in (np.float32, np.complex64)
    with np.errstate(all="ignore"):
        if scale == 0:  # neither A nor B is read
            a, b, k = a[..., :0], b[..., :0, :], 0
        if complex_:
            left, right = np.concatenate([b.real, b.imag], -2), np.concatenate([b.imag, b.real], -2)
            parts = [
                _product(np.concatenate([a.real, -a.imag], -1), left, plain),
                _product(np.concatenate([a.real, a.imag], -1), right, plain),
            ]
        else:
            parts = [_product(a, b, plain)]
        terms = _scaled(scale if k else np.complex128(1), parts)
        if beta_ != 0:
            zero = np.zeros(())
            addend = [(x.astype(np.float64), zero, abs(x.astype(np.float64))) for x in _parts(np.asarray(c))]
            terms = [term + more for term, more in zip(terms, _scaled(beta_, addend), strict=True)]
        totals = [_combination(term) for term in terms]
        # A rounding among subnormals loses up to half the smallest one, before or after the factor alpha.
        steps = 2 * (k + 2) if complex_ else k + 2
        least = float(sums.smallest_subnormal if loose is None else sums.smallest_normal)
        underflow = (steps * max(abs(scale), 1.0) + 2) * least
        unit = steps * float(sums.eps) / 2 if loose is None else loose
        if precision == "high" and dtype == np.float32:  # what is far below the largest of its row or column
            largest = [abs(x).max(axis, initial=0.0, keepdims=True) for x, axis in ((a, -1), (b, -2))]
            underflow = underflow + abs(scale) * k * 2.0**-38 * (largest[0] * largest[1])
        if precision == "high" and dtype == np.float64 and k:
            lost = norms(a, b)
            unit, underflow = 3 * 2.0**-53, underflow + abs(scale) * 2.0**-53 * np.where(np.isfinite(lost), lost, 0.0)
        bounds = []
        for high, _, magnitude in totals:
            bound = unit * magnitude * _REFERENCE_SLACK + underflow
            if narrow:
                bound = bound + float(info.eps) / 2 * (abs(high) + bound) + float(info.smallest_subnormal) / 2
            if half_sums:
                bound = np.where(parts[0][2] < float(info.max) / 2, bound, np.inf)
            bounds.append(bound)
        lows = [np.where(np.isfinite(high) & np.isfinite(low), low, 0.0) for high, low, _ in totals]
        # rounding to infinity begins half a unit in the last place above the largest number
        limit = float(info.max) * (1 + float(info.eps) / 4) if dtype.itemsize // (2 if complex_ else 1) < 8 else np.inf
        return Reference(_joined([high for high, _, _ in totals]), _joined(lows), _joined(bounds), limit)


def check_close(result, reference, what="result"):
    """Fail unless the non-finite pattern is the reference's and every finite element is within its bound."""
    if result.shape != reference.high.shape:
        raise AssertionError(f"{what}: shape {result.shape}, must be {reference.high.shape}")
    names = ("real part of ", "imaginary part of ") if result.dtype.kind == "c" else ("",)
    parts = (_parts(x) for x in (result, reference.high, reference.low, reference.bound))
    for name, *part in zip(names, *parts, strict=True):
        _check_part(*part, reference.limit, name + what)


def _check_part(result, high, low, bound, limit, what):
    value = result.astype(np.float64)
    finite = np.isfinite(high)
    with np.errstate(all="ignore"):
        error = np.where(finite, abs((value - high) - low), 0.0)
        # `not <=` rather than `>`, so that a NaN is wrong where a number is due.
        right = np.where(
            finite, (error <= bound) | np.isinf(bound), (value == high) | (np.isnan(value) & np.isnan(high))
        )
        overflow = finite & (abs(high) + bound >= limit) & (value == np.copysign(np.inf, high))
        wrong = ~((right & ~(finite & (abs(high) - bound > limit))) | overflow)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} elements are wrong; at {at} {value[at]!r}, must be "
            f"{high[at]!r}, error {error[at]:.3g} of {np.broadcast_to(bound, high.shape)[at]:.3g} allowed"
        )


def wrapped(a, b, c, alpha, beta, dtype):
    """The product of integers modulo 2 to the power of `dtype`'s bits, whatever the types of a and b."""
    with np.errstate(over="ignore"):
        factors = [np.array(x % 2**64, np.uint64) for x in (int(alpha), int(beta))]
        total = np.einsum("...ij,...jk->...ik", *(x.astype(np.int64).astype(np.uint64) for x in (a, b))) * factors[0]
        if c is not None:
            total = total + c.astype(np.int64).astype(np.uint64) * factors[1]
        return np.asarray(total).astype(dtype)
