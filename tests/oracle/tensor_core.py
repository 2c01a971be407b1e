"""What a Hopper tensor core makes of a product, step by step, and the bounds that follow from it.

A step of wgmma adds 32 bytes of k (8 of TF32, 32 of fp8) to an accumulator: the products are exact, all addends, the
accumulator among them, are cut toward zero at the same bit, `fraction` bits below the leading one of the largest, and
their exact sum is cut to float32. So sums do not carry float32's accuracy along: a kernel adds them to a float32 of its
own now and then ("promotes" them). Measured: in fp8 `fraction` is 13; else the accumulator's own last bit is 23.
"""

import numpy as np

FRACTION = {"fp8": 13, "tf32": 24}
STEP = {"fp8": 32, "tf32": 8}


def round_tf32(x):
    """float32 rounded to TF32's 11 bits, to nearest even, as TMA does on the way; infinities and NaN stay."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).astype(np.uint32).view(np.float32)


def cut(x, bits):
    """x (float64) with the leading `bits` of its significand, the others dropped."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def step(sums, a, b, fraction):
    """sums (m, n) + a (m, s) · b (s, n) as one instruction computes it; all float64 and finite."""
    addends = np.concatenate([sums[..., None], a[:, None, :] * b.T[None, :, :]], -1)
    largest = np.frexp(np.abs(addends).max(-1, keepdims=True))[1] - 1
    total = np.ldexp(np.trunc(np.ldexp(addends, fraction - largest)).sum(-1), (largest - fraction)[..., 0])
    return cut(total, 24)


def product(a, b, kind, promote=0):
    """a (m, k) · b (k, n) in float32, of entries that are exact in `kind`.

    promote: after so many of k the accumulator joins a float32 sum, rounded to nearest, and starts from 0; 0: never.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    k, deep = a.shape[1], STEP[kind]
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, k, promote or max(k, 1)):
        last = min(first + promote, k) if promote else k
        sums = np.zeros(total.shape)
        for p in range(first, last, deep):
            sums = step(sums, a[:, p : min(p + deep, last)], b[p : min(p + deep, last)], FRACTION[kind])
        total = total + sums.astype(np.float32)
    return total


def bound(a, b, kind):
    """What |result - exact| of alpha = 1, beta = 0 is within, before it is rounded to the type of the output."""
    k = a.shape[1]
    unit = 2.0**-5 + (k + 2) * 2.0**-24 if kind == "fp8" else 2.0**-10 + (k + 2) * 2.0**-22
    return unit * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
