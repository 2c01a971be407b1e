"""What the kernels make of a float64 product by residues: integers, residues, sums and the exact result, in NumPy.

See csrc/cuda/residues.cuh. Everything is exact, in integers of Python where int64 does not suffice.
"""

import math
from fractions import Fraction

import numpy as np

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199)
ALL = math.prod(MODULI)
LIMIT = Fraction(ALL >> 61 << 60) * (1 - Fraction(1, 1 << 20))  # of the square of a line's 2-norm, as integers


def exponents(x, axis):
    """For each line of x (float64, finite) along `axis`: the least e with |x · 2^-e|² < LIMIT."""
    found = []
    for line in np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]):
        square = sum(Fraction(float(value)) ** 2 for value in line)
        e = 0
        if square:
            ratio = square / LIMIT
            e = (ratio.numerator.bit_length() - ratio.denominator.bit_length()) // 2 - 2
            while square >= LIMIT * Fraction(4) ** e:
                e += 1
        found.append(e)
    return np.array(found)


def whole(x, e, axis):
    """x · 2^-e, rounded to int64, to nearest even."""
    return np.rint(np.ldexp(np.ldexp(x, -np.expand_dims(e // 2, axis)), -np.expand_dims(e - e // 2, axis))).astype(
        np.int64
    )


def planes(x, *, right):
    """The planes of residues of the integers x, of type int8: from -q / 2 to q / 2 (-128 instead of 128)."""
    found = []
    for q in MODULI:
        factor = pow(ALL // q, -1, q) if right else 1
        found.append(((x % q * factor + q // 2) % q - q // 2).astype(np.int8))
    return np.stack(found)


def combined(rests):
    """The integers of which `rests` are the residues, one array for each modulus, as an array of Python's integers."""
    total = sum(rest.astype(object) * (ALL // q) for q, rest in zip(MODULI, rests, strict=True)) % ALL
    return np.where(total > ALL // 2, total - ALL, total)


def product(a, b):
    """a (m, k) · b (k, n), float64 and finite."""
    e, f = exponents(a, 1), exponents(b, 0)
    left, right = planes(whole(a, e, 1), right=False), planes(whole(b, f, 0), right=True)
    sums = combined([x.astype(np.int64) @ y.astype(np.int64) % q for x, y, q in zip(left, right, MODULI, strict=True)])
    return scaled(sums, e[:, None] + f)


def scaled(sums, powers):
    """Integers · 2^powers: rounded to float64, and once more where the result is subnormal or infinite."""
    found = [_rounded(s, p) for s, p in zip(sums.ravel(), powers.ravel(), strict=True)]
    return np.array(found).reshape(sums.shape)


def _rounded(integer, power):
    try:
        return float(Fraction(float(integer)) * Fraction(2) ** int(power))
    except OverflowError:
        return math.inf if integer > 0 else -math.inf


def norms(a, b):
    """√k · |a[i, :]| · |b[:, j]|, with 2-norms."""
    left, right = (np.sqrt((x.astype(np.longdouble) ** 2).sum(axis)) for x, axis in ((a, -1), (b, -2)))
    return (math.sqrt(a.shape[-1]) * left[..., :, None] * right[..., None, :]).astype(np.float64)


def bound(a, b, alpha=1.0, beta=0.0, c=None):
    """What |alpha · product + beta · c - exact| is within, where no element is subnormal or overflows."""
    size = abs(alpha) * (np.abs(a) @ np.abs(b)) + (0 if c is None else np.abs(beta * c))
    return 2.0**-53 * (3 * size + abs(alpha) * norms(a, b))
