"""gemm.dask on dask's local schedulers: shapes, dtypes and scalars beside gemm.gemm, bits, graphs, chunks, threads.

Entries are small integers where equality is due whatever the order of sums.
"""

import threading

import numpy as np
import pytest
from helpers import at_once, dtypes, python
from oracle import check_close, check_same_bits, exact, ordered

import gemm
from gemm.catalog import KERNELS
from gemm.core import engine

da = pytest.importorskip("dask.array", reason="dask is not installed (the extra `dask`)")
dask = pytest.importorskip("dask")

import gemm.dask  # noqa: E402
from gemm.dask import chunks, tasks  # noqa: E402
from gemm.dask.chunks import Cut  # noqa: E402

Array = np.ndarray
WAYS = [{}, {"chunks": None, "contraction": "sum"}, {"chunks": None, "contraction": "fused"}]
ways = pytest.mark.parametrize("way", WAYS, ids=["auto", "sum", "fused"])


def numbers(seed, *shape, dtype="float64"):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def lazy(x, *sides):
    """`x` in chunks of these lengths along its last axes, of one element along the others."""
    return da.from_array(x, chunks=(1,) * (x.ndim - len(sides)) + sides)


def same(result, expected):
    """Equal, of one dtype and shape, before and after it is computed."""
    assert isinstance(result, da.Array)
    assert (result.shape, result.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    assert (type(result._meta), result._meta.dtype, result._meta.ndim) == (np.ndarray, result.dtype, result.ndim)
    computed = result.compute()
    assert (np.shape(computed), np.asarray(computed).dtype) == (result.shape, result.dtype)
    np.testing.assert_array_equal(computed, expected)


# Shapes.


def chunked(operands):
    """In chunks of 3 × 2, which no axis here is whole ones of."""
    return {name: lazy(x, *(3, 2)[-x.ndim :]) if x.ndim else da.from_array(x) for name, x in operands.items()}


@ways
@pytest.mark.parametrize(
    "case",
    [
        # of any shape
        "7x5 5x6", "5 5x6", "7x5 5", "5 5", "3x7x5 5x6", "7x5 2x5x6", "3x1x7x5 2x5x6", "2x3x7x5 1x3x5x6", "2x7x5 5",
        "5 2x5x6", "0x5 5x6", "7x0 0x6", "7x5 5x0", "0x0 0x0", "7x0 0x6 7x6",
        # with an addend
        *(f"2x7x5 2x5x6 {c}" for c in ("2x7x6", "7x6", "6", "7x1", "1x1x6", "")),
        # with a bias
        *(f"{product} - {bias}" for product, biases in {
            "7x5 5x6": "6 1x6 7x1", "7x5 5": "7 1x1 7x1", "5 5x6": "6 1x1", "5 5": "1", "2x7x5 5x6": "7x1",
        }.items() for bias in biases.split()),
        "7x5 5x6 7x6 6", "5 5x6 6 6", "2x7x5 5x6 2x7x6 7x1",
    ],
)  # fmt: skip
def test_it_is_gemm(case, way):
    """Of operands a, b, c and bias of these shapes."""
    shapes = zip(("a", "b", "c", "bias"), case.split(" "), strict=False)
    given = {
        name: numbers(seed, *map(int, filter(None, shape.split("x"))))
        for seed, (name, shape) in enumerate(shapes) if shape != "-"
    }  # fmt: skip
    for activation in (None, "relu") if "bias" in given else (None,):
        scalars = {"alpha": -2, "beta": 3} if "c" in given else {}
        expected = gemm.gemm(**given, **scalars, activation=activation)
        same(gemm.dask.gemm(**chunked(given), **scalars, activation=activation, **way), expected)
    if "c" in given:
        unread = chunked({**given, "c": np.full_like(given["c"], np.nan)})
        same(gemm.dask.gemm(**unread, **way), gemm.gemm(**{**given, "c": None}))


@ways
@pytest.mark.parametrize(("trans_a", "trans_b"), [(True, False), ("T", "T"), ("N", "C"), ("C", True)])
def test_transposes(trans_a, trans_b, way):
    a, b = (numbers(seed, 2, 5, 5) + 1j * numbers(seed + 2, 2, 5, 5) for seed in (1, 2))
    options = {"trans_a": trans_a, "trans_b": trans_b}
    same(gemm.dask.gemm(lazy(a, 3, 2), lazy(b, 2, 4), **options, **way), gemm.gemm(a, b, **options))


def test_chunks_may_be_unequal_and_disagree():
    a, b = numbers(1, 10, 12), numbers(2, 12, 9)
    x, y = da.from_array(a, chunks=((1, 4, 5), (7, 5))), da.from_array(b, chunks=((3, 3, 6), (8, 1)))
    for way in WAYS:
        same(gemm.dask.matmul(x, y, **way), a @ b)
    assert gemm.dask.matmul(x, y, chunks=None).chunks == ((1, 4, 5), (8, 1))


def test_unknown_chunks_are_refused():
    x = lazy(numbers(1, 8, 8), 4, 4)
    unknown = x[x[:, 0] > 0]
    with pytest.raises(ValueError, match=r"b has chunks of unknown sizes.*b\.compute_chunk_sizes\(\)"):
        gemm.dask.matmul(x, unknown)
    with pytest.raises(ValueError, match="a has chunks of unknown sizes"):
        gemm.tensordot(unknown, x, 1)


# Dtypes.


@ways
def test_alpha_zero_reads_neither_a_nor_b(way):
    def fails(block):
        raise AssertionError("it was read")

    unread = da.map_blocks(fails, da.zeros((6, 6), chunks=3), dtype="float64", meta=np.empty((0, 0)))
    c = numbers(1, 6, 6)
    same(gemm.dask.gemm(unread, unread, c, alpha=0, beta=2, **way), 2 * c)
    same(gemm.dask.gemm(unread, unread, alpha=0, **way), np.zeros((6, 6)))


@ways
@pytest.mark.parametrize(
    "dtype",
    dtypes("bool", "uint8", "int8", "int16", "int64", "float16", "bfloat16", "float32", "float64", "complex64"),
)
def test_dtypes_are_those_of_gemm(dtype, way):
    a, b = numbers(1, 7, 9, dtype=dtype), numbers(2, 9, 5, dtype=dtype)
    same(gemm.dask.matmul(lazy(a, 3, 2), lazy(b, 2, 4), **way), gemm.gemm(a, b))


@ways
@pytest.mark.parametrize(
    ("left", "right", "asked"),
    [("float32", "int64", None), ("int8", "int8", "int32"), ("float32", "int64", "complex128")],
)
def test_dtypes_mix_and_may_be_asked_for(left, right, asked, way):
    a, b = numbers(1, 7, 9, dtype=left), numbers(2, 9, 5, dtype=right)
    same(gemm.dask.matmul(lazy(a, 3, 2), lazy(b, 2, 4), dtype=asked, **way), gemm.gemm(a, b, dtype=asked))


@ways
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_errors_are_within_the_bound(dtype, way):
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 300), (300, 30), (40, 30)))
    found = gemm.dask.gemm(lazy(a, 16, 32), lazy(b, 32, 16), c, alpha=0.7, beta=-1.3, **way).compute()
    check_close(found, exact(a, b, c, 0.7, -1.3))


@pytest.mark.parametrize(
    "wrong",
    [{"b": np.ones((4, 3))}, {"c": np.ones((4, 3)), "beta": 1}, {"beta": 1}, {"alpha": 1j}, {"trans_a": "X"},
     {"trans_b": 3}, {"precision": "low"}, {"dtype": "int8"}, {"bias": np.ones(9)}, {"activation": "tanh"},
     {"backend": "abacus"}, {"kernel": "none"}, {"a": np.ones((7, 5), object)}, {"a": np.float64(3)},
     {"a": np.ones((2, 7, 5)), "b": np.ones((3, 5, 6))}],
    ids=lambda wrong: "-".join(wrong),
)  # fmt: skip
def test_mistakes_are_refused_as_by_gemm_before_anything_runs(wrong):
    given = {"a": np.ones((7, 5)), "b": np.ones((5, 6)), **wrong}
    with pytest.raises((ValueError, TypeError)) as expected:
        gemm.gemm(**given)
    chunked = {name: da.from_array(x, chunks=2) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    with pytest.raises(expected.type) as found:
        gemm.dask.gemm(**chunked)
    assert str(found.value) == str(expected.value)


def test_mistakes_of_its_own():
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match="contraction must be one of auto, sum, fused, chain, not 'tree'"):
        gemm.dask.matmul(x, x, contraction="tree")
    with pytest.raises(ValueError, match="contraction must be"):
        gemm.dask.tensordot(x, x, contraction="tree")
    with pytest.raises(ValueError, match='"auto", "sum" or "fused" for tensordot'):
        gemm.dask.tensordot(x, x, contraction="chain")
    with pytest.raises(ValueError, match="not for int64"):
        gemm.dask.matmul(x.astype("int64"), x.astype("int64"), contraction="chain")
    with pytest.raises(ValueError, match="does not keep the order of reproducible=True"):
        gemm.dask.matmul(x, x, contraction="sum", reproducible=True)
    with pytest.raises(TypeError, match="out must be None for dask arrays"):
        gemm.gemm(x, x, out=np.empty((4, 4)))


# gemm's own functions.


def test_gemm_goes_there_by_itself():
    a, b, c = numbers(1, 7, 5), numbers(2, 5, 6), numbers(3, 7, 6)
    x, y, z = lazy(a, 3, 2), lazy(b, 2, 4), lazy(c, 3, 4)
    same(gemm.gemm(x, b, c, alpha=2, beta=3, reproducible=True), 2 * (a @ b) + 3 * c)
    same(gemm.gemm(a, y), a @ b)
    same(gemm.gemm(a, b, z, beta=1), a @ b + c)
    same(gemm.matmul(x, y), a @ b)
    same(gemm.vecdot(x, lazy(a + 1, 3, 2)), (a * (a + 1)).sum(-1))
    with gemm.batching():
        same(gemm.gemm(x, y), a @ b)


def test_dask_is_loaded_only_for_its_arrays():
    python(
        """
        import sys, numpy as np, gemm
        a = np.ones((3, 3))
        gemm.gemm(a, a)
        gemm.tensordot(a, a, 1)
        assert 'dask' not in sys.modules
        """
    )


@pytest.mark.parametrize("contraction", ["auto", "sum", "fused"])
@pytest.mark.parametrize(
    ("axes", "right"),
    [(0, (3, 5)), (1, (3, 5, 4)), (2, (4, 3, 2)), (([0, 2], [1, 0]), (3, 5, 4)), (([-1], [0]), (3, 2)),
     ((1, 1), (5, 4))],
)  # fmt: skip
def test_tensordot(axes, right, contraction):
    a, b = numbers(1, 5, 4, 3), numbers(2, *right)
    x, y = da.from_array(a, chunks=(2, 3, 1)), da.from_array(b, chunks=2)
    same(gemm.dask.tensordot(x, y, axes, contraction=contraction), np.tensordot(a, b, axes))


def test_tensordot_keeps_bits_and_halves_are_rounded_once():
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((6, 20, 30)).astype("float32"), rng.standard_normal((30, 20, 5)).astype("float32")
    x, y, axes = da.from_array(a, chunks=(4, 7, 8)), da.from_array(b, chunks=(9, 7, 3)), ([2, 1], [0, 1])
    expected = gemm.tensordot(a, b, axes, reproducible=True)
    check_same_bits(gemm.tensordot(x, y, axes, reproducible=True).compute(), expected)
    half = [z.astype("float16") for z in (a, b)]
    found = gemm.dask.tensordot(*(da.from_array(z, chunks=7) for z in half), axes, contraction="sum")
    flat = half[0].transpose(0, 2, 1).reshape(6, -1), half[1].reshape(-1, 5)
    assert found.dtype == "float16"
    check_close(found.compute(), exact(*flat))


# Bits.


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_reproducible_bits_are_those_of_one_machine(scheduler):
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(shape).astype("float32") for shape in ((65, 700), (700, 70), (65, 70)))
    x, y = da.from_array(a, chunks=(20, 130)), da.from_array(b, chunks=(90, 33))
    found = gemm.gemm(x, y, c, alpha=0.3, beta=-1.7, reproducible=True)
    chunked = gemm.dask.gemm(x, y, c, alpha=0.3, beta=-1.7, reproducible=True, chunks=None)
    assert chunked.numblocks == (4, 3)
    expected = ordered(a, b, c, alpha=0.3, beta=-1.7)
    for lazily in (found, chunked):
        check_same_bits(lazily.compute(scheduler=scheduler, num_workers=2), expected)
    # and a sum over blocks of k is another order, so that the above shows something
    other = gemm.dask.gemm(x, y, c, alpha=0.3, beta=-1.7, chunks=None, contraction="sum").compute(scheduler=scheduler)
    assert (other != expected).any()
    assert np.allclose(other, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("left", "right"),
    [((30, 200), (200, 25)), ((2, 30, 200), (200, 25)), ((200,), (200, 25)), ((30, 200), (200,)), ((200,), (200,)),
     ((3, 1, 10, 200), (2, 200, 20))],
)  # fmt: skip
def test_a_chain_over_blocks_of_k_keeps_the_bits(left, right):
    chain_of_blocks(left, right, "float32")


@pytest.mark.parametrize("dtype", dtypes("float16", "bfloat16", "float64"))
def test_a_chain_in_any_type_keeps_the_bits(dtype):
    chain_of_blocks((30, 200), (200, 25), dtype)


def chain_of_blocks(left, right, dtype):
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in (left, right))
    c = rng.standard_normal(np.shape(gemm.gemm(a, b))).astype(dtype)
    x, y = da.from_array(a, chunks=7), da.from_array(b, chunks=9)
    for more in ({}, {"alpha": 0.3}, {"c": c, "beta": -1.7}, {"c": c, "alpha": 0.3, "beta": 1, "activation": "relu"}):
        expected = gemm.gemm(a, b, reproducible=True, **more)
        found = gemm.dask.gemm(x, y, contraction="chain", chunks=None, **more)
        assert "gemm-matmul-part" in prefixes(found)
        computed = found.compute()
        assert (type(computed), computed.dtype) == (type(expected), expected.dtype)
        check_same_bits(np.atleast_1d(computed), np.atleast_1d(expected))


def test_reproducible_takes_a_chain_where_panels_do_not_fit():
    a, b = (np.random.default_rng(5).standard_normal(shape) for shape in ((70, 3000), (3000, 50)))
    x, y = da.from_array(a, chunks=(35, 100)), da.from_array(b, chunks=(100, 25))
    found = gemm.dask.gemm(x.T, y.T, trans_a=True, trans_b=True, reproducible=True, chunks="100 kB")
    assert "gemm-matmul-part" in prefixes(found)
    assert max(map(max, found.chunks)) ** 2 * 8 <= 100_000
    assert "gemm-matmul-part" not in prefixes(gemm.gemm(x, y, reproducible=True))
    check_same_bits(found.compute(), ordered(a, b))


def test_reproducible_integers_may_be_summed():
    a = numbers(1, 64, 64, dtype="int32")
    x = da.from_array(a, chunks=16)
    found = gemm.dask.matmul(x, x, reproducible=True, chunks=None, contraction="sum")
    assert "gemm-matmul-aggregate" in prefixes(found)
    same(found, a @ a)


# Graphs.


def prefixes(x):
    """The names of tasks, as the dashboard shows them, after dask's optimization."""
    from dask.utils import key_split

    (optimized,) = dask.optimize(x)
    return {key_split(key) for key in optimized.__dask_graph__()}


def test_tasks_have_our_names():
    x, c = da.ones((8, 8), chunks=2), da.ones((8, 8), chunks=2)
    assert "gemm-matmul" in prefixes(gemm.dask.matmul(x, x, chunks=None, contraction="fused"))
    summed = prefixes(gemm.dask.gemm(x, x, c, beta=1, chunks=None, contraction="sum"))
    assert {"gemm-matmul", "gemm-matmul-aggregate", "gemm-matmul-finish"} <= summed
    assert "gemm-tensordot" in prefixes(gemm.tensordot(x, x, 1))
    assert not {name for name in summed if name.startswith(("product", "total", "part", "sum", "finish"))}


def tasks_of(x):
    (optimized,) = dask.optimize(x)
    return sum(str(key[0]).startswith("gemm-matmul-") for key in optimized.__dask_graph__())


def test_fused_has_fewer_tasks_and_auto_follows_its_rule():
    x = da.zeros((32, 64), chunks=8)
    y = da.zeros((64, 32), chunks=8)
    summed, fused, auto = (
        tasks_of(gemm.dask.matmul(x, y, chunks=None, contraction=how)) for how in ("sum", "fused", "auto")
    )
    assert fused == 16
    assert summed >= 16 * 8 + 16
    assert auto == fused  # 64·(32 + 32) elements of panels, 8·32·32 of partial sums
    skinny = gemm.dask.matmul(x[:8], y[:, :8], chunks=None)
    assert tasks_of(skinny) > 8  # 64·(8 + 8) of panels, 8·8·8 of partial sums


def test_the_graph_is_lazy_and_deterministic():
    x = da.ones((20, 20), chunks=7)
    assert gemm.gemm(x, x).name == gemm.gemm(x, x).name
    assert gemm.gemm(x, x).name != gemm.gemm(x, x, alpha=2).name


def test_other_kinds_of_arrays_keep_theirs():
    x = da.ones((6, 6), chunks=3).map_blocks(
        gemm.array, backend="cpu", meta=gemm.array(np.empty((0, 0)), backend="cpu")
    )
    assert isinstance(gemm.gemm(x, x)._meta, gemm.Array)


# Chunks.


def test_tiles_are_whole():
    sides = {
        row.params[name]
        for row in KERNELS if row.backend == "cpu" and row.dtype in ("float32", "float64")
        for name in ("MR", "NR") if name in row.params
    }  # fmt: skip
    assert len(sides) > 4
    assert not [side for side in sides if chunks.TILE % side]


LIMIT = 1 << 18


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "size",
    [(100, 100, 100, 1), (5000, 5000, 5000, 1), (10**5, 10**5, 16, 1), (16, 10**6, 16, 1), (10**6, 64, 10**6, 1),
     (32, 32, 32, 10**5), (1000, 1000, 1000, 100), (1, 10**5, 10**5, 1), (2305, 2305, 2305, 1)],
)  # fmt: skip
def test_blocks_fit_the_memory_and_are_worth_a_task(size, fused):
    m, k, n, batch = size
    for threads in (1, 2, 64):
        least = chunks.least_side(m * k * n * batch, threads, "distributed")
        cut = chunks.choose(Cut(m, k, n, batch), chunks.Limits(LIMIT, threads, least), fused=fused)
        assert all(1 <= own <= most for own, most in zip(cut, size, strict=True))
        assert cut.k == k or not fused
        assert cut.most_cells() <= max(LIMIT, k if fused else 0)
        for side, length in zip(cut[:3], size, strict=False):
            found = chunks.pieces(length, side)
            assert (sum(found), max(found)) == (length, side)
            assert min(found) >= side // 3  # no slivers


def test_few_threads_have_large_blocks_and_many_have_enough():
    n = 10**4
    sides = [chunks.least_side(n**3, threads, "distributed") for threads in (2, 16, 1024, 10**6)]
    assert sides[0] < sides[1] > sides[2] > sides[3]
    assert (n / sides[2]) ** 3 >= 1000  # tasks for 1024 threads
    assert sides[3] ** 3 * 2 / chunks.RATE >= 0.99 * chunks.TASK_SECONDS["distributed"]
    assert chunks.least_side(n**3, 16, "local") < sides[1]
    spread = chunks.choose(Cut(n, n, n, 1), chunks.Limits(10**9, 16, sides[1] // 3), fused=False)
    assert (n // spread.m) * (n // spread.n) >= chunks.BLOCKS * 16


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
def test_own_chunks_stay_where_they_suit():
    big = da.zeros((4000, 4000), chunks=(1000, 2000), dtype="float32")
    right = da.zeros((4000, 4000), chunks=(2000, 500), dtype="float32")
    with dask.config.set(num_workers=2):
        found = gemm.dask.matmul(big, right, contraction="sum")
        assert found.chunks == ((1000,) * 4, (500,) * 8)
        limited = gemm.dask.matmul(big, right, contraction="sum", chunks="2 MiB")
        assert max(map(max, limited.chunks)) ** 2 * 4 <= 2 << 20
        small = da.zeros((4000, 4000), chunks=50, dtype="float32")
        assert max(gemm.dask.matmul(small, small).numblocks) <= 8
        assert gemm.dask.matmul(small, small, chunks=None).numblocks == (80, 80)


def test_stacks_of_small_products_are_tasks_of_many():
    a = numbers(1, 50, 3, 8, 8)
    found = gemm.dask.matmul(da.from_array(a, chunks=(1, 1, 8, 8)), a)
    assert found.numblocks == (1, 1, 1, 1)
    same(found, a @ a)
    assert chunks.stacks((50, 3), 7) == (2, 3)
    assert chunks.stacks((50, 3), 2) == (1, 2)
    assert Cut(2, 3, 4, 5).most_cells() == 60


# Threads.


def caps(scheduler, count, **options):
    """What gemm may use in each of `count` tasks of a product while it multiplies."""
    found = []
    lock = threading.Lock()
    own = tasks.gemm

    def recorded(*args, **kwargs):
        with lock:
            found.append(gemm.get_num_threads())
        return own(*args, **kwargs)

    x = da.ones((8 * count, 8), chunks=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "gemm", recorded)
        gemm.dask.matmul(x, np.ones((8, 8)), chunks=None).compute(scheduler=scheduler, **options)
    assert len(found) == count
    return found


@pytest.fixture
def eight_threads():
    gemm.set_num_threads(8)
    yield
    gemm.set_num_threads(None)


@pytest.mark.usefixtures("eight_threads")
def test_tasks_share_the_threads():
    assert caps("synchronous", 4) == [8] * 4
    with dask.config.set(num_workers=4):
        assert set(caps("threads", 16)) == {2}
        assert max(caps("threads", 2)) == 4
        assert caps("threads", 1) == [8]
    with dask.config.set(num_workers=16):
        assert set(caps("threads", 16)) == {1}
    assert gemm.get_num_threads() == 8  # it held for the tasks


@pytest.mark.usefixtures("eight_threads")
def test_what_others_have_is_not_given_twice():
    with dask.config.set(num_workers=4):

        def second(count):
            with tasks.sharing(count) as share:
                return share, gemm.get_num_threads()

        with tasks.sharing(2) as share:
            inside = at_once(second, [1])
        assert (share, inside) == (8, [(1, 1)])  # the main thread is the synchronous scheduler's and had them all
    assert not any(tasks._used.values())


@pytest.mark.usefixtures("eight_threads")
def test_limits_of_a_thread_nest():
    with engine.leaving(2):
        with engine.leaving(3):
            assert gemm.get_num_threads() == 3
        assert gemm.get_num_threads() == 6
    assert gemm.get_num_threads() == 8


def test_a_worker_names_its_backend():
    x = da.ones((8, 8), chunks=4)
    with dask.config.set({"gemm.backend": "abacus"}), pytest.raises(ValueError, match="abacus"):
        gemm.gemm(x, x).compute(scheduler="synchronous")
    with dask.config.set({"gemm.backend": "abacus"}):  # what the product names comes first
        same(gemm.gemm(x, x, backend="cpu"), np.full((8, 8), 8.0))
