"""What gemm_cuda_split and gemm_cuda_emulated make of a float32 product: planes of narrower numbers, multiplied.

Wgmma's steps are oracle.tensor_core's; the planes' exponents, roundings and order of products are those of the kernels.
"""

import numpy as np

from oracle.tensor_core import step

STAGE, STEP, FRACTION = 32, 16, 24  # of k: between two additions to float32, of one wgmma; bits below the largest
PLANES = {"bf16x6": 3, "fp16x3": 2}
LARGEST = {"bf16x6": 0, "fp16x3": 14}  # exponent of a line's largest element after scaling


def nearest(x, form):
    """x (float64 holding float32 numbers) rounded to the planes' type, to nearest even."""
    if form == "fp16x3":
        return x.astype(np.float16).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def split(x, form, axis):
    """The planes of x (float32, finite) scaled by 2^-exponent, an exponent for each line along `axis`."""
    largest = np.abs(x.astype(np.float64)).max(axis, keepdims=True)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - LARGEST[form], 0)
    left = np.ldexp(x.astype(np.float64), -exponent).astype(np.float32).astype(np.float64)
    planes = []
    for _ in range(PLANES[form]):
        planes.append(nearest(left, form))
        left = left - planes[-1]
    return planes, exponent


def product(a, b, form, stage=STAGE):
    """a (m, k) · b (k, n), float32, by products of planes summed over `stage` of k by the tensor cores alone."""
    left, a_exponent = split(a, form, 1)
    right, b_exponent = split(b, form, 0)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], stage):
        sums = np.zeros(total.shape)
        for order in reversed(range(PLANES[form])):  # the smallest products first
            for p in range(order + 1):
                for k in range(first, min(first + stage, a.shape[1]), STEP):
                    sums = step(sums, left[p][:, k : k + STEP], right[order - p][k : k + STEP], FRACTION)
        total = total + sums.astype(np.float32)
    return np.ldexp(total.astype(np.float64), a_exponent + b_exponent).astype(np.float32)


def bound(a, b, form):
    """What |product - exact| is within, where no element is subnormal."""
    a, b = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    within = (a.shape[1] + 48) * 2.0**-24 * (a @ b)
    lost = 2.0**-39 if form == "fp16x3" else 2.0**-134  # of a line's largest: half the last bit of subnormal planes
    return within + lost * (a.max(1, keepdims=True) * b.sum(0) + a.sum(1, keepdims=True) * b.max(0))
