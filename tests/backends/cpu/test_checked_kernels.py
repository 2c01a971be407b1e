"""Checked kernels: bfloat16 instructions that flush tiny numbers compute only products in which none can occur.

Their unchecked twin, the row without `checked`, shows which products the instructions themselves would spoil.
"""

import numpy as np
import pytest

import gemm
from gemm.catalog import BY_NAME
from gemm.core.engine import features

BFLOAT16 = pytest.importorskip("ml_dtypes").bfloat16
ROWS = [name for name in BY_NAME if "_checked_" in name]
EDGE = 142  # the sum of the biased exponents of a and b at which 2**-126 is the unit of the products

pytestmark = pytest.mark.skipif("amxbf16" not in features(), reason="the CPU has no AMX")


def power(exponent):
    """2 to the power of the biased exponent, and the subnormal 2**-133 for 0."""
    return 2.0 ** (exponent - 127) if exponent else 2.0**-133


def same(x, y):
    return np.array_equal(x.astype(np.float32), y.astype(np.float32), equal_nan=True)


def is_fast(row, a, b, **options):
    """Whether the kernel's own instructions computed the product; if not, the other kernel did, in the order of k."""
    result = gemm.gemm(a, b, kernel=row, **options)
    twin = gemm.gemm(a, b, kernel=row.replace("_checked_", "_"), precision="high", **options)
    ordered = gemm.gemm(a, b, reproducible=True, **options)
    assert (twin != ordered).any(), "the operands cannot tell the kernels apart"
    assert same(result, twin) or same(result, ordered)
    return same(result, twin)


def pair(rng, a_shape, b_shape):
    """Numbers from 1 to 256 of both signs: the least biased exponent is 127.

    The second half of each sum cancels the first, so that the result is what rounding left. Thus the result shows the
    order of the sum, in spite of its few digits.
    """
    a, b = (
        (2 ** rng.uniform(0, 8, shape) * rng.choice([-1, 1], shape)).astype(BFLOAT16)
        for shape in ((*a_shape[:-1], a_shape[-1] // 2), (*b_shape[:-2], b_shape[-2] // 2, b_shape[-1]))
    )
    return np.concatenate([a, a], -1), np.concatenate([b, -b], -2)


@pytest.fixture
def operands(rng):
    return pair(rng, (70, 300), (300, 90))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(params=[1, 3])
def threads(request):
    gemm.set_num_threads(request.param)
    yield
    gemm.set_num_threads(None)


@pytest.mark.parametrize("row", ROWS)
def test_no_sum_is_flushed(row):
    """Two products whose sum is their unit, on both sides of the edge. The instructions alone make it zero below."""
    for total in range(EDGE - 7, EDGE + 3):
        for first in (1, 60, total // 2, total - 1):
            a, b = np.zeros((16, 32), BFLOAT16), np.zeros((32, 16), BFLOAT16)
            a[:, :2] = np.array([1 + 2**-7, 1]) * power(first)
            b[:2] = np.array([[1 + 2**-7], [-(1 + 2**-6)]]) * power(total - first)
            unit = 2.0 ** (total - 268)
            assert (gemm.gemm(a, b, kernel=row).astype(float) == unit).all(), (total, first)
            alone = gemm.gemm(a, b, kernel=row.replace("_checked_", "_"), precision="high").astype(float)
            assert (alone == (unit if total >= EDGE else 0)).all(), (total, first)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("sign", [1, -1])
def test_subnormal_operands(row, which, sign):
    """The instructions alone replace a subnormal operand by zero, also if its product is a normal number."""
    small, large = np.full((32, 32), sign * 2.0**-133, BFLOAT16), np.full((32, 32), 2.0**60, BFLOAT16)
    a, b = (small, large) if which == "a" else (large, small)
    assert (gemm.gemm(a, b, kernel=row).astype(float) == sign * 2.0**-68).all()
    alone = gemm.gemm(a, b, kernel=row.replace("_checked_", "_"), precision="high")
    assert not alone.astype(float).any()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("other", [1, 60, 127])
def test_edge(row, which, other, operands):
    """From the edge on the fast instructions compute the product; one binade below it they do not."""
    a, b = operands
    a, b = (x * BFLOAT16(power(other)) if name != which else x for name, x in (("a", a), ("b", b)))
    small = {"a": a, "b": b}[which]
    for total, fast in ((EDGE, True), (EDGE - 1, False)):
        if not 0 < total - other < 127:
            continue
        small[3, 5] = power(total - other)
        assert is_fast(row, a, b) == fast, total


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("layout", ["rows", "columns", "apart", "neither"])
@pytest.mark.parametrize("which", ["a", "b"])
def test_every_element_is_read(row, layout, which, operands, rng):
    """A subnormal number of either sign is noticed anywhere in a or b, in every layout.

    Infinities, NaN and zeros are not tiny.
    """
    a, b = operands
    a[0, 0], b[0, 0], a[1, 2:9] = np.inf, np.nan, 0
    lay = {
        "rows": lambda x: x,
        "columns": np.asfortranarray,
        "apart": lambda x: np.concatenate([x, np.ones_like(x)], 1)[:, : x.shape[1]],
        "neither": lambda x: np.repeat(x, 2, 1)[:, ::2],
    }[layout]
    small = {"a": a, "b": b}[which]
    places = [(0, 1), (small.shape[0] - 1, small.shape[1] - 1), (small.shape[0] - 1, 0), (0, small.shape[1] - 1)]
    places += [(int(rng.integers(1, small.shape[0])), int(rng.integers(1, small.shape[1]))) for _ in range(20)]
    for number, place in enumerate(places):
        before, small[place] = small[place], (-1) ** number * 2.0**-133
        assert same(gemm.gemm(lay(a), lay(b), kernel=row), gemm.gemm(a, b, reproducible=True)), place
        small[place] = before
    twin = gemm.gemm(lay(a), lay(b), kernel=row.replace("_checked_", "_"), precision="high")
    assert same(gemm.gemm(lay(a), lay(b), kernel=row), twin)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shared", [False, True])
def test_stacks(row, shared, rng):
    """A subnormal number in any product of a stack is noticed, also if all products share one b."""
    a, b = pair(rng, (70, 40, 60), (60, 40) if shared else (70, 60, 40))
    assert is_fast(row, a, b)
    for item in (0, 1, 35, 69):
        before, a[item, 39, 59] = a[item, 39, 59], 2.0**-133
        assert not is_fast(row, a, b)
        a[item, 39, 59] = before
    b[(..., 0, 0) if shared else (69, 0, 0)] = 2.0**-133
    assert not is_fast(row, a, b)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.usefixtures("threads")
def test_large(row, rng):
    """More elements than one job of the check reads, and a result that replaces a."""
    a, b = pair(rng, (600, 500), (500, 500))
    assert is_fast(row, a, b)
    for place in ((599, 499), (0, 0), (300, 1)):
        before, a[place] = a[place], 2.0**-133
        expected = gemm.gemm(a, b, reproducible=True)
        out = a.copy()
        gemm.gemm(out, b, out=out, kernel=row)
        assert same(out, expected), place
        a[place] = before


@pytest.mark.parametrize("row", ROWS)
def test_repeated_and_many(row, operands):
    """A plan is checked at each call; a list of products is checked as a whole."""
    a, b = operands
    out = np.empty((70, 90), BFLOAT16)
    run = gemm.plan(a, b, out=out, kernel=row)
    for tiny in (False, True, False, True):
        a[69, 299] = 2.0**-133 if tiny else 1
        run(a, b, out=out)
        expected = gemm.gemm(a, b, reproducible=True) if tiny else gemm.gemm(a, b, kernel=row)
        assert same(out, expected)
        assert tiny or is_fast(row, a, b)


@pytest.mark.parametrize("row", ROWS)
def test_prepare(row, operands):
    """The kernel multiplies no prepared matrix: naming it is an error, and the default is another kernel."""
    _, b = operands
    with pytest.raises(ValueError, match=f"{row} multiplies no prepared matrix"):
        gemm.prepare(b, kernel=row)
    assert gemm.prepare(b).kernel not in ROWS


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.usefixtures("threads")
def test_many(row, rng):
    """A subnormal number in any product of a list is noticed."""
    a, b = (list(stack) for stack in pair(rng, (70, 40, 60), (70, 60, 40)))
    twin = gemm.gemm_many(a, b, kernel=row.replace("_checked_", "_"), precision="high")
    for item in (None, 0, 69):
        tiny = list(a)
        if item is not None:
            tiny[item] = a[item].copy()
            tiny[item][39, 59] = 2.0**-133
        expected = twin if item is None else gemm.gemm_many(tiny, b, reproducible=True)
        for _ in range(2):  # the second list repeats what the first has chosen
            assert all(map(same, gemm.gemm_many(tiny, b, kernel=row), expected)), item
