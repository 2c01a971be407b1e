"""a·b + c rounded once, element by element, for float32 and float64, from basic arithmetic alone.

NumPy has no fma, and calling libm a million times through ctypes is slow. Both functions need an IEEE machine in
round-to-nearest mode without flush-to-zero, which test_oracle.py confirms against exact rationals.
"""

import math
from fractions import Fraction

import numpy as np

_SPLITTER = 2.0**27 + 1  # Veltkamp: cuts 53 bits into 26 + 26 and a sign
_SMALL, _LARGE = 2.0**-800, 2.0**900  # error terms of products and sums within stay normal and finite


def two_sum(a, b):
    """(s, e): s = fl(a + b) and s + e = a + b exactly (Knuth)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def two_product(a, b):
    """(p, e): p = fl(a·b) and p + e = a·b exactly (Dekker), away from over- and underflow."""
    p = a * b
    a_high, b_high = (x * _SPLITTER - (x * _SPLITTER - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def odd_sum(a, b):
    """a + b rounded to odd: of the two neighbours of an inexact sum the one with an odd last bit.

    Rounding such a sum again to at least two bits less equals rounding the exact sum once.
    """
    s, e = two_sum(a, b)
    away = np.where((e > 0) == (s > 0), 1, -1)
    bits = s.view(np.int64)
    inexact = np.isfinite(e) & (e != 0) & (bits & 1 == 0)
    return (bits + np.where(inexact, away, 0)).view(np.float64)


def fma32(a, b, c):
    """a·b + c of float32. The caller ignores floating-point warnings."""
    product = a.astype(np.float64) * b  # exact: 24 + 24 bits, and the exponent range is ample
    return odd_sum(product, c.astype(np.float64)).astype(np.float32)


def fma_exact(a, b, c):
    """The float64 fma in rational arithmetic: slow and right everywhere."""
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b + c
    if not math.isfinite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(total)  # rounds to nearest even, subnormals and the sign of an underflow included
    except OverflowError:
        return math.inf if total > 0 else -math.inf


_fma_exact = np.frompyfunc(fma_exact, 3, 1)


def _exact_sum(a, b, c):
    """(v, z): a·b + c = v + z but for z being rounded to odd (Boldo and Melquiond)."""
    p, p_error = two_product(a, b)
    t, t_error = two_sum(c, p_error)
    v, v_error = two_sum(p, t)
    return v, odd_sum(t_error, v_error)


def _fma_small(a, b, c):
    """The float64 fma for sums that may be subnormal: scaled up by 2⁶⁰⁰, then rounded to the subnormals' grid."""
    v, z = _exact_sum(a * 2.0**300, b * 2.0**300, c * 2.0**600)
    s, rest = two_sum(v, z)
    grid = 2.0 ** (600 - 1074)
    on_grid = np.rint(s / grid) * grid  # ties to even
    off = s - on_grid
    tie = (abs(off) == grid / 2) & (rest != 0)
    on_grid = np.where(tie, s + np.copysign(grid / 2, rest), on_grid)
    result = np.where(abs(s) < 2.0 ** (600 - 1022), on_grid, s) * 2.0**-600
    return np.where(result == 0, np.copysign(0.0, s), result)


def fma64(a, b, c):
    """a·b + c of float64: error-free transforms where they hold, rational arithmetic for the rest.

    The caller ignores floating-point warnings.
    """
    v, z = _exact_sum(a, b, c)
    p = a * b
    result = v + z
    safe = (abs(a) < _LARGE) & (abs(b) < _LARGE) & (abs(p) < _LARGE) & (abs(p) > _SMALL)
    safe &= (abs(c) < _LARGE) & ((abs(c) > _SMALL) | (c == 0))
    if safe.all():
        return result
    trivial = (a == 0) | (b == 0)
    result = np.where(trivial, p + c, result)
    hard = ~(safe | trivial) | ~np.isfinite(c)
    if hard.any():
        a, b, c = np.broadcast_arrays(a, b, c)
        x, y, z = a[hard], b[hard], c[hard]
        scaled = (x * 2.0**300) * (y * 2.0**300)
        moderate = (abs(x) < 2.0**300) & (abs(y) < 2.0**300) & (abs(z) < 2.0**300) & (abs(x * y) < 2.0**300)
        # A product below a quarter of the smallest subnormal moves no other number and gives its sign to a zero.
        negligible = moderate & (abs(scaled) < 2.0 ** (600 - 1080))
        small = moderate & ~negligible
        fixed = np.where(z != 0, z, np.copysign(0.0, np.copysign(1.0, x) * np.copysign(1.0, y)))
        fixed[small] = _fma_small(x[small], y[small], z[small])
        rest = ~(negligible | small)
        fixed[rest] = _fma_exact(x[rest], y[rest], z[rest]).astype(np.float64)
        result[hard] = fixed
    return result


def fma(a, b, c):
    """a·b + c of equal dtype (float32 or float64), broadcast, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if not a.dtype == b.dtype == c.dtype:
        raise TypeError(f"mixed dtypes: {a.dtype} {b.dtype} {c.dtype}")
    with np.errstate(all="ignore"):
        if a.dtype == np.float32:
            return fma32(a, b, c)
        if a.dtype == np.float64:
            return fma64(a, b, c)
    raise TypeError(f"no fma for {a.dtype}")
