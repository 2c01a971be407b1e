"""Repeated products take the short way (the plan cache), with the results, refusals and lifetimes of the long one.

What each kernel's checks ask of repeated products, in any layout and with operands that overlap, is conformance/'s.
"""

import gc
import inspect
import pathlib
import pickle
import sys

import numpy as np
import pytest
import repeated
from helpers import at_once, dtypes, python
from numpy.testing import assert_array_equal
from repeated import floats

import gemm
from gemm.core.backend import Converting
from gemm.frontend import plan_cache

pytestmark = pytest.mark.skipif(not plan_cache.built, reason="gemm._memo is not built")
NARROW = dtypes("f2", "bfloat16")


@pytest.fixture(autouse=True)
def fresh(settled):
    plan_cache.forget()
    yield
    plan_cache.forget()


@pytest.fixture
def long_way():
    """A list with one entry for each call that took the long way."""
    with repeated.long_ways() as calls:
        yield calls


@pytest.mark.parametrize("dtype", dtypes("f4", "f8", "f2", "i2", "c8", "bfloat16"))
@pytest.mark.parametrize(
    ("a", "b"),
    [((8, 8), (8, 8)), ((5, 3), (3, 7)), ((4, 2, 3), (3, 5)), ((2, 3), (6, 3, 2)), ((3,), (3, 4)), ((4, 3), (3,))],
)
def test_the_second_call_is_short_and_right(long_way, dtype, a, b):
    for given in (False, True):
        long_way.clear()
        for _ in range(3):
            x, y = floats(*a, dtype=dtype), floats(*b, dtype=dtype)
            exact = np.matmul(*(operand.astype(np.complex128) for operand in (x, y)))
            out = np.full(exact.shape, 99, dtype) if given else None
            result = gemm.gemm(x, y, out=out)
            assert_array_equal(result, exact.real.astype(dtype))
            assert result.dtype == dtype
            assert (result is out) == given
        assert len(long_way) == 1


@pytest.mark.parametrize("options", [{"trans_a": True}, {"trans_b": "T"}, {"alpha": 0.5}, {"reproducible": True}])
def test_options_are_kept_apart(long_way, options):
    x, y, c = floats(6, 6), floats(6, 6), floats(6, 6)
    plain = gemm.gemm(x, y)
    for _ in range(2):
        result = gemm.gemm(x, y, **options)
        left, right = x.T if "trans_a" in options else x, y.T if "trans_b" in options else y
        assert_array_equal(result, options.get("alpha", 1) * (left @ right))
    assert_array_equal(gemm.gemm(x, y), plain)
    assert len(long_way) == 1 + ("alpha" not in options)  # which is an argument of the launch
    for turn in range(6):  # one line of code, which is known by its keywords: their values differ, or where c stands
        assert_array_equal(gemm.gemm(x, y, trans_a=turn % 2 == 1), (x.T if turn % 2 else x) @ y)
    for turn in range(6):
        given = (x, y, c) if turn % 2 else (x, y)
        assert_array_equal(gemm.gemm(*given, beta=turn % 2), x @ y + turn % 2 * c)


def test_c_and_beta_in_place_and_apart(long_way):
    x, y, c = floats(6, 4), floats(4, 5), floats(6, 5)
    for _ in range(2):
        assert_array_equal(gemm.gemm(x, y, c, alpha=2, beta=-3), 2 * (x @ y) - 3 * c)
        out = c.copy()
        assert gemm.gemm(x, y, out, alpha=2, beta=-3, out=out) is out
        assert_array_equal(out, 2 * (x @ y) - 3 * c)
        row = c[0].copy()
        assert_array_equal(gemm.gemm(x, y, row, alpha=2, beta=-3), 2 * (x @ y) - 3 * row)
    assert len(long_way) == 3


def test_overlap_takes_the_long_way_and_is_safe(long_way):
    x, y = floats(5, 5), floats(5, 5)
    gemm.gemm(x, y, out=np.empty_like(x))
    gemm.gemm(x, y, out=np.empty_like(x))
    assert len(long_way) == 1
    expected = x @ y
    gemm.gemm(x, y, out=x)
    assert_array_equal(x, expected)
    assert len(long_way) == 2
    block = floats(6, 5)
    expected = block[:5] @ y
    gemm.gemm(block[:5], y, out=block[1:])
    assert_array_equal(block[1:], expected)
    # c next to out in the same memory, overlapping by a row
    rows = floats(6, 5)
    expected = y @ y + rows[:5]
    for _ in range(2):
        again = rows.copy()
        gemm.gemm(y, y, again[:5], beta=1.0, out=again[1:])
        assert_array_equal(again[1:], expected)


def test_what_may_not_be_repeated_is_refused_every_time():
    x, y = floats(4, 4), floats(4, 4)
    out = np.empty_like(x)
    for _ in range(2):
        gemm.gemm(x, y, out=out)
    frozen = np.empty_like(x)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gemm.gemm(x, y, out=frozen)
    with pytest.raises(TypeError, match="masked"):
        gemm.gemm(np.ma.masked_array(x), y, out=out)
    with pytest.raises(TypeError, match="complex"):
        gemm.gemm(x, y, alpha=1 + 0j, out=out)
    with pytest.raises(TypeError, match="trans_a"):
        gemm.gemm(x, y, trans_a=0, out=out)
    with pytest.raises(ValueError, match="beta"):
        gemm.gemm(x, y, beta=1.0, out=out)
    with pytest.raises(ValueError, match="backend"):
        gemm.gemm(x, y, out=out, backend="nowhere")


def test_other_dtypes_and_byte_orders_are_not_mistaken():
    x, y = floats(4, 4), floats(4, 4)
    for _ in range(2):
        gemm.gemm(x, y)
        swapped = x.astype(x.dtype.newbyteorder())
        assert_array_equal(gemm.gemm(swapped, y), x @ y)
        assert_array_equal(gemm.gemm(x.astype(np.int32), y.astype(np.int32)), x @ y)
        assert gemm.gemm(x.astype(np.float64), y).dtype == np.float64
        assert gemm.gemm(x, y, dtype=np.float64).dtype == np.float64
        unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(4, 4)
        unaligned[...] = x
        assert_array_equal(gemm.gemm(unaligned, y), x @ y)


def test_no_other_void_type_is_mistaken_for_bfloat16():
    pytest.importorskip("ml_dtypes")
    x = floats(4, 4, dtype="bfloat16")
    for _ in range(3):
        gemm.gemm(x, x)
        with pytest.raises(TypeError):
            gemm.gemm(x.view("V2"), x.view("V2"))
        assert gemm.gemm(x.view(np.float16), x.view(np.float16)).dtype == np.float16


def test_a_plan_is_short_from_its_second_call(long_way):
    x, y, c = floats(7, 5), floats(5, 6), floats(7, 6)
    plan = gemm.plan(x, y, c, alpha=3, beta=2)
    long_way.clear()
    for _ in range(3):
        assert_array_equal(plan(x, y, c), 3 * (x @ y) + 2 * c)
    assert len(long_way) == 1
    with pytest.raises(ValueError, match="this plan is for"):
        plan(floats(7, 4), floats(4, 6), c)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_reference_counts_stay(dtype):
    x, y, z, out = (floats(4, 4, dtype=dtype) for _ in range(4))
    activation = "relu"
    counted = [x, y, z, out, x.dtype, np.dtype("f4"), activation]
    if sys.version_info < (3, 12):
        counted.append(None)  # later versions do not count it

    def products():
        gemm.gemm(x, y)
        gemm.gemm(x, y, **shuffled(out=out, alpha=1.0))
        gemm.gemm(x, y, bias=z[0], out=out, activation=activation, backend="cpu")
        gemm.gemm(x, y, z, beta=1, bias=z[:1], backend="cpu")

    products()
    gc.collect()
    before = [*map(sys.getrefcount, counted)]
    for _ in range(1000):
        products()
    gc.collect()
    after = [*map(sys.getrefcount, counted)]
    assert all(abs(p - q) < 100 for p, q in zip(before, after, strict=True)), (before, after)


def test_threads_learn_and_repeat_at_once():
    arrays = [(floats(n, n), floats(n, n)) for n in (3, 4, 90, 100)]

    def work(seed):
        for turn in range(200):
            x, y = arrays[(seed + turn) % 4]
            assert_array_equal(gemm.gemm(x, y, alpha=1.0 + turn % 70), (1.0 + turn % 70) * (x @ y))

    at_once(work, range(8))


class Calls(list):
    """What functions of this package Python runs within."""

    def __enter__(self):
        folder = str(pathlib.Path(gemm.__file__).parent)

        def profile(frame, event, argument):
            if event == "call" and frame.f_code.co_filename.startswith(folder):
                self.append(frame.f_code.co_name)

        sys.setprofile(profile)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)


def test_a_thousand_shapes_in_rotation_run_no_python():
    arrays = [(floats(m, 3), floats(3, n)) for m in range(1, 41) for n in range(1, 26)]
    expected = [x @ y for x, y in arrays]
    for x, y in arrays:
        gemm.gemm(x, y, backend="cpu")
    for _ in range(2):
        with Calls() as calls:
            found = [gemm.gemm(x, y, backend="cpu") for x, y in arrays]
        assert not calls
        for one, right in zip(found, expected, strict=True):
            assert_array_equal(one, right)


@pytest.mark.parametrize("dtype", dtypes("f4", "f8", "f2", "c8", "i4", "bfloat16"))
def test_new_scalars_run_no_python(dtype):
    x, y, c = (floats(5, 5, dtype=dtype) for _ in range(3))
    gemm.gemm(x, y, c, alpha=2, beta=3)
    scalars = range(2, 300) if dtype == "i4" else np.linspace(0.1, 0.9, 300).tolist()
    with Calls() as calls:
        found = [gemm.gemm(x, y, c, alpha=scalar, beta=scalar) for scalar in scalars]
    assert not calls
    for scalar, one in zip(scalars, found, strict=True):
        plan_cache.forget()
        assert_array_equal(one, gemm.gemm(x, y, c, alpha=scalar, beta=scalar))


FLOATS = [
    0.1, -0.0, 0.0, 1.0, -1, 2**-25, 1e-8, 6e-8, 3e-5, 65504.0, 65519.9, 65520.0, 1e-45, 1e-46, 7e-46, 1e-60, 1e38,
    3.5e38, 1e300, 1e-310, 2049, 257, 2**53, 2**53 + 1, 2**70, True, np.inf, -np.inf, np.nan, np.float32(0.3),
    np.float64(0.3), np.float16(0.3), np.longdouble(0.3), np.int8(-3), np.bool_(True),
]  # fmt: skip
INTEGERS = [
    0, 1, -1, 127, 128, -128, -129, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 2**64 - 1, 2**64, 3.0, 0.5,
    -7.0, 1e10, 1e19, 1e30, True, np.uint8(200), np.int64(-5), np.nan, np.inf,
]  # fmt: skip


@pytest.mark.parametrize(
    "dtype", dtypes("f2", "f4", "f8", "c8", "c16", "i1", "u1", "i2", "i4", "i8", "u8", "?", "bfloat16")
)
@pytest.mark.parametrize("other", [2, 1, 0])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_scalars_are_rounded_and_refused_as_on_the_long_way(dtype, other):
    dtype, other = np.dtype(dtype), min(other, 1) if dtype == "?" else other
    x, y, c = (np.abs(floats(3, 3)).astype(dtype) for _ in range(3))
    scalars = INTEGERS if dtype.kind in "biu" else [*FLOATS, 1 + 2j, 1j, 1 + 0j, np.complex64(1 - 1j)]

    def outcome(first, second):
        try:
            return gemm.gemm(x, y, c, alpha=first, beta=second, backend="cpu").tobytes()
        except (TypeError, ValueError) as error:
            return str(error)

    for scalar in scalars:
        for pair in ((scalar, other), (other, scalar)):
            plan_cache.forget()
            right = outcome(*pair)
            plan_cache.forget()
            for learned in ((1, 1), (0, 1), (1, 0)):
                outcome(*learned)
            assert outcome(*pair) == right, pair
            assert outcome(*pair) == right, pair


@pytest.mark.parametrize("dtype", dtypes("f2", "f4", "f8", "c8", "c16", "bfloat16"))
def test_a_scalar_that_becomes_nothing_reads_nothing(dtype):
    dtype = np.dtype(dtype)
    x, y = np.full((3, 3), np.nan, dtype), floats(3, 3, dtype=dtype)
    tiny = 1e-320 if dtype.itemsize // (1 + (dtype.kind == "c")) == 8 else 1e-60
    for _ in range(2):
        assert np.isnan(gemm.gemm(x, y, backend="cpu")).all()
        found = gemm.gemm(x, y, alpha=tiny, backend="cpu")
        assert_array_equal(np.isnan(found), dtype.type(tiny) != 0)
        found = gemm.gemm(y, y, x, beta=tiny, backend="cpu")
        assert_array_equal(np.isnan(found), dtype.type(tiny) != 0)
        gemm.gemm(y, y, x, beta=1, backend="cpu")


def test_more_kinds_than_are_remembered():
    """Some give way, and none is taken for another."""
    memo = plan_cache.PlanCache(50)
    x = floats(40, 40)
    plans = {}

    def learn(m, n):
        a, b, out = x[:m, :3], x[:3, :n], np.empty((m, n), np.float32)
        plan = gemm.plan(a, b, out=out, backend="cpu")
        ready = plan._launch.native(a, b, None, out)
        plans[m, n] = ready
        made = (m, n), np.dtype("f4")
        given = a, b, None, None, None, 1.0, 0.0
        memo.learn(*given, plan_cache.since(), made, ready[0], "f4", 1.0, ready[1], None, None, None)

    def known(m, n):
        found = memo.run(x[:m, :3], x[:3, :n], None, None, None, 2.0, 0.0)
        if found is not None:
            assert_array_equal(found, 2 * (x[:m, :3] @ x[:3, :n]))
        return found is not None

    kinds = [(m, n) for m in range(1, 21) for n in range(1, 16)]
    for number, kind in enumerate(kinds):
        learn(*kind)
        assert known(*kind)
        assert memo.known() == min(number + 1, 50)
    assert sum(known(*kind) for kind in kinds) == 50
    hits = 0
    rotation = kinds[:55]
    for kind in rotation * 40:
        if known(*kind):
            hits += 1
        else:
            learn(*kind)
    assert hits > 55 * 40 // 2, "a rotation over a few too many still finds most"
    memo.clear()
    assert memo.known() == 0
    assert not any(known(*kind) for kind in kinds)


SHAPES = [
    ((6, 5), (5, 7), (7,)), ((3, 6, 5), (5, 7), (6, 1)), ((5,), (5, 7), (1, 7)),
    ((6, 5), (5, 7), (1, 7)), ((6, 5), (5, 7), (6, 1)), ((3, 6, 5), (3, 5, 6), (6,)), ((5,), (5, 7), (7,)),
    ((5,), (5, 7), (1, 1)), ((6, 5), (5,), (6,)), ((6, 5), (5,), (6, 1)), ((6, 6, 5), (5,), (6, 1)),
    ((6, 6, 5), (5,), (6,)), ((7, 5), (7, 5, 7), (7, 1)), ((5,), (3, 5, 7), (1, 7)), ((1, 5), (5, 1), (1, 1)),
]  # fmt: skip
"""Of a, b and a bias."""


def many_biases(calls, dtype, activation, a, b, bias):
    """Each call has another view; out is new, given, or c itself."""
    x, y, many = (floats(*shape, dtype=dtype) for shape in (a, b, (9, *bias)))
    c = floats(*np.matmul(np.ones(a), np.ones(b)).shape, dtype=dtype)
    options = {"activation": activation, "backend": "cpu"}

    def products(view):
        own = c.copy()
        return [
            gemm.gemm(x, y, bias=view, **options),
            gemm.gemm(x, y, bias=view, out=np.full(c.shape, 9, dtype), **options),
            gemm.gemm(x, y, c, alpha=2, beta=-1, bias=view, **options),
            gemm.gemm(x, y, own, beta=1, bias=view, out=own, **options),
        ]  # fmt: skip

    calls.clear()
    repeats = [products(view) for view in many]
    assert len(calls) == 4
    for view, found in zip(many, repeats, strict=True):
        plan_cache.forget()
        for one, right in zip(found, products(view), strict=True):
            assert_array_equal(one, right)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_bias_is_an_argument(long_way, activation, shapes):
    many_biases(long_way, "f4", activation, *shapes)


@pytest.mark.parametrize("dtype", dtypes("f8", "c8", "c16", "i2", "i4", "i8", "f2", "bfloat16"))
def test_a_bias_is_an_argument_in_any_type(long_way, dtype):
    """Activations are of real numbers."""
    for activation in (None,) if dtype[0] in "ci" else (None, "relu", "gelu", "gelu_tanh"):
        for shapes in SHAPES[:3]:
            many_biases(long_way, dtype, activation, *shapes)


@pytest.mark.parametrize("dtype", dtypes("f4", "f8", "f2", "bfloat16"))
@pytest.mark.parametrize("turned", [(False, False), (True, True), (False, True)])
def test_a_bias_and_operands_that_lie_otherwise(long_way, dtype, turned):
    big = [floats(24, 24, dtype=dtype) for _ in range(3)]
    cut = {
        "c": np.s_[:8, :8], "f": np.s_[:8, :8], "steps": np.s_[::3, ::3], "back": np.s_[23:15:-1, :8],
        "wide": np.s_[:8, ::3],
    }  # fmt: skip
    for name, where in cut.items():
        x, y, c = (each[where].T if name == "f" else each[where] for each in big)
        for stack in (False, True):
            left = np.broadcast_to(x, (3, 8, 8)) if stack else x
            plan_cache.forget()
            long_way.clear()
            options = {"trans_a": turned[0], "trans_b": turned[1], "beta": 2, "backend": "cpu"}
            found = [gemm.gemm(left, y, c, bias=row, **options) for row in big[2][:3, :8]]
            assert len(long_way) == 1
            for row, one in zip(big[2][:3, :8], found, strict=True):
                plan_cache.forget()
                assert_array_equal(one, gemm.gemm(left, y, c, bias=row, **options))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.filterwarnings("error")
def test_a_bias_with_alpha_and_beta_of_nothing(dtype):
    x, y, c = (np.full((4, 4), np.nan, dtype) for _ in range(3))
    z, infinite = floats(4, dtype=dtype), np.full((1, 4), np.inf, dtype)
    for _ in range(3):
        assert_array_equal(gemm.gemm(x, y, c, alpha=0, bias=z, backend="cpu"), np.broadcast_to(z, (4, 4)))
        ones = np.ones((4, 4), dtype)
        assert_array_equal(gemm.gemm(ones, ones, c, bias=z, backend="cpu"), 4 + np.broadcast_to(z, (4, 4)))
        assert np.isnan(gemm.gemm(ones, ones, c, beta=1, bias=z, backend="cpu")).all()
        assert np.isnan(gemm.gemm(ones, ones, alpha=np.nan, bias=z, backend="cpu")).all()
        assert np.isnan(gemm.gemm(ones, ones, alpha=-np.inf, bias=infinite, backend="cpu")).all(), "without a warning"
        assert (gemm.gemm(ones, ones, bias=infinite, activation="relu", backend="cpu") == np.inf).all()


def test_a_bias_that_may_not_be_repeated(long_way):
    x, y = floats(4, 4), floats(4, 4)
    z, out = floats(4), np.empty((4, 4), np.float32)
    right = x @ y
    gemm.gemm(x, y, bias=z, out=out, backend="cpu")
    gemm.gemm(x, y, bias=z, out=out, backend="cpu")
    assert len(long_way) == 1
    for bias in (z.astype("f8"), z.astype(z.dtype.newbyteorder()), np.repeat(z, 2)[::2], [*z.tolist()]):
        assert_array_equal(gemm.gemm(x, y, bias=bias, out=out, backend="cpu"), right + z)
    unaligned = np.zeros(17, np.uint8)[1:].view(np.float32)
    unaligned[...] = z
    assert_array_equal(gemm.gemm(x, y, bias=unaligned, out=out, backend="cpu"), right + z)
    for row in (out[1], out[:, 2:3], out[::-1][0]):
        for _ in range(2):
            out[...] = floats(4, 4)
            kept = row.copy()
            gemm.gemm(x, y, bias=row, out=out, backend="cpu")
            assert_array_equal(out, right + kept)
    both = floats(9, 4)  # out and bias share a row, or touch
    for first in range(6):
        kept = both[first].copy()
        gemm.gemm(x, y, bias=both[first], out=both[1:5], backend="cpu")
        assert_array_equal(both[1:5], right + kept)
    for wrong in (floats(5), floats(3, 1), floats(4, 4), floats(1, 1, 4), np.float32(1)):
        with pytest.raises(ValueError, match="bias"):
            gemm.gemm(x, y, bias=wrong, out=out, backend="cpu")
    with pytest.raises(TypeError, match="bias"):
        gemm.gemm(x, y, bias=z + 1j, out=out, backend="cpu")
    assert_array_equal(gemm.gemm(x, y, out=out, backend="cpu"), right)


def test_new_biases_scalars_and_shapes_in_rotation():
    repeated.a_thousand_shapes(np.asarray, np.asarray, biased=True, backend="cpu")
    assert len(plan_cache.memos) <= plan_cache.OPTIONS


def test_a_plan_repeats_by_two_calls():
    """Each further call takes a tenth of the time of a small product."""
    x, y, out = floats(4, 4), floats(4, 4), floats(4, 4)
    plan, seen = gemm.plan(x, y, out=out, backend="cpu"), []
    plan(x, y, out=out)

    def profile(frame, event, given):
        if event in ("call", "c_call"):
            seen.append(frame.f_code.co_name if event == "call" else given.__name__)

    sys.setprofile(profile)
    plan(x, y, out=out)
    sys.setprofile(None)
    assert seen == ["__call__", "run", "setprofile"]


def test_plans_and_prepared_matrices_repeat_and_forget():
    repeated.plans_and_prepared(np.asarray, np.asarray, lambda x: gemm.prepare(x, backend="cpu"), backend="cpu")


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_plan_and_a_prepared_matrix_with_new_biases(long_way, activation):
    x, y, rows = floats(7, 5), floats(5, 6), floats(30, 6)
    plan = gemm.plan(x, y, bias=rows[0], activation=activation, backend="cpu")
    prepared = gemm.prepare(y, backend="cpu")
    ways = (
        lambda bias: plan(x, y, bias=bias),
        lambda bias: gemm.gemm(x, prepared, bias=bias, activation=activation, backend="cpu"),
    )
    for way in ways:
        long_way.clear()
        for row in rows:
            right = x @ y + row
            assert_array_equal(way(row), np.maximum(right, 0) if activation else right)
        assert len(long_way) == 1


def test_products_with_a_bias_are_complete_in_their_turn(long_way):
    """What waits in a Batch is computed before one that has a bias, which may read it."""
    x, y = floats(4, 4), floats(4, 4)
    for _ in range(3):
        first, row = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
        with gemm.batching():
            gemm.gemm(x, y, out=row, backend="cpu")
            gemm.gemm(x, y, bias=row[1], out=first, backend="cpu")
            assert_array_equal(first, x @ y + (x @ y)[1])
            gemm.gemm(x, first, out=row, backend="cpu", activation="relu")
            gemm.gemm(x, first, out=row, backend="cpu", activation="relu")
        assert_array_equal(row, np.maximum(x @ first, 0))
    assert len(long_way) >= 2


@pytest.mark.parametrize("dtype", NARROW)
def test_converted_operands_are_repeated(long_way, dtype):
    """Of types that are multiplied as wider ones: by themselves, with a bias, and as a Batch."""
    x, y, c = floats(4, 6, dtype=dtype), floats(6, 4, dtype=dtype), floats(4, 4)
    wide = {"dtype": np.float32, "backend": "cpu"}
    assert isinstance(gemm.plan(x, y, **wide)._launch, Converting)
    right = x.astype("f4") @ y.astype("f4")
    long_way.clear()
    for number in range(5):
        assert_array_equal(gemm.gemm(x, y, c, beta=number + 1, **wide), right + (number + 1) * c)
        assert_array_equal(gemm.gemm(x, y, bias=c[number % 4], **wide), right + c[number % 4])
        assert_array_equal(gemm.gemm(y, x, trans_a=True, trans_b=True, **wide), right.T)
    assert len(long_way) == 3
    gemm.gemm(x, y, **wide)
    for found in gemm.gemm_many([x] * 50, [y] * 50, **wide):
        assert_array_equal(found, right)
    for found in gemm.gemm_many([x] * 50, [y] * 50, activation="relu", backend="cpu"):
        assert_array_equal(found, np.maximum(right, 0))


@pytest.mark.parametrize("times", ["1", "3"])
def test_it_can_be_imported_anew(times):
    python(
        """
        import sys
        import numpy as np
        x = np.ones((4, 4), np.float32)
        for _ in range(int(sys.argv[1]) + 1):
            import gemm
            for alpha in (1.0, 2.0, 3.0):
                assert (gemm.gemm(x, x, alpha=alpha) == 4 * alpha).all()
            before = gemm.gemm
            for name in [name for name in sys.modules if name.partition(".")[0] == "gemm"]:
                del sys.modules[name]
            del gemm
            assert (before(x, x, alpha=2.0) == 8).all()
        """,
        times,
    )


def shuffled(**options):
    """Keywords that no line of code has as a constant."""
    return dict(reversed(options.items()))


class TestFront:
    """gemm.gemm is a function in C, and still the one in Python."""

    def test_it_looks_like_the_one_in_python(self):
        names = list(inspect.signature(gemm.gemm).parameters)
        assert names[:4] == ["a", "b", "c", "alpha"]
        assert "precision='highest'" in str(inspect.signature(gemm.gemm))
        assert gemm.gemm.__doc__.startswith("activation(alpha · op(a)")
        assert pickle.loads(pickle.dumps(gemm.gemm)) is gemm.gemm

    def test_every_way_to_pass_arguments(self, long_way):
        x, y, z = floats(4, 3), floats(3, 5), floats(4, 5)
        expected = 2 * (x @ y) + z
        for _ in range(3):
            out = np.empty_like(z)
            results = [
                gemm.gemm(x, y, z, alpha=2, beta=1), gemm.gemm(x, y, c=z, alpha=2, beta=1),
                gemm.gemm(a=x, b=y, c=z, alpha=2, beta=1), gemm.gemm(x, b=y, c=z, alpha=2, beta=1),
                gemm.gemm(x, y, **shuffled(c=z, alpha=2, beta=1, bias=None, precision="highest")),
                gemm.gemm(*(x, y), alpha=2, beta=1, out=out, c=z),
            ]  # fmt: skip
            for result in results:
                assert_array_equal(result, expected)
            assert results[-1] is out
        # Of the ways only those by two or three positions are short; c by name or not is the same product.
        assert len(long_way) == 2 + 2 * 3

    def test_a_line_whose_options_change(self, long_way):
        x, y = floats(4, 3), floats(3, 5)
        for _ in range(3):
            for alpha in (1, 2.0, 2, True, 0.5, 0, 0.0):
                assert_array_equal(gemm.gemm(x, y, alpha=alpha), np.float32(alpha) * (x @ y))
        assert len(long_way) == 2  # one of no terms, and one of others

    def test_other_names_are_told_as_python_tells_them(self):
        x, y = floats(4, 3), floats(3, 5)
        gemm.gemm(x, y)
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'alhpa'"):
            gemm.gemm(x, y, alhpa=2)
        with pytest.raises(TypeError, match=r"multiple values for argument 'c'"):
            gemm.gemm(x, y, None, c=None)
        with pytest.raises(TypeError, match=r"missing 1 required positional argument"):
            gemm.gemm(x)
        with pytest.raises(TypeError, match=r"positional arguments"):
            gemm.gemm(x, y, None, 1.0)
        with pytest.raises(TypeError, match=r"alpha must be a number"):
            gemm.gemm(x, y, alpha=[1])

    def test_many_lines_and_sets_of_options(self):
        """More than there are places for."""
        x, y = floats(4, 3), floats(3, 5)
        expected = x @ y
        calls = [eval(f"lambda x, y: gemm.gemm(x, y, alpha={float(i + 1)})", {"gemm": gemm}) for i in range(200)]
        for _ in range(2):
            for i, call in enumerate(calls):
                assert_array_equal(call(x, y), (i + 1) * expected)
