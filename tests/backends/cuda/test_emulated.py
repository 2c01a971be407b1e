"""float32 products by bfloat16 and float16 ones on a model of Hopper's tensor cores: as accurate as a chain of fma."""

import numpy as np
import pytest
from oracle.planes import PLANES, bound, product, split
from test_tensor_core import normal, uniform, wide


def conditioned(random, *shape):
    """Singular values from 1 to 10⁻⁸."""
    least = min(shape)
    left, right = (np.linalg.qr(random.standard_normal((n, least)))[0] for n in shape)
    return (left * np.logspace(0, -8, least)) @ right.T


def graded(random, *shape):
    """Rows and columns of sizes from 2⁻³⁰ to 2³⁰, so that few products make a sum."""
    rows, columns = (2.0 ** random.integers(-30, 31, n) for n in shape)
    return random.standard_normal(shape) * rows[:, None] * columns


FAMILIES = [normal, uniform, wide, conditioned, graded]
FORMS = sorted(PLANES)


def operands(family, k):
    random = np.random.default_rng(k)
    return family(random, 9, k).astype(np.float32), family(random, k, 11).astype(np.float32)


def chain(a, b):
    """The product by one fma after the other, rounded to float32 each."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for p in range(a.shape[1]):
        total = (total + a[:, p : p + 1].astype(np.float64) * b[p]).astype(np.float32)
    return total


def errors(a, b, result):
    """In units of the componentwise bound's, 2⁻²⁴ · |a| · |b|."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.abs(result - a @ b) / (2.0**-24 * (np.abs(a) @ np.abs(b)))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", [1, 17, 33, 300])
def test_within_its_bound(form, family, k):
    a, b = operands(family, k)
    error = np.abs(product(a, b, form) - a.astype(np.float64) @ b.astype(np.float64))
    assert (error <= bound(a, b, form)).all()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("form", FORMS)
def test_no_worse_than_a_chain_of_fma(form, family):
    a, b = operands(family, 2048)
    ours, chains = errors(a, b, product(a, b, form)), errors(a, b, chain(a, b))
    few = 8 if form == "fp16x3" and family is graded else 0  # what planes of float16 lose of a product is not averaged
    assert ours.max() <= max(chains.max(), few)
    assert np.median(ours) <= np.median(chains)


def test_why_stages_are_short():
    """Summed by the tensor cores alone, errors of positive addends all have one sign, and grow with k."""
    a, b = operands(uniform, 2048)
    alone, promoted = (errors(a, b, product(a, b, "bf16x6", stage)).max() for stage in (2048, 32))
    assert alone > 10 * promoted


@pytest.mark.parametrize("form", FORMS)
def test_planes_hold_the_number(form):
    x = np.random.default_rng(3).standard_normal((5, 200)).astype(np.float32)
    x[1] *= np.float32(2.0**120)
    x[2] *= np.float32(2.0**-120)
    x[3] = 0
    planes, exponent = split(x, form, 1)
    error = np.abs(np.ldexp(x.astype(np.float64), -exponent) - sum(planes))
    largest = np.abs(sum(planes)).max(1, keepdims=True)
    if form == "bf16x6":
        assert not error.any()
    assert (error <= np.maximum(2.0**-23 * np.abs(sum(planes)), 2.0**-39 * largest)).all()
    assert (np.abs(planes[0]) <= 2.0 ** {"bf16x6": 1, "fp16x3": 15}[form]).all()
