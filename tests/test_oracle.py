"""The oracle against rational arithmetic and the C library, before it judges any kernel."""

import ctypes
import ctypes.util
import sys
from fractions import Fraction

import numpy as np
import pytest
from oracle import check_close, check_same_bits, exact, fma, ordered
from oracle.exact import EXTENDED
from oracle.fma import fma_exact

from gemm.select.verify.single import ORDERED, bits_hash, ordered_case

DTYPES = [np.float32, np.float64]


def bits(rng, dtype, size):
    """Random bit patterns: every exponent, subnormals, zeros, infinities and NaNs."""
    raw = rng.integers(0, 256, size * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal], dtype)
    return np.where(rng.random(size) < 0.1, rng.choice(special, size), raw)


def triples(rng, dtype, size):
    """Random bits, and sums that nearly cancel or sit a hair from a tie between two results."""
    a, b, c = (bits(rng, dtype, size) for _ in range(3))
    near = rng.standard_normal((3, size)).astype(dtype)
    with np.errstate(all="ignore"):
        near[2] = -near[0] * near[1] * (1 + rng.integers(-2, 3, size) * np.finfo(dtype).eps)
        tie = np.ones((3, size), dtype)
        tie[0] += rng.integers(0, 8, size) * np.finfo(dtype).eps
        tie[1] += rng.integers(0, 8, size) * np.finfo(dtype).eps
        tie[2] = rng.standard_normal(size) * dtype(2) ** rng.integers(-60, 60, size)
        # Products and sums about the smallest numbers, of many bits and of few, so that ties occur.
        low = int(np.finfo(dtype).minexp)
        exponents = np.array([[low // 2], [low // 2], [low]]) + rng.integers(-15, 5, (3, size))
        exponents[2] -= rng.integers(0, 45, size)
        many = np.ldexp(rng.standard_normal((3, size)), exponents).astype(dtype)
        few = np.ldexp(rng.integers(-9, 10, (3, size)).astype(float), exponents).astype(dtype)
    return tuple(np.concatenate(x) for x in zip((a, b, c), near, tie, many, few, strict=True))


def same(a, b):
    kind = f"u{a.dtype.itemsize}"
    return (a.view(kind) == b.view(kind)) | (np.isnan(a) & np.isnan(b))


def libm_fma(dtype):
    name = ctypes.util.find_library("m")
    if name is None or sys.platform == "win32":
        pytest.skip("no libm to compare with")
    libm = ctypes.CDLL(name)
    function, kind = (libm.fmaf, ctypes.c_float) if dtype is np.float32 else (libm.fma, ctypes.c_double)
    function.restype, function.argtypes = kind, (kind,) * 3
    return function


@pytest.mark.parametrize("dtype", DTYPES)
def test_fma_is_libm(dtype):
    a, b, c = triples(np.random.default_rng(1), dtype, 5000)
    function = libm_fma(dtype)
    expected = np.array([function(*x) for x in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], dtype)
    result = fma(a, b, c)
    wrong = ~same(result, expected)
    assert not wrong.any(), (a[wrong][0], b[wrong][0], c[wrong][0], result[wrong][0], expected[wrong][0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fma_is_the_rounded_rational(dtype):
    a, b, c = triples(np.random.default_rng(2), dtype, 500)
    with np.errstate(all="ignore"):
        if dtype is np.float64:
            expected = np.array([fma_exact(*x) for x in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)])
        else:
            expected = np.array([_nearest32(*x) for x in zip(a, b, c, strict=True)], np.float32)
    assert same(fma(a, b, c), expected).all()


def _nearest32(a, b, c):
    """The float32 nearest to a·b + c, ties to even, by comparing candidates as rationals."""
    guess = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    if not np.isfinite([a, b, c, guess]).all() or guess == 0 or abs(guess) == np.finfo(np.float32).max:
        return guess  # overflow, zero or no rounding at all: the double carries it
    truth = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    around = [np.nextafter(guess, np.float32(way)) for way in (-np.inf, np.inf)] + [guess]
    finite = [x for x in around if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - truth), int(x.view(np.uint32)) & 1))


@pytest.mark.parametrize("extended", sorted({False, EXTENDED}))
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_against_rationals(dtype, extended, monkeypatch):
    monkeypatch.setattr(sys.modules["oracle.exact"], "EXTENDED", extended)
    rng = np.random.default_rng(3)
    m, n, k, alpha, beta = 3, 4, 29, 0.1, -1 / 3
    a, b, c = (
        (rng.standard_normal(shape) * 2.0 ** rng.integers(-40, 40, shape)).astype(dtype)
        for shape in ((m, k), (k, n), (m, n))
    )
    reference = exact(a, b, c, alpha, beta)
    scale, beta_ = Fraction(float(dtype(alpha))), Fraction(float(dtype(beta)))
    u = Fraction(float(np.finfo(dtype).eps)) / 2
    own = (k + 1) * u / 2**11 if extended and dtype is np.float64 else u / 2**20  # the reference's error
    for i in range(m):
        for j in range(n):
            terms = [scale * Fraction(float(a[i, p])) * Fraction(float(b[p, j])) for p in range(k)]
            terms.append(beta_ * Fraction(float(c[i, j])))
            magnitude = sum(map(abs, terms))
            value = Fraction(float(reference.high[i, j])) + Fraction(float(reference.low[i, j]))
            assert abs(value - sum(terms)) <= magnitude * own
            bound = float((k + 2) * u * magnitude)
            assert bound <= reference.bound[i, j] <= 1.01 * bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_chain_of_scalars(dtype):
    """`ordered` against the definition, written out with one scalar fma after another."""
    rng = np.random.default_rng(4)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 17), (17, 3), (2, 3)))
    result = ordered(a, b, c, 1 / 3, 0.25)
    for i in range(2):
        for j in range(3):
            acc = dtype(0)
            for p in range(17):
                acc = fma(a[i, p], b[p, j], acc)[()]
            acc = dtype(1 / 3) * acc
            assert result[i, j] == fma(dtype(0.25), c[i, j], acc)
    check_close(result, exact(a, b, c, 1 / 3, 0.25))


def test_underflow_to_minus_zero():
    """fma(tiny, -tiny, +0) is -0 and stays -0 through further such steps; adding +0·+0 would hide it."""
    tiny = np.full((1, 3), 2.0**-100, np.float32)
    assert np.signbit(ordered(tiny, -tiny.T)[0, 0])
    with pytest.raises(AssertionError, match="bits"):
        check_same_bits(np.zeros((1, 1), np.float32), ordered(tiny, -tiny.T))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_checks_refuse(dtype):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((4, 9)).astype(dtype), rng.standard_normal((9, 5)).astype(dtype)
    good = ordered(a, b)
    reference = exact(a, b)
    check_close(good, reference)
    for poison in (np.nan, np.inf, good[1, 2] * (1 + 40 * np.finfo(dtype).eps)):
        bad = good.copy()
        bad[1, 2] = poison
        with pytest.raises(AssertionError, match=r"1 of 20 elements are wrong; at \(1, 2\)"):
            check_close(bad, reference)
        with pytest.raises(AssertionError):
            check_same_bits(bad, good)
    a[0, 0] = np.inf
    with pytest.raises(AssertionError):
        check_close(good, exact(a, b))
    with pytest.raises(AssertionError):
        check_close(good[:3], reference)


def test_non_finite_patterns():
    a = np.array([[np.inf, 0.0], [0.0, np.nan], [np.inf, -np.inf], [1.0, 2.0]], np.float32)
    b = np.array([[1.0, 0.0, -2.0], [1.0, 0.0, -3.0]], np.float32)
    for dtype in DTYPES:
        high = exact(a.astype(dtype), b.astype(dtype)).high
        expected = [[np.inf, np.nan, -np.inf], [np.nan] * 3, [np.nan] * 3, [3.0, 0.0, -8.0]]
        np.testing.assert_array_equal(high, expected)
        np.testing.assert_array_equal(ordered(a.astype(dtype), b.astype(dtype)), expected)


@pytest.mark.parametrize("dtype", [*ORDERED])
def test_published_bits(dtype):
    """The hashes that the package verifies kernels by are this oracle's, not some kernel's."""
    result = ordered(*ordered_case(dtype), 0.75, -1.25)
    assert bits_hash(result) == ORDERED[dtype]
    assert np.isfinite(result.astype(np.float64)).all()
