"""The ORDERED chain: with reproducible=True every kernel gives one bit pattern, the oracle's.

Expected results depend on nothing but the case, so they are computed once a process and shared by all kernels.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from oracle import chain, check_same_bits, finfo, ordered

from conformance.arena import LAYOUTS, case
from conformance.subject import THIN, chain_check, integers, normal, wide


class Case(NamedTuple):
    """Data by name, sizes and scalars: all that fixes an expected bit pattern."""

    data: str
    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0


def _subnormal(rng, dtype, *shape):
    """Factors whose products straddle the smallest normal and the smallest subnormal number."""
    half = int(finfo(dtype).minexp) // 2
    return np.ldexp(rng.standard_normal(shape), rng.integers(half - 20, half + 6, shape)).astype(dtype)


def _vanishing(rng, dtype, *shape):
    """Factors whose products all round to zero: a sum of them is -0 where the last product is negative."""
    return (rng.choice([-1.0, 1.0, 0.0], shape) * 2.0 ** int(finfo(dtype).minexp * 0.7)).astype(dtype)


def _ties(rng, dtype, *shape):
    """Few-bit numbers near powers of two: sums that land on or beside the middle between two results."""
    reach = min(13, int(finfo(dtype).maxexp) // 4)
    return np.ldexp(1.0 + rng.integers(0, 4, shape) * 2.0**-12, rng.integers(-reach, reach + 1, shape)).astype(dtype)


DATA = {
    "normal": normal, "wide": wide, "ties": _ties, "subnormal": _subnormal, "vanishing": _vanishing, "small": integers,
}  # fmt: skip


def _fitting(x, narrow):
    largest = x.dtype.type(finfo(narrow).max)
    return np.clip(x, -largest, largest).astype(narrow).astype(x.dtype)


@cache
def _summed(data, m, n, k, dtype, inputs):
    """a, b, c and the sums, which cases of other scalars share; numbers of a and b are such as `inputs` have."""
    rng = np.random.default_rng([len(data), m, n, k])
    a, b, c = (DATA[data](rng, dtype, *shape) for shape in ((m, k), (k, n), (m, n)))
    if inputs:
        a, b = (_fitting(x, np.dtype(name)) for x, name in zip((a, b), inputs, strict=True))
    found = a, b, c, chain(a, b)
    for array in found:
        array.flags.writeable = False
    return found


@cache
def _solved(one, dtype, inputs=()):
    """a, b, c and the expected bits."""
    a, b, c, sums = _summed(one.data, one.m, one.n, one.k, dtype, inputs)
    expected = ordered(a, b, c, one.alpha, one.beta, sums)
    expected.flags.writeable = False
    return a, b, c, expected


def _run(s, one, **options):
    """Multiply and compare; kernels that promise the order always are also called without asking for it."""
    a, b, c, expected = _solved(one, s.dtype, s.inputs)
    with case(**one._asdict()):
        always = s.always and one.m > 1 and one.n > 1  # with a vector, sums may be split unless the order is asked for
        for reproducible in (True, False) if always else (True,):
            third = c if one.beta else None
            result = s(a, b, third, alpha=one.alpha, beta=one.beta, reproducible=reproducible, **options)
            check_same_bits(result, expected, f"reproducible={reproducible}")
    return result


@chain_check
def chain_data(s):
    """Every kind of data, at sizes below, across and far above tiles."""
    for data in DATA:
        for m, n, k in ((1, 1, 3), (5, 3, 33), (19, 37, 61), *s.pick([], [(64, 64, 64), (35, 131, 47)])):
            _run(s, Case(data, m, n, k))


@chain_check
def chain_scalars(s):
    """alpha and beta: each operation of the epilogue rounds on its own, and is left out only where it is exact."""
    for data in ("normal", "ties", "subnormal", "vanishing"):
        for alpha in (1.0, -1.0, 0.5, 1 / 3, 1e-3, 0.0):
            for beta in (0.0, 1.0, -1.0, 0.25, 1 / 3):
                if s.pick((alpha + beta) * 12 % 1 == 0 or data == "ties", True):
                    _run(s, Case(data, 13, 18, 9, alpha, beta))


@chain_check
def chain_depths(s):
    """Sums longer than any block of K, and at its edges: the raw partial sum is carried on, unscaled."""
    depths = [k for k in s.edges("KC", "BK") if s.pick(k < 100 or k % 2, True)]
    for k in [*depths, *s.pick([521], [2 * depths[-1] + 7, 1031])]:
        for data in ("normal", "wide"):
            _run(s, Case(data, 9, 21, k))
        _run(s, Case("normal", 9, 21, k, 1 / 3, 0.25))
    if s.pick(False, True):
        _run(s, Case("normal", 8, 8, 5003, -0.1, 1.0))


@chain_check
def chain_tails(s):
    """Each k of 0 … 40 at partial tiles: what pads a block must not touch the sum, not even a sign of zero."""
    for k in (0, *range(1, 41, s.pick(5, 1))):
        for data in ("vanishing", "wide"):
            _run(s, Case(data, 7, 19, k))
            _run(s, Case(data, 7, 19, k, -1.0, 1 / 3))


@chain_check
def minus_zero(s):
    """A sum that underflows to -0 stays -0: adding +0·+0 as padding, or starting a second sum, would lose it."""
    tiny = s.dtype.type(2.0 ** int(finfo(s.dtype).minexp * 0.7))
    for m, n, k in ((1, 1, 1), (3, 5, 2), (9, 67, 7), (33, 33, 33)):
        a, b = np.full((m, k), tiny, s.dtype), np.full((k, n), -tiny, s.dtype)
        expected = ordered(a, b)
        if not np.signbit(expected).all():
            raise AssertionError("the oracle lost the sign")
        with case(m=m, n=n, k=k):
            check_same_bits(s(a, b, reproducible=True), expected)
            check_same_bits(s(a, -b, alpha=-1.0, reproducible=True), expected, "alpha = -1")


@chain_check
def chain_layouts(s):
    """Neither strides, nor transposes, nor working in place change a bit."""
    one = Case("wide", 14, 35, 29, 1 / 3, -0.7)
    a, b, c, expected = _solved(one, s.dtype, s.inputs)
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        if s.effort == THIN and s.kin and (number + s.kin) % 2:
            continue
        other = list(LAYOUTS.values())[number * 3 % len(LAYOUTS)]
        trans_a, trans_b = bool(number & 1), bool(number & 2)
        x, y, z = layout.place(a.T if trans_a else a), other.place(b.T if trans_b else b), layout.place(c)
        options = {"trans_a": trans_a, "trans_b": trans_b, "alpha": one.alpha, "beta": one.beta, "reproducible": True}
        with case(layout=name, trans_a=trans_a, trans_b=trans_b):
            check_same_bits(s(x, y, z, **options), expected)
            check_same_bits(s(x, y, z, **options, out=z), expected, "in place")
    for k in (s.edges("KC", "BK")[-1], 2 * s.edges("KC", "BK")[-1] + 1) if s.pick(False, True) else (521,):
        one = Case("normal", 11, 21, k, 1 / 3, -0.7)
        a, b, c, expected = _solved(one, s.dtype, s.inputs)
        out = c.copy()
        result = s(a, b, out, alpha=one.alpha, beta=one.beta, reproducible=True, out=out)
        check_same_bits(result, expected, f"in place, k = {k}")


def _pieces(size):
    """Blocks of uneven sizes that cover 0 … size."""
    start, step = 0, 1
    while start < size:
        yield slice(start, min(start + step, size))
        start, step = start + step, step * 3 + 1


@chain_check
def positions(s):
    """A block of a large product, computed by several threads or groups, has the bits of the block's own product."""
    large = [(170, 203, 90), (530, 517, 300), (3, 2100, 130), (2100, 3, 130)]
    for m, n, k in s.pick([(70, 83, 40), (140, 150, 30)], large):
        rng = np.random.default_rng([m, n, k])
        a, b, c = s.far(rng, m, k, exponent=9), s.far(rng, k, n, exponent=9), normal(rng, s.dtype, m, n)
        options = {"alpha": 1 / 3, "beta": 0.7, "reproducible": True}
        whole = s(a, b, c, **options)
        for number, (rows, columns) in enumerate((r, q) for r in _pieces(m) for q in _pieces(n)):
            with case(m=m, n=n, k=k, rows=rows, columns=columns):
                x, y, z = a[rows], b[:, columns], c[rows, columns]
                part = s.call(x, y, z, **options) if number % 2 else s.call(x.copy(), y.copy(), z.copy(), **options)
                check_same_bits(part, whole[rows, columns])
        rows, columns = slice(m // 2, m // 2 + 9), slice(n // 3, n // 3 + 9)
        check_same_bits(whole[rows, columns], ordered(a[rows], b[:, columns], c[rows, columns], 1 / 3, 0.7))


@chain_check
def batch_members(s):
    """A member of a stack has the bits of its own product."""
    rng = np.random.default_rng(20)
    for count, m, n, k in ((3, 7, 9, 5), (17, 33, 20, 40), *s.pick([], [(150, 8, 8, 8), (4, 96, 110, 70)])):
        a, b = s.far(rng, count, m, k), s.far(rng, count, k, n)
        stack = s(a, b, alpha=1 / 3, reproducible=True)
        for i in range(count):
            with case(count=count, m=m, n=n, k=k, member=i):
                check_same_bits(stack[i], s.call(a[i], b[i], alpha=1 / 3, reproducible=True))
        check_same_bits(stack[0], ordered(a[0], b[0], alpha=1 / 3))
        check_same_bits(s(a[0], b, alpha=1 / 3, reproducible=True)[0], stack[0], "a broadcast")
