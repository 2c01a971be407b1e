"""Products that wait (gemm.batching, gemm_many): results, order, errors, lifetimes and threads."""

import gc
import weakref

import numpy as np
import pytest
from helpers import all_equal, at_once
from numpy.testing import assert_array_equal

import gemm
import gemm.extras.batching as pending
from gemm.frontend import plan_cache

pytestmark = pytest.mark.skipif(not plan_cache.built, reason="gemm._memo is not built")

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def fresh(settled):
    plan_cache.forget()
    yield
    assert plan_cache.current() is None
    plan_cache.forget()


@pytest.fixture
def opencl():
    if why := gemm.backends()["opencl"]:
        pytest.skip(why)


def numbers(*shape, dtype=np.float32):
    return (3 * RNG.standard_normal(shape)).astype(dtype)


def sets(count, m, n, k, dtype=np.float32):
    return [(numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype), np.full((m, n), 77, dtype)) for _ in range(count)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int16, np.complex64])
@pytest.mark.parametrize("size", [(1, 1, 1), (8, 8, 8), (5, 7, 3), (1, 24, 40), (33, 65, 17), (70, 70, 300)])
def test_same_bits_as_one_by_one(waited, dtype, size):
    given = sets(40, *size, dtype=dtype)
    one_by_one = [gemm.gemm(a, b) for a, b, _ in given]
    with gemm.batching():
        for a, b, out in given:
            assert gemm.gemm(a, b, out=out) is out
    all_equal([out for *_, out in given], one_by_one)
    assert waited == [39]  # the first of its kind was computed at once
    waited.clear()
    many = gemm.gemm_many(*(list(x) for x in list(zip(*given, strict=True))[:2]))
    all_equal(many, one_by_one)
    assert waited == [40]


@pytest.mark.parametrize(
    "options", [{"trans_a": True}, {"trans_b": "T"}, {"alpha": 0.5}, {"reproducible": True}, {"activation": "relu"},
                {"precision": "high"}, {"backend": "cpu"}, {"dtype": "float64"}],
)  # fmt: skip
def test_options(options):
    given = sets(20, 6, 6, 6)
    right = [gemm.gemm(a, b, **options) for a, b, _ in given]
    with gemm.batching():
        waiting = [gemm.gemm(a, b, **options) for a, b, _ in given]
    many = gemm.gemm_many([a for a, _, _ in given], [b for _, b, _ in given], **options)
    for found in (waiting, many):
        all_equal(found, right)
        assert {x.dtype for x in found} == {right[0].dtype}


def test_strides_batches_vectors_and_an_addend():
    """Every kind that gemm._memo knows, in turn, so that kinds alternate."""
    kinds = [
        lambda: (numbers(4, 6).T, numbers(4, 5), None, None),
        lambda: (numbers(3, 4, 5), numbers(5, 2), None, None),
        lambda: (numbers(5), numbers(5, 3), None, None),
        lambda: (numbers(4, 5), numbers(5), None, None),
        lambda: (numbers(9, 5)[::2], numbers(5, 8)[:, ::-1], None, np.empty((8, 5), np.float32).T),
        lambda: (numbers(3, 4), numbers(4, 2), numbers(2), None),
        lambda: (numbers(6, 4), numbers(4, 6), numbers(6, 6), np.empty((6, 6), np.float32)),
    ]
    given = [make() for _ in range(30) for make in kinds]
    right = [gemm.gemm(a, b, c, beta=0.0 if c is None else 2.0) for a, b, c, _ in given]
    with gemm.batching():
        found = [gemm.gemm(a, b, c, beta=0.0 if c is None else 2.0, out=out) for a, b, c, out in given]
    all_equal(found, right)


def test_out_that_is_added_to(waited):
    a, b, out = numbers(4, 4), numbers(4, 4), np.zeros((4, 4), np.float32)
    right = out.copy()
    for _ in range(10):
        gemm.gemm(a, b, right, beta=1, out=right)
    with gemm.batching():
        for _ in range(10):
            gemm.gemm(a, b, out, beta=1, out=out)
    assert_array_equal(out, right)
    assert waited == [10]


def chains(run):
    """Products that read what others wrote, write what others read, and write the same twice."""
    rng = np.random.default_rng(3)
    w = [rng.standard_normal((8, 8)).astype(np.float32) / 4 for _ in range(3)]
    h = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(24)]
    kept = []
    for step in range(6):
        for i in range(24):
            kept.append(run(h[i], w[step % 3], out=np.empty((8, 8), np.float32)))
            run(kept[-1], w[(step + 1) % 3], out=h[i])  # h[i] was read just now
            if i % 5 == 0:
                run(h[i][:4], h[i - 1], out=h[i - 2][2:6])
    return [*h, *kept, *(run(x, x) for x in kept)]


def test_dependent_products_keep_their_order():
    right = [x.copy() for x in chains(gemm.gemm)]
    with gemm.batching():
        found = chains(gemm.gemm)
    all_equal(found, right)


def test_random_dependences():
    """Overlapping windows of one buffer, written and read in any order, against the same one after another."""
    rng = np.random.default_rng(17)

    def run(buffer):
        own = np.random.default_rng(5)
        for _ in range(300):
            x, y, z = (int(own.integers(0, 60)) * 8 for _ in range(3))
            a, b, out = (buffer[at : at + 16].reshape(4, 4) for at in (x, y, z))
            gemm.gemm(a, b, out=out, alpha=0.25)

    start = rng.standard_normal(500).astype(np.float32)
    right, found = start.copy(), start.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        run(right)
        with gemm.batching():
            run(found)
    assert_array_equal(found, right)


def test_results_are_there_after_a_flush_and_the_end(waited):
    given = sets(9, 8, 8, 8)
    with gemm.batching() as batch:
        for a, b, out in given[:5]:
            gemm.gemm(a, b, out=out)
        assert len(batch) == 4
        batch.flush()
        assert len(batch) == 0
        np.testing.assert_allclose(given[4][2], given[4][0] @ given[4][1], rtol=1e-4, atol=1e-5)
        for a, b, out in given[5:]:
            gemm.matmul(a, b, out=out)
        assert (given[8][2] == 77).all()
    np.testing.assert_allclose(given[8][2], given[8][0] @ given[8][1], rtol=1e-4, atol=1e-5)
    assert waited == [4, 4]


def test_blocks_nest_and_can_be_entered_again(waited):
    a, b, _ = sets(1, 8, 8, 8)[0]
    gemm.gemm(a, b)
    block = gemm.batching()
    for _ in range(2):
        with block as outer:
            gemm.gemm(a, b)
            with gemm.batching() as inner:
                assert inner is outer
                gemm.gemm(a, b)
            assert len(outer) == 2
    assert waited == [2, 2]
    assert plan_cache.current() is None


def test_an_exception_goes_on_after_the_products_before_it():
    a, b, out = sets(1, 8, 8, 8)[0]
    right = gemm.gemm(a, b)
    gemm.gemm(a, b, out=np.empty_like(out))

    def block():
        with gemm.batching():
            gemm.gemm(a, b, out=out)
            assert (out == 77).all()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert_array_equal(out, right)


def test_wrong_arguments_are_refused_at_the_call():
    a, b, out = sets(1, 8, 8, 8)[0]
    with gemm.batching() as batch:
        gemm.gemm(a, b, out=out)
        with pytest.raises(ValueError, match="columns of a"):
            gemm.gemm(a, b[:5])
        with pytest.raises(TypeError, match="colour"):
            gemm.gemm(a, b, colour=3)
        with pytest.raises(ValueError, match="out has shape"):
            gemm.gemm(a, b, out=out[:3])
        locked = out.copy()
        locked.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            gemm.gemm(a, b, out=locked)
        assert len(batch) == 0


def test_many_wrong_arguments():
    a, b, out = (list(x) for x in zip(*sets(4, 4, 4, 4), strict=True))
    with pytest.raises(ValueError, match="a has 4, b has 3"):
        gemm.gemm_many(a, b[:3])
    with pytest.raises(TypeError, match="iterable"):
        gemm.gemm_many(a[0], b[0])
    with pytest.raises(TypeError, match="out must be"):
        gemm.gemm_many(a, b, out=out[0])
    with pytest.raises(TypeError, match="option 'colour' is not known"):
        gemm.gemm_many(a, b, colour=1)
    assert gemm.gemm_many([], []) == []


def test_one_operand_for_all_and_any_iterables():
    a, b, _ = (list(x) for x in zip(*sets(50, 6, 5, 4), strict=True))
    right = [gemm.gemm(x, b[0], alpha=2, bias=[1, 2, 3, 4, 5]) for x in a]
    found = gemm.gemm_many((x for x in a), b[0], alpha=2, bias=[1, 2, 3, 4, 5])
    all_equal(found, right)
    stacked = gemm.gemm_many(iter(np.stack(a)), b[0], np.ones(5, np.float32), beta=1)
    assert all(np.allclose(x, y @ b[0] + 1, atol=1e-5) for x, y in zip(stacked, a, strict=True))


def test_more_products_and_kinds_than_wait_at_a_time(waited):
    given = sets(5000, 2, 2, 2)
    gemm.gemm(*given[0][:2])
    with gemm.batching():
        found = [gemm.gemm(a, b) for a, b, _ in given]
    assert waited == [1024, 1024, 1024, 1024, 904]
    assert all(np.allclose(x, a @ b, atol=1e-5) for x, (a, b, _) in zip(found, given, strict=True))
    several = [(numbers(m, 3), numbers(3, n)) for m in range(1, 8) for n in range(1, 8)]
    for a, b in several:
        gemm.gemm(a, b)
    with gemm.batching():
        found = [gemm.gemm(a, b) for a, b in several]
    assert all(np.allclose(x, a @ b, atol=1e-5) for x, (a, b) in zip(found, several, strict=True))


def test_a_large_product_is_computed_at_once(waited):
    small, large = sets(2, 8, 8, 8), numbers(160, 160)
    gemm.gemm(large, large)
    gemm.gemm(small[0][0], small[0][1], out=small[0][2])
    with gemm.batching():
        gemm.gemm(small[1][0], small[1][1], out=small[1][2])
        result = gemm.gemm(large, large)
        np.testing.assert_allclose(result, large @ large, rtol=1e-3, atol=1e-3)
        assert waited == [1]


def test_other_functions_see_pending_results():
    """einsum, tensordot, gemm.use, plans and prepared operands read what waits."""
    a, b, _ = sets(1, 6, 6, 6)[0]
    product = gemm.gemm(a, b)
    gemm.gemm(a, b, out=np.empty_like(product))
    plan, ready = gemm.plan(a, b), gemm.prepare(b)
    plan(a, b)
    gemm.gemm(a, ready)

    def used(function):
        def call(x):
            with gemm.use():
                return function(x, b)

        return call

    readers = [
        lambda x: gemm.einsum("ij,jk->ik", x, b), lambda x: gemm.einsum("ij->i", x),
        lambda x: gemm.tensordot(x, b, 1), lambda x: gemm.vecdot(x, b), lambda x: plan(x, b),
        lambda x: gemm.plan(a, b, bias=[0] * 6)(x, b, bias=[1] * 6),
        lambda x: gemm.gemm(x, ready),
        lambda x: gemm.gemm(a, gemm.prepare(x)), lambda x: gemm.array(x) @ b,
        *(used(f) for f in (np.dot, np.inner, np.vdot, np.tensordot)), used(lambda x, y: np.dot(x, 2.0)),
        used(lambda x, y: np.matmul(x, y)), used(lambda x, y: np.einsum("ij,jk->i", x, y)),
    ]  # fmt: skip
    for read in readers:
        right = np.array(read(product))
        out = np.full_like(product, 77)
        with gemm.batching():
            gemm.gemm(a, b, out=out)
            found = np.array(read(out))
        assert_array_equal(found, right)


def test_another_thread_flushes():
    given = sets(300, 8, 8, 8)
    right = [gemm.gemm(a, b) for a, b, _ in given]
    with gemm.batching() as batch:
        found = [gemm.gemm(a, b) for a, b, _ in given]
        assert len(batch) == 300
        at_once(lambda _: batch.flush(), range(3))
        assert len(batch) == 0
        all_equal(found, right)
        found = [gemm.gemm(a, b) for a, b, _ in given]
        assert len(batch) == 300  # it is this thread's still
    all_equal(found, right)


def test_threads_are_independent():
    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            given = [tuple(rng.standard_normal((3, 8, 8))) for _ in range(50)]
            if seed:
                with gemm.batching() as batch:
                    for a, b, out in given:
                        gemm.gemm(a, b, out=out)
                    assert batch is plan_cache.current()
            else:  # outside of a block, nothing waits
                for a, b, out in given:
                    gemm.gemm(a, b, out=out)
                    assert plan_cache.current() is None
            assert all(np.allclose(out, a @ b) for a, b, out in given)

    at_once(work, range(5))


def test_operands_live_as_long_as_they_wait():
    a, b, _ = sets(1, 8, 8, 8)[0]
    right = gemm.gemm(a, b)
    with gemm.batching() as batch:
        copy = a.copy()
        kept = weakref.ref(copy)
        result = gemm.gemm(copy, b)
        del copy
        assert kept() is not None
        batch.flush()
        assert kept() is None
    assert_array_equal(result, right)


def test_a_thread_that_ends_takes_its_batch_with_it():
    a, b, _ = sets(1, 8, 8, 8)[0]
    gemm.gemm(a, b)

    def work(_):
        gemm.batching().__enter__()
        gemm.gemm(a, b)
        return weakref.ref(plan_cache.current())

    (batch,) = at_once(work, [0])
    gc.collect()
    assert batch() is None


def test_an_error_at_the_flush_names_its_product(monkeypatch):
    """Of those that the engine has no memory for: the others are complete."""
    given = sets(6, 4, 4, 4)
    gemm.gemm(*given[0][:2], activation="relu")
    gemm.gemm(*given[0][:2], out=given[0][2].copy(), activation="relu")
    real = pending.at_once

    def failing(a, b, *rest, **options):
        if a.ndim > 2 or a is given[3][0]:
            raise MemoryError("none left")
        return real(a, b, *rest, **options)

    monkeypatch.setattr(pending, "at_once", failing)

    def block():
        with gemm.batching():
            for a, b, out in given:
                gemm.gemm(a, b, out=out, activation="relu")

    with pytest.raises(MemoryError, match=r"product 3 of those that were pending: none left"):
        block()
    for i, (a, b, out) in enumerate(given):
        assert (out == 77).all() if i == 3 else np.allclose(out, np.maximum(a @ b, 0), atol=1e-5)


def test_options_are_forgotten_while_products_wait():
    a, b, out = sets(1, 8, 8, 8)[0]
    right = gemm.gemm(a, b)
    gemm.gemm(a, b, out=out)
    out[...] = 77
    with gemm.batching():
        gemm.gemm(a, b, out=out)
        plan_cache.forget()
        gc.collect()
    assert_array_equal(out, right)


@pytest.mark.usefixtures("opencl")
def test_host_arrays_for_a_device_are_one_stack(monkeypatch):
    stacks = []
    real = pending.at_once

    def seen(a, b, *rest, **options):
        stacks.append(a.shape)
        return real(a, b, *rest, **options)

    monkeypatch.setattr(pending, "at_once", seen)
    monkeypatch.setenv("GEMM_ADAPT", "0")  # a second OpenCL device may be near, and the first products be timed
    given = [(numbers(8, 8), numbers(8, 8), numbers(8), np.empty((8, 8), np.float32)) for _ in range(30)]
    gemm.gemm(*given[0][:3], beta=1, backend="opencl")  # its kernel is verified
    plan_cache.forget()
    stacks.clear()
    with gemm.batching():
        for a, b, c, out in given:
            gemm.gemm(a, b, c, beta=1, out=out, backend="opencl")
    assert stacks == [(29, 8, 8)]
    assert all(np.allclose(out, a @ b + c, atol=1e-4) for a, b, c, out in given)
    w = numbers(8, 8)
    found = gemm.gemm_many([x[0] for x in given], w, backend="opencl")
    assert all(np.allclose(x, a @ w, atol=1e-4) for x, (a, *_) in zip(found, given, strict=True))


@pytest.mark.usefixtures("opencl")
def test_many_large_products_ask_where_a_stack_would_be_computed(monkeypatch):
    """And go there: a device is chosen for all of them that none of them is worth."""
    given = [(numbers(100, 100), numbers(100, 100), numbers(100)) for _ in range(60)]
    right = [gemm.gemm(a, b, c, beta=1) for a, b, c in given]
    asked = []
    device = next(x for x in gemm.kernels() if x.backend == "opencl" and x.dtype == "float32" and x.available)

    def choose(problem, *given):
        if given:  # `execute` itself chooses
            return real(problem, *given)
        asked.append(problem.batch)
        return real(problem, kernel=device.name) if len(asked) > 1 else real(problem, "cpu")

    real = pending.execute.choose
    monkeypatch.setattr(pending.execute, "choose", choose)
    for _ in range(2):
        with gemm.batching():
            found = [gemm.gemm(a, b, c, beta=1) for a, b, c in given]
        assert all(np.allclose(x, y, atol=1e-3) for x, y in zip(found, right, strict=True))
    assert asked == [60, 60]


def test_new_scalars_wait_and_are_not_mixed():
    """alpha and beta are the launch's, so products of one kind may have others."""
    x, c = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones((4, 4), np.float32)
    gemm.gemm(x, x, c, alpha=2.0, beta=3.0)
    scalars = [(float(2 + i % 40), float(1 + i % 3)) for i in range(300)]
    one = 1.0
    scalars += [(float(2 + i % 5), one) for i in range(30)] + [(one, float(2 + i % 5)) for i in range(30)]
    with gemm.batching():
        found = [gemm.gemm(x, x, c, alpha=alpha, beta=beta) for alpha, beta in scalars]
    for (alpha, beta), result in zip(scalars, found, strict=True):
        assert_array_equal(result, alpha * (x @ x) + beta)
