"""gemm.gemm_many: whole columns of products read at once, and what ends that: bits, odd operands, order, threads."""

import sys
import threading
import weakref

import numpy as np
import pytest
from helpers import all_equal, at_once
from numpy.testing import assert_array_equal

import gemm
from gemm.extras.batching import Batch
from gemm.frontend import plan_cache

pytestmark = pytest.mark.skipif(not plan_cache.built, reason="gemm._memo is not built")

RNG = np.random.default_rng(29)
COUNT = 3000
FILL = 77


@pytest.fixture(autouse=True, params=["at once", "pending"])
def fresh(settled, request, monkeypatch):
    """Few products of a kind are computed while the GIL is kept, without a reference; here, also as more are."""
    if request.param == "pending":
        monkeypatch.setattr(Batch, "at_once", lambda *_: None)
    plan_cache.forget()
    yield
    assert plan_cache.current() is None
    plan_cache.forget()


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def columns(count=COUNT, size=4):
    """a, b and out, each array its own."""
    return [
        *([numbers(size, size) for _ in range(count)] for _ in range(2)),
        [np.full((size, size), FILL, np.float32) for _ in range(count)],
    ]


def one_by_one(a, b, out=None, c=None, **options):
    """Copies of the results, each as it is after all; without `out`, of independent products."""
    nothing = [None] * len(a)
    each = zip(a, b, c or nothing, out or nothing, strict=True)
    return [x.copy() for x in [gemm.gemm(x, y, z, out=to, **options) for x, y, z, to in each]]


@pytest.mark.parametrize(("threads", "count"), [(2, 1), (2, 63), (2, 65), (1, COUNT), (5, COUNT), (2, 20000)])
def test_same_bits_as_one_by_one(waited, threads, count):
    a, b, out = columns(count)
    gemm.set_num_threads(threads)  # a first limit ends all choices: NumPy has threads of its own
    try:
        right = one_by_one(a, b)
        gemm.gemm(a[0], b[0], out=numbers(4, 4))  # now both kinds of products are known
        found = gemm.gemm_many(a, tuple(b), out=iter(out))
        made = gemm.gemm_many(a, b)
    finally:
        gemm.set_num_threads(None)
    assert all(x is y for x, y in zip(found, out, strict=True))
    all_equal(found, right)
    all_equal(made, right)
    assert len({id(x) for x in made}) == count
    assert waited == 2 * [*[16384] * (count // 16384), count % 16384]


W, C = numbers(4, 4), [numbers(4, 4) for _ in range(COUNT)]
HOW = {
    "c": {"c": C, "beta": 2.0}, "c for all": {"c": W, "beta": 2.0}, "beta 0": {"c": C, "beta": 0.0},
    "alpha": {"alpha": 0.5}, "b for all": {"b": W}, "a for all": {"a": W},
}  # fmt: skip


@pytest.mark.parametrize("how", [*HOW, "c is out"])
def test_addends_scalars_and_one_operand_for_all(waited, how):
    a, b, out = columns()
    given = {"a": a, "b": b, **HOW.get(how, {"c": [x.copy() for x in C], "beta": 2.0})}
    results = given["c"] if how == "c is out" else out
    right = one_by_one(**{name: [W] * COUNT if x is W else x for name, x in given.items()})
    waited.clear()
    all_equal(gemm.gemm_many(**given, out=results), right)
    assert waited == [COUNT - 1]  # the first of its kind was computed at once


class Matrix(np.ndarray):
    """A subclass, which is read by the long way."""


def unaligned(x):
    made = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    made[...] = x
    return made


ODD = {
    "other dtype": lambda x: x.astype(np.float64),
    "other byte order": lambda x: x.astype(">f4"),
    "subclass": lambda x: x.view(Matrix),
    "a list": lambda x: x.tolist(),
    "unaligned": unaligned,
    "negative strides": lambda x: x[::-1].copy()[::-1],
    "transposed": lambda x: x.T.copy().T,
    "one more axis": lambda x: x[None],
}


@pytest.mark.parametrize("where", [0, 1, 200, COUNT - 1])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_operand(odd, where):
    a, b, out = columns()
    a[where] = ODD[odd](a[where])
    right = one_by_one(a, b)
    if right[where].shape == out[where].shape:
        out[where] = np.empty_like(right[where])
        all_equal(gemm.gemm_many(a, b, out=out), right)
        all_equal(out, right)
    all_equal(gemm.gemm_many(a, b), right)


@pytest.mark.parametrize("make", [unaligned, lambda x: x[::-1], lambda x: x.T, lambda x: np.zeros((4, 8), "f")[:, ::2]])
def test_an_odd_out(make):
    a, b, out = columns()
    right = one_by_one(a, b)
    out[1234] = make(out[1234])
    all_equal(gemm.gemm_many(a, b, out=out), right)


def locked(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("column", "make", "message"),
    [(2, locked, "read-only"), (0, lambda x: x[:, :3], "columns of a"), (1, lambda x: x.astype(str), "dtype"),
     (2, lambda x: x[:3], "out has shape"), (2, lambda x: None, ""), (1, lambda x: None, "b")],
)  # fmt: skip
def test_a_wrong_operand_is_named_and_those_before_it_are_complete(column, make, message):
    given = columns()
    right = one_by_one(*given[:2])
    given[column][1500] = make(given[column][1500])
    a, b, out = given
    if column == 2 and out[1500] is None:  # which asks for a new result
        all_equal(gemm.gemm_many(a, b, out=out), right)
        return
    with pytest.raises((TypeError, ValueError), match=rf"product 1500: .*{message}"):
        gemm.gemm_many(a, b, out=out)
    all_equal(out[:1500], right[:1500])
    assert all((x == FILL).all() for x in out[1500:])


def test_many_odd_operands_between_alike_ones():
    """Every 20th of another kind, and every 50th of none."""
    a, b, out = columns()
    for i in range(0, COUNT, 20):
        b[i] = numbers(4, 4).T
    for i in range(0, COUNT, 50):
        a[i] = a[i].view(Matrix)
    right = one_by_one(a, b)
    all_equal(gemm.gemm_many(a, b, out=out), right)


@pytest.mark.parametrize("seed", range(6))
def test_products_that_depend_on_each_other_keep_their_order(seed):
    """Windows of one buffer, as few or as many that they often or hardly ever overlap."""
    rng = np.random.default_rng(seed)
    places = [20, 300, 5000, 30000, 100000, 400000][seed]
    start = rng.standard_normal(places * 8 + 16).astype(np.float32)
    at = [(rng.permutation(4 * COUNT)[:COUNT] if seed == 3 else rng.integers(0, places, COUNT)) * 8 for _ in range(3)]

    def windows(buffer):
        return [[buffer[x : x + 16].reshape(4, 4) for x in column] for column in at]

    right, found = start.copy(), start.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        one_by_one(*windows(right), alpha=0.25)
        a, b, out = windows(found)
        gemm.gemm_many(a, b, out=out, alpha=0.25)
    assert_array_equal(found, right)


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "few displaced", "first is last", "rows"])
def test_results_lie_in_any_order(waited, order):
    """Independent products are one pass wherever they lie; that one out twice is not is found."""
    places = np.arange(COUNT)
    if order == "descending":
        places = places[::-1].copy()
    elif order == "shuffled":
        places = RNG.permutation(COUNT)
    elif order == "few displaced":
        some = np.arange(0, COUNT, 100)
        places[some] = np.roll(places[some], 7)
    elif order == "first is last":
        places = np.roll(places, 1)
    stack = numbers(COUNT, 3, 4, 4)
    a, b, out = ([stack[i, k] for i in (places if k == 2 or order == "rows" else range(COUNT))] for k in range(3))
    right = one_by_one(a, b)
    all_equal(gemm.gemm_many(a, b, out=out), right)
    assert waited[-1] == COUNT - 1
    out[2000] = out[100]
    a[2500] = out[50]  # which is read after it was written, and one that is written later
    b[2600] = out[2900]
    kept = [x.copy() for x in out]
    right = one_by_one(a, b, out)
    for x, y in zip(out, kept, strict=True):
        x[...] = y
    all_equal(gemm.gemm_many(a, b, out=out), right)


def test_outs_that_are_given_or_not(waited):
    a, b, out = columns()
    right = one_by_one(a, b)
    all_equal(gemm.gemm_many(a, b, out=[None] * COUNT), right)
    assert waited == [COUNT]
    mixed = [None if i % 500 < 100 else x for i, x in enumerate(out)]
    found = gemm.gemm_many(a, b, out=mixed)
    all_equal(found, right)
    assert all(y is None or x is y for x, y in zip(found, mixed, strict=True))


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_a_list_of_outs_is_what_is_returned(kind):
    """As a product's out is; of other iterables there is a list."""
    a, b, out = columns()
    given = kind(out)
    found = gemm.gemm_many(a, b, out=given)
    all_equal(found, one_by_one(a, b))
    assert type(found) is list
    assert (found is given) == (kind is list)
    assert all(x is y for x, y in zip(found, out, strict=True))


@pytest.mark.parametrize("operand", "abc")
@pytest.mark.parametrize("shift", [-5, -4, -3, -1, 0, 1, 3, 4, 5])
def test_out_that_overlaps_an_operand_by_some_elements(operand, shift):
    """Of vectors as they touch and by one element more or less; several alike come before it, and one behind."""
    n = 4
    start = numbers(3 * n + 2)
    matrices = [numbers(n, n) for _ in range(5)]
    vectors = {name: [numbers(n) for _ in range(5)] for name in "abc"}

    def products(buffer):
        given = {"a": list(matrices), "b": list(vectors["b"]), "c": list(vectors["c"])}
        if operand == "a":
            given["a"], given["b"] = list(vectors["a"]), list(matrices)
        given["out"] = [np.full(n, FILL, np.float32) for _ in range(5)]
        given[operand][3] = buffer[n + 1 : 2 * n + 1]
        given["out"][3] = buffer[n + 1 + shift : 2 * n + 1 + shift]
        return given

    right, found = start.copy(), start.copy()
    expected = []
    for x, y, z, out in zip(*products(right).values(), strict=True):
        out[...] = gemm.gemm(x.copy(), y.copy(), z.copy(), beta=1)
        expected.append(out.copy())
    for _ in range(3):  # of a kind that is known, columns are read at once
        found[...] = start
        given = products(found)
        all_equal(gemm.gemm_many(given["a"], given["b"], given["c"], out=given["out"], beta=1), expected)
        assert_array_equal(found, right)


def test_an_addend_that_overlaps_its_out():
    """Of products that share all else, the last one's out lies one element behind its c."""
    n = 100  # more elements than a kernel adds to before it stores some
    y, c, again = numbers(n, n), numbers(n), numbers(n + 1)
    for _ in range(2):
        kept = again.copy()
        out = [np.empty(n, np.float32), np.empty(n, np.float32), again[1:]]
        gemm.gemm_many([y] * 3, [y[0]] * 3, [c, c, again[:n]], out=out, beta=1)
        assert_array_equal(again[1:], gemm.gemm(y, y[0], kept[:n].copy(), beta=1))
        assert_array_equal(out[0], gemm.gemm(y, y[0], c, beta=1))


def test_lists_that_change_meanwhile(waited):
    """By what ends with a product that waits, or by another thread: what was given is computed."""
    a, b, out = columns()
    right = one_by_one(a, b)
    given, results = [list(a), list(b)], list(out)
    first = a[0].copy()
    gemm.gemm(first, b[0], out=out[0])  # so that one that lies like this one waits
    weakref.finalize(first, lambda: [x.clear() for x in (*given, results)])
    with gemm.batching() as batch:
        gemm.gemm(first, b[0], out=out[0])
        del first
        assert len(batch) == 1
        found = gemm.gemm_many(*given, out=results)
    if found is not results:  # that list itself, if it was cleared no sooner than at the end
        all_equal(found, right)
    all_equal(out, right)
    assert waited[-1] == COUNT
    assert not results


def test_lists_that_another_thread_changes():
    """What they are when gemm_many is called is computed: here, either of two arrays."""
    a, b, out = columns()
    other = [numbers(4, 4)] * COUNT
    rights = one_by_one(a, b), one_by_one(other, b)
    given, stop = list(a), threading.Event()

    def change():
        while not stop.is_set():
            given[:] = other
            given[:] = a

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            found = gemm.gemm_many(given, b, out=out)
            right = rights[not np.array_equal(found[0], rights[0][0])]
            all_equal(found, right)
    finally:
        stop.set()
        thread.join()


def test_many_threads_at_once():
    def work(seed):
        rng = np.random.default_rng(seed)
        a, b, out = ([*rng.standard_normal((2000, 8, 8)).astype(np.float32)] for _ in range(3))
        for _ in range(5):
            for x in out:
                x[...] = FILL
            gemm.gemm_many(a, b, out=out)
            assert all(np.allclose(z, x @ y, atol=1e-4) for x, y, z in zip(a, b, out, strict=True))

    at_once(work, range(6))


def test_references_are_given_back():
    a, b, out = columns()
    gemm.gemm_many(a, b, out=out)
    before = [sys.getrefcount(x[7]) for x in (a, b, out)]
    for _ in range(3):
        gemm.gemm_many(a, b, out=out)
        gemm.gemm_many(a, b)
    locked(out[1500])
    with pytest.raises(ValueError, match="product 1500"):
        gemm.gemm_many(a, b, out=out)
    assert [sys.getrefcount(x[7]) for x in (a, b, out)] == before


def test_what_an_exception_leaves_is_computed_by_the_next_product(monkeypatch):
    """Columns that wait when delivering them is interrupted, in a block that goes on."""
    a, b, out = columns()
    right = one_by_one(a, b)
    real = Batch.deliver
    monkeypatch.setattr(Batch, "at_once", lambda *_: None)

    def again(z):
        return gemm.gemm(a[0], b[0], out=z)

    again(out[0])  # what this line knew may have been forgotten: then the first product does not wait
    out[0][...] = FILL

    def interrupted(self):
        if len(self) > 1000:
            monkeypatch.setattr(Batch, "deliver", real)
            raise KeyboardInterrupt
        real(self)

    with gemm.batching() as batch:
        monkeypatch.setattr(Batch, "deliver", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gemm.gemm_many(a, b, out=out)
        assert len(batch) == COUNT
        product = again(np.empty_like(out[0]))
        all_equal(out, right)
        assert len(batch) == 1
    assert_array_equal(product, right[0])


def test_a_block_computes_what_waits_before_columns(waited):
    a, b, out = columns()
    right = one_by_one(a, b)
    chained = one_by_one(right, b)
    with gemm.batching():
        first = gemm.gemm(a[0], b[0], out=out[0])
        found = gemm.gemm_many([first, *right[1:]], b)
        waiting = gemm.gemm(a[1], b[1], out=out[1])
        all_equal(found, chained)
    assert_array_equal(waiting, right[1])


def test_columns_that_are_too_short_are_refused():
    """By gemm._memo itself, which gemm_many never gives any."""
    a, b, out = columns(40)
    gemm.gemm(a[0], b[0], out=out[0])
    waiting, memo = plan_cache.pending(None), next(iter(plan_cache.memos.values()))
    one = 1.0, 0.0, out
    for given in (
        (memo, 0, 41, tuple(a), tuple(b), None, out, *one),
        (memo, 0, 40, tuple(a[:9]), b[0], None, out, *one),
    ):
        with pytest.raises(IndexError, match="a sequence of operands ends at"):
            waiting.extend(*given)
