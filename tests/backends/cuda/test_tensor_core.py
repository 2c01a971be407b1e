"""The bounds of precision="medium" for TF32 and fp8, shown on a model of Hopper's tensor cores (oracle.tensor_core)."""

import numpy as np
import pytest
from oracle.tensor_core import bound, product, round_tf32

ml_dtypes = pytest.importorskip("ml_dtypes")

FP8 = ("float8_e4m3fn", "float8_e5m2")


def normal(random, *shape):
    return random.standard_normal(shape)


def uniform(random, *shape):
    return random.uniform(0, 1, shape)


def wide(random, *shape):
    return random.standard_normal(shape) * 2.0 ** random.integers(-20, 21, shape)


def cancelling(random, *shape):
    """Large entries of both signs beside small ones: sums far smaller than their addends."""
    x = random.standard_normal(shape)
    x[..., ::2] *= 64.0
    return x


FAMILIES = [normal, uniform, wide, cancelling]


def fp8(x, name):
    """x in fp8, kept within its finite numbers, as float32."""
    info = ml_dtypes.finfo(name)
    return np.clip(x, float(info.min), float(info.max)).astype(name).astype(np.float32)


def worst(a, b, result, kind):
    """The largest error as a share of the bound."""
    error = np.abs(result - a.astype(np.float64) @ b.astype(np.float64))
    return float((error / bound(a, b, kind)).max())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("types", [(x, y) for x in FP8 for y in FP8], ids="-".join)
def test_fp8_promoted_every_128_keeps_its_bound(types, family):
    random = np.random.default_rng(1)
    a, b = fp8(family(random, 9, 1000), types[0]), fp8(family(random, 1000, 11), types[1])
    assert worst(a, b, product(a, b, "fp8", promote=128), "fp8") <= 1


def test_fp8_promoted_at_worst():
    """One addend is just so large that each other one loses nearly all of itself."""
    a, b = np.full((1, 128), 1.875 * 2.0**-7), np.full((128, 1), 1.875 * 2.0**-8)
    a[0, 0] = b[0, 0] = 1.0
    share = worst(a, b, product(a, b, "fp8", promote=128), "fp8")
    assert 0.2 < share <= 1


def test_fp8_sums_are_no_float32_sums():
    """Why precision="highest" is not theirs: the accumulator misses (k + 2)·2⁻²⁴ even when it joins after each step."""
    a, b = np.full((1, 32), 1.875 * 2.0**-7), np.full((32, 1), 1.875 * 2.0**-8)
    a[0, 0] = b[0, 0] = 1.0
    error = abs(float(product(a, b, "fp8", promote=32)[0, 0]) - float((a @ b)[0, 0]))
    assert error > 100 * (32 + 2) * 2.0**-24 * float((np.abs(a) @ np.abs(b))[0, 0])


def test_fp8_unpromoted_drops_a_long_tail():
    """Why it is promoted: alone, the accumulator stops growing once an addend is below 2⁻¹³ of it."""
    a, b = np.ones((1, 1 << 15), np.float32), np.full((1 << 15, 1), 2.0**-4, np.float32)
    b[0] = 2.0**9
    exact = float((a.astype(np.float64) @ b)[0, 0])
    alone, promoted = (abs(float(product(a, b, "fp8", promote=p)[0, 0]) - exact) / exact for p in (0, 128))
    assert alone > 0.5
    assert promoted < 0.01


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("k", [1, 8, 33, 1000])
def test_tf32_keeps_its_bound(family, k):
    random = np.random.default_rng(k)
    a, b = family(random, 9, k).astype(np.float32), family(random, k, 11).astype(np.float32)
    assert worst(a, b, product(round_tf32(a), round_tf32(b), "tf32"), "tf32") <= 1


def test_tf32_bound_tells_rounding_from_cutting():
    """Entries of which rounding loses half a unit keep the bound; dropping their last bits does not."""
    a = b = np.full((1, 1), 1 + 2.0**-10 - 2.0**-23, np.float32)
    dropped = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    assert worst(a, b, product(round_tf32(a), round_tf32(b), "tf32"), "tf32") <= 1
    assert worst(a, b, product(dropped, dropped, "tf32"), "tf32") > 1


def test_round_tf32():
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-10, 3.4e38, np.inf, 2.0**-149], np.float32)
    want = [1, 1 + 2.0**-9, -1 - 2.0**-10, np.float32(3.4e38).item(), np.inf, 0]
    got = round_tf32(x)
    assert got[[0, 1, 2, 4, 5]].tolist() == [want[i] for i in (0, 1, 2, 4, 5)]
    assert abs(float(got[3]) - want[3]) <= 2.0**-11 * want[3]
    assert np.isinf(round_tf32(np.array([np.finfo(np.float32).max]))).all()
    assert np.isnan(round_tf32(np.array([np.nan])))


def test_the_accumulator_cuts():
    """Seen on an H200: 1 + 1000 · (1.5 · 2⁻²⁴), an addend a step, stays 1."""
    a, b = np.zeros((1, 8 * 1001), np.float32), np.ones((8 * 1001, 1), np.float32)
    a[0, 0], a[0, 8::8] = 1, 1.5 * 2.0**-24
    assert product(a, b, "tf32")[0, 0] == 1
    assert product(a, b, "tf32", promote=64)[0, 0] > 1
