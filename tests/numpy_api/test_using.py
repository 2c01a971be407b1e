"""gemm.use, gemm.Array and the array API's namespace: what goes through gemm, what stays NumPy's, who is affected."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import inspect
import itertools
import pickle
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import at_once, python, same, whole
from numpy.testing import assert_array_equal

import gemm
from gemm.core import numpy_original
from gemm.numpy_api import array as functions

OWN = {name: getattr(np, name) for name in ("matmul", "dot", "inner", "vdot", "tensordot", "einsum")}
ROOT = Path(gemm.__file__).parent


@pytest.fixture
def products(monkeypatch):
    """The options of each product that gemm is asked for."""
    calls = []
    real = gemm.gemm

    def counted(*operands, **options):
        if np.size(operands[0]):  # else the options are checked
            calls.append({name: value for name, value in options.items() if value is not None})
        return real(*operands, **options)

    for module in ("gemm.numpy_api.array", "gemm.numpy_api.tensordot"):
        monkeypatch.setattr(sys.modules[module], "gemm", counted)
    return calls


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert {name: getattr(np, name) for name in OWN} == OWN
    assert functions.inside() is None


A, B, V, S = whole(3, 4), whole(4, 5), whole(4), whole(2, 4, 3)
CALLS = {
    "matmul": lambda w: np.matmul(w(A), B), "matmul of a stack": lambda w: np.matmul(A, w(S)),
    "matmul of lists": lambda w: np.matmul(w(A), B.tolist()), "matmul dtype": lambda w: np.matmul(w(A), B, dtype="c16"),
    "matmul out": lambda w: np.matmul(w(A), B, np.zeros((3, 5))),
    "dot": lambda w: np.dot(w(A), B), "dot of vectors": lambda w: np.dot(w(V), V),
    "dot of stacks": lambda w: np.dot(w(A), S), "dot by a vector": lambda w: np.dot(S.swapaxes(1, 2), w(V)),
    "dot out": lambda w: np.dot(w(A), B, out=np.zeros((3, 5))),
    "inner": lambda w: np.inner(w(A), V), "inner of matrices": lambda w: np.inner(w(A), A),
    "inner of stacks": lambda w: np.inner(w(A), S.swapaxes(1, 2)), "vdot": lambda w: np.vdot(w(A) * 1j, A),
    "tensordot": lambda w: np.tensordot(w(A), B, axes=1), "einsum": lambda w: np.einsum("ij,jk->ki", w(A), B),
    "einsum of lists": lambda w: np.einsum(w(A), [0, 1], B, [1, 2]),
    "multi_dot": lambda w: np.linalg.multi_dot([w(A), B, B.T]),
}  # fmt: skip
NEWER = {
    "vecdot": lambda w: np.vecdot(w(A), V), "linalg.vecdot": lambda w: np.linalg.vecdot(w(A), A, axis=0),
    "linalg.matmul": lambda w: np.linalg.matmul(w(A), B),
    "linalg.tensordot": lambda w: np.linalg.tensordot(w(A), B, axes=1),
}  # fmt: skip
CALLS |= NEWER if hasattr(np, "vecdot") else {}


def asis(x):
    return x


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_use_is_numpy_by_gemm(products, call):
    expected = call(asis)
    assert not products
    with gemm.use(backend="cpu"):
        same(call(asis), expected)
    assert {"backend": "cpu"}.items() <= products[0].items()
    used = len(products)
    same(call(asis), expected)
    assert len(products) == used


@pytest.mark.parametrize("name", CALLS)
def test_array_is_numpy_by_gemm(products, name):
    call = CALLS[name]
    expected = call(asis)
    result = call(lambda x: gemm.array(x, backend="cpu"))
    assert_array_equal(result, expected)
    assert result.dtype == expected.dtype
    assert {"backend": "cpu"}.items() <= products[0].items()
    if not name.endswith("out"):  # that is a plain array
        assert isinstance(result, gemm.Array if expected.ndim else np.generic)


OBJECTS = A.astype(object)
MATRIX = A.view(np.matrix)
OTHERS = {
    "objects": lambda: np.dot(OBJECTS, B), "casting": lambda: np.matmul(A, B, casting="unsafe"),
    "order": lambda: np.einsum("ij,jk", A, B, order="F"),
    "scalar": lambda: np.dot(3, A), "scalars": lambda: np.inner(2, 3.0),
    "axes": lambda: np.matmul(A, A, axes=[(0, 1), (1, 0), (0, 1)]), "subclass": lambda: np.dot(MATRIX, B),
    "masked": lambda: np.ma.masked_equal(A, 0).T.dot(V[:3]),
    "out of its own shape": lambda: np.matmul(A, B, out=np.zeros((2, 3, 5))), "reduce": lambda: np.add.reduce(A),
    "out of more axes": lambda: np.dot(A, S, out=np.zeros((3, 2, 3))),
}  # fmt: skip


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_what_gemm_cannot_do_is_numpys(call):
    expected = call()
    with gemm.use():
        result = call()
    assert type(result) is type(expected)
    assert (result == expected).all()


@pytest.mark.parametrize(
    "call", [lambda: np.matmul(A, A), lambda: np.matmul(3, A), lambda: np.dot(A, B, out=3), lambda: np.vdot(A, V),
             lambda: np.tensordot(A, B, axes=7), lambda: np.einsum("ij,jk", A), lambda: np.matmul(A, nonsense=3)],
)  # fmt: skip
def test_errors_are_numpys(call):
    with pytest.raises((TypeError, ValueError, IndexError)) as expected:
        call()
    with gemm.use(), pytest.raises(expected.type, match=re.escape(str(expected.value)[:20])):
        call()


def test_reproducible_never_falls_back():
    with gemm.use(reproducible=True):
        same(np.dot(A, B), A @ B)
        with pytest.raises(ValueError, match="reproducible"):
            np.dot(A * 1j, B)
    with pytest.raises(ValueError, match="reproducible"):
        gemm.array(A * 1j, reproducible=True) @ B


@pytest.mark.parametrize(
    "options",
    [{"reproducible": "no"}, {"backend": "x"}, {"precision": "x"}, {"kernel": "x"}, {"alpha": 2}, {"dtype": object}],
)
def test_wrong_options_are_refused_at_once(options):
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        gemm.use(**options)
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        gemm.array(A, **options)


def test_a_backend_that_is_not_there_is_an_error(monkeypatch):
    def gone(*_, **__):
        raise gemm.BackendUnavailable("cuda", "no driver")

    with gemm.use():
        monkeypatch.setattr(sys.modules["gemm.numpy_api.array"], "gemm", gone)
        with pytest.raises(gemm.BackendUnavailable):
            np.matmul(A, B)


def test_contexts_nest(products):
    outer, inner = gemm.use(backend="cpu"), gemm.use(precision="high")
    with outer:
        with inner, outer, gemm.use(backend="numpy"):
            np.dot(A, B)
        np.dot(A, B)
    assert products == [{"backend": "numpy", "precision": "high"}, {"backend": "cpu"}]


def test_an_exception_leaves_it(products):
    with pytest.raises(ZeroDivisionError), gemm.use(), gemm.use(backend="cpu"):
        raise ZeroDivisionError
    np.dot(A, B)
    assert not products


def test_as_a_decorator(products):
    @gemm.use(backend="cpu")
    def depth(n):
        """Recursive."""
        return depth(n - 1) if n else np.dot(A, B)

    @gemm.use(backend="numpy")
    async def later():
        await asyncio.sleep(0)
        return np.dot(A, B)

    same(depth(3), A @ B)
    same(asyncio.run(later()), A @ B)
    assert depth.__doc__ == "Recursive."
    assert products == [{"backend": "cpu"}, {"backend": "numpy"}]
    with pytest.raises(TypeError, match="generator"):
        gemm.use()(lambda: (yield))


@contextlib.contextmanager
def inside_elsewhere(**options):
    """Meanwhile another thread is in a block, at whose end it multiplies."""
    inside, leave = threading.Event(), threading.Event()

    def using():
        with gemm.use(**options):
            inside.set()
            leave.wait(10)
            return np.dot(A, B)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(using)
        inside.wait(10)
        try:
            yield
        finally:
            leave.set()
        same(result.result(10), numpy_original.dot(A, B))


def test_other_threads_are_not_affected_and_may_overlap(products):
    with inside_elsewhere(backend="numpy"):
        with gemm.use(backend="cpu"):
            (found,) = at_once(lambda _: np.dot(A, B), [0])
        same(found, numpy_original.dot(A, B))
        assert np.dot is OWN["dot"]  # though the other thread is in it still
        np.dot(A, B)
        assert not products
    assert products == [{"backend": "numpy"}]


def test_many_threads_enter_and_leave():
    def work(backend):
        for _ in range(50):
            with gemm.use(backend=backend):
                assert functions.inside() == {"backend": backend}
                same(np.dot(A, B), A @ B)

    at_once(work, ("cpu", "numpy", "auto") * 2)


def test_tasks_are_apart(products):
    async def using(backend):
        with gemm.use(backend=backend):
            await asyncio.sleep(0)
            started = asyncio.create_task(child())
            np.dot(A, B)
            await started
            return products[-1]["backend"]

    async def child():
        np.dot(A, B)

    async def all_of_them():
        return await asyncio.gather(using("cpu"), using("numpy"), child())

    assert asyncio.run(all_of_them())[2] is None
    assert sorted(call["backend"] for call in products) == ["cpu", "cpu", "numpy", "numpy"]


def test_left_in_another_context():
    """As of a generator that is closed late: the context that leaves has not entered, and keeps its own."""
    using = gemm.use(backend="cpu")
    contextvars.copy_context().run(using.__enter__)
    with gemm.use(backend="numpy"):
        using.__exit__(None, None, None)
        assert functions.inside() == {"backend": "numpy"}


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_that_end_in_any_order_take_their_options_with_them(products, order):
    options = [{"backend": "cpu"}, {"precision": "high"}, {"backend": "numpy", "reproducible": False}]
    blocks = [gemm.use(**own) for own in options]
    for block in blocks:
        block.__enter__()
    left = dict(enumerate(options))
    for number in order:
        blocks[number].__exit__(None, None, None)
        del left[number]
        products.clear()
        np.dot(A, B)
        assert products == ([{k: v for own in left.values() for k, v in own.items()}] if left else [])
    assert np.dot is OWN["dot"]


def test_an_exit_too_many_changes_nothing(products):
    block, other = gemm.use(backend="cpu"), gemm.use(backend="numpy")
    block.__exit__(None, None, None)
    with block:
        other.__exit__(None, None, None)
        np.dot(A, B)
    block.__exit__(None, None, None)
    np.dot(A, B)
    with other:
        block.__exit__(None, None, None)
        np.dot(A, B)
        at_once(lambda _: other.__exit__(None, None, None), [0])
        np.dot(A, B)
    assert products == [{"backend": "cpu"}, {"backend": "numpy"}, {"backend": "numpy"}]


def test_a_block_ends_for_the_tasks_that_it_started(products):
    async def child(entered, ended):
        with gemm.use(precision="high"):
            np.dot(A, B)
            entered.set()
            await ended.wait()
            np.dot(A, B)
        np.dot(A, B)

    async def parent():
        entered, ended = asyncio.Event(), asyncio.Event()
        with gemm.use(backend="cpu"):
            started = asyncio.create_task(child(entered, ended))
            await entered.wait()
        ended.set()
        await started

    asyncio.run(parent())
    assert products == [{"backend": "cpu", "precision": "high"}, {"precision": "high"}]


class Lazy:
    """As dask's arrays: its products are its own, and known by NumPy's function."""

    __array_priority__ = 11
    shape, ndim, dtype = (4, 5), 2, np.dtype(float)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return "lazy" if ufunc is np.matmul and method == "__call__" else NotImplemented

    def __array_function__(self, func, types, args, kwargs):
        return f"lazy {func.__name__}" if func in (np.dot, np.tensordot, np.einsum) else NotImplemented


def lazily():
    other = Lazy()
    return [A @ other, np.matmul(A, other), np.dot(A, other), np.tensordot(A, other), np.einsum("ij,jk", A, other)]


def test_the_products_of_other_libraries_are_theirs_everywhere():
    """An `__array_ufunc__` asks `ufunc is np.matmul`: in each thread, inside a block or not, that must hold."""
    expected = ["lazy", "lazy", "lazy dot", "lazy tensordot", "lazy einsum"]
    assert lazily() == expected
    with gemm.use(backend="cpu"):
        assert lazily() == expected
        assert at_once(lambda _: (np.matmul is OWN["matmul"], lazily()), [0]) == [(True, expected)]


def test_dask_is_dasks_beside_a_block():
    da = pytest.importorskip("dask.array")
    x = da.from_array(B, chunks=2)
    with gemm.use(backend="cpu"):
        assert_array_equal((A @ x).compute(), A @ B)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert_array_equal(pool.submit(lambda: (A @ x).compute()).result(), A @ B)


def test_other_threads_see_numpys_functions_meanwhile():
    """Their identity, their class and their pickles."""
    with inside_elsewhere():
        assert {name: getattr(np, name) for name in OWN} == OWN
        assert isinstance(np.matmul, np.ufunc)
        assert pickle.loads(pickle.dumps(np.matmul)) is OWN["matmul"]
        assert pickle.loads(pickle.dumps(OWN["dot"])) is OWN["dot"]


def test_the_modules_stay_modules():
    with gemm.use():
        pass
    for module in (np, np.linalg):
        assert inspect.ismodule(module)
        assert pickle.loads(pickle.dumps(module)) is module
    cloudpickle = pytest.importorskip("cloudpickle")
    computed = cloudpickle.loads(cloudpickle.dumps(lambda: np.linalg.norm(np.ones(4))))
    assert computed() == 2
    with pytest.raises(AttributeError, match="module 'numpy' has no attribute 'nonsense'"):
        np.nonsense  # noqa: B018
    assert "matmul" in dir(np)


def test_a_replacement_may_be_taken_back_inside(monkeypatch):
    with gemm.use(), monkeypatch.context() as patch:
        patch.setattr(np, "dot", lambda *_: "mine")
        assert np.dot(A, B) == "mine"
        patch.delattr(np, "vdot")
        assert not hasattr(np, "vdot")
    assert np.dot is OWN["dot"]
    assert np.vdot is OWN["vdot"]


def test_a_later_replacement_stays(monkeypatch):
    with gemm.use():
        ours, mine = np.dot, lambda *operands: "mine"
        np.dot = mine
    try:
        assert np.dot is mine
        same(ours(A, B), A @ B)
    finally:
        np.dot = OWN["dot"]


def test_matmul_keeps_its_attributes():
    names = {name for name in dir(np.matmul) if not name.startswith("__")}
    with gemm.use():
        replaced = np.matmul
        assert names <= set(dir(replaced))
        assert (replaced.nin, replaced.nout, replaced.signature) == (2, 1, "(n?,k),(k,m?)->(n?,m?)")
        assert replaced.__wrapped__ is OWN["matmul"]
        assert (replaced.__name__, replaced.__doc__) == ("matmul", OWN["matmul"].__doc__)
        assert pickle.loads(pickle.dumps(replaced)) is replaced
        assert copy.deepcopy(replaced) is replaced
        packed = pickle.dumps(replaced)
    assert pickle.loads(packed) is OWN["matmul"]
    with gemm.use():
        assert np.matmul is replaced


@pytest.mark.parametrize("backend", ["numpy", "cpu", "auto"])
def test_gemm_does_not_call_itself(monkeypatch, backend):
    depth, deepest = 0, 0
    api = sys.modules["gemm.frontend.api"]
    real = api.normalise

    def watched(*operands, **options):
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        try:
            return real(*operands, **options)
        finally:
            depth -= 1

    monkeypatch.setattr(api, "normalise", watched)
    with gemm.use(backend=backend):
        for dtype in (np.float64, np.float16, np.longdouble):
            same(np.matmul(S.astype(dtype), A.astype(dtype)), numpy_original.matmul(S, A).astype(dtype))
            np.einsum("ij,jk,kl->", A, B, B.T, optimize=False)
    assert deepest == 1


def test_the_package_computes_with_plain_products():
    """By the names that `use` replaces a backend would come back to gemm, and a check would check gemm by itself."""
    replaced = re.compile(r"\bnp\.(linalg\.)?(matmul|dot|inner|vdot|vecdot|tensordot|einsum|multi_dot)\(")
    texts = {path: re.sub(r'"""(.|\n)*?"""|".*?"|`.*?`', "", path.read_text("utf-8")) for path in ROOT.rglob("*.py")}
    assert len(texts) > 50
    assert not [path for path, text in texts.items() if replaced.search(text)]


def test_arrays_multiply_by_gemm(products):
    x, y = gemm.array(A, backend="cpu"), gemm.array(B, backend="numpy", precision="high")
    assert np.shares_memory(x, A)
    for result, expected in ((x @ B, A @ B), (A @ y, A @ B), (x @ y, A @ B), (x.dot(B), A @ B), (y.T @ A.T, B.T @ A.T)):
        assert type(result) is gemm.Array
        assert_array_equal(result, expected)
    both = {"backend": "cpu", "precision": "high"}
    assert (x @ y).options == both
    high = {"backend": "numpy", "precision": "high"}
    assert products == [{"backend": "cpu"}, high, both, {"backend": "cpu"}, high, both]
    assert type(gemm.array(V) @ V) is np.float64
    with gemm.use(backend="numpy", reproducible=False):
        x @ B
    assert products[-1] == {"backend": "cpu", "reproducible": False}


def test_in_place_and_out(products):
    square = whole(4, 4)
    x, before = gemm.array(square.copy(), backend="cpu"), gemm.array(square)
    expected = square @ square
    y = x
    y @= before
    assert y is x
    assert_array_equal(x, expected)
    out, given = np.zeros((4, 4)), gemm.array(np.zeros((4, 4)))
    for target in (out, given):
        assert np.matmul(before, square, out=target) is target
        assert before.dot(square, out=target) is target
        assert np.einsum("ij,jk", before, square, out=target) is target
        assert_array_equal(target, expected)
        assert np.add(before, 1, out=target) is target
    assert len(products) == 7
    with pytest.raises(ValueError, match="at least two dimensions"):
        x @= whole(4)
    with pytest.raises(ValueError, match="matmul"):
        x @= whole(4, 3)


def test_all_else_is_numpys_and_keeps_the_options():
    x = gemm.array(A, backend="cpu")
    for result in (
        x[1:], x.T, x + 1, 1 - x, np.exp(x), x.sum(axis=0), np.concatenate([x, x]), x.astype("f4"),
        x.reshape(4, 3), x[x > 0], np.stack([A, x]), np.where(x > 0, x, 0),
        x.copy(), copy.copy(x), copy.deepcopy(x), np.linalg.pinv(x), np.divmod(x, 2)[1], x.view(), np.add.outer(x, x),
        pickle.loads(pickle.dumps(x)), pickle.loads(pickle.dumps(x, 5)), gemm.array(x),
        np.linalg.matrix_power(x @ B[:, :3], 3),
    ):  # fmt: skip
        assert type(result) is gemm.Array
        assert result.options == {"backend": "cpu"}
    for scalar in (x[0, 0], x.sum(), np.max(x), x[0] @ x[1], np.tensordot(x, x), np.einsum("ij->", x)):
        assert isinstance(scalar, np.generic)
    assert_array_equal(pickle.loads(pickle.dumps(x)), A)
    assert gemm.array(x, backend="numpy", precision="high").options == {"backend": "numpy", "precision": "high"}
    x += 1
    assert type(x) is gemm.Array
    np.add.at(x, (0, 0), 5)
    assert x[0, 0] == A[0, 0]
    with pytest.raises(TypeError):
        x.options["backend"] = "numpy"
    A[...] -= 1
    A[0, 0] -= 5


def test_arrays_beside_other_classes():
    x = gemm.array(A)

    class Mine:
        __array_ufunc__ = None

        def __rmatmul__(self, other):
            return "mine"

    assert x @ Mine() == "mine"
    same(x.view(np.ndarray).astype(object).dot(B), OBJECTS.dot(B))
    assert_array_equal(gemm.array(OBJECTS) @ B, OBJECTS @ B)
    masked = np.ma.masked_equal(A, 0)
    assert isinstance(x * masked, np.ma.MaskedArray)
    with pytest.raises(TypeError, match="masked"):
        gemm.array(masked)


def standard(x, y):
    """A function written against the array API."""
    xp = x.__array_namespace__()
    product = xp.matmul(x, y)
    again = xp.linalg.matmul(xp.matrix_transpose(product), xp.asarray(product))
    total = xp.tensordot(again, product, axes=((0,), (1,)))
    return xp.sum(xp.vecdot(xp.abs(total), total, axis=-1)) + xp.linalg.tensordot(x, x, axes=2)


def test_the_array_api_goes_through_gemm(products):
    x = gemm.array(A, backend="cpu")
    expected = np.tensordot((A @ B).T @ (A @ B), A @ B, axes=((0,), (1,)))
    result = standard(x, B)
    assert result == (np.abs(expected) * expected).sum() + (A * A).sum()
    assert len(products) == 5
    assert all({"backend": "cpu"}.items() <= call.items() for call in products)


def test_the_namespace():
    x = gemm.array(A)
    xp = x.__array_namespace__()
    assert type(xp.matmul(A, B)) is gemm.Array
    assert type(xp.matmul(V, V)) is type(xp.tensordot(A, A, axes=2)) is np.float64
    assert_array_equal(xp.vecdot(1j * V, V), -1j * (V * V).sum())
    assert_array_equal(xp.linalg.matrix_transpose(x), A.T)
    assert type(xp.matrix_transpose(x)) is gemm.Array
    assert xp.linalg.vecdot is xp.vecdot
    assert xp.exp is np.exp
    assert xp.linalg.inv is np.linalg.inv
    assert {"matmul", "exp"} <= set(dir(xp))
    assert {"vecdot", "inv"} <= set(dir(xp.linalg))
    with pytest.raises(AttributeError, match="has no 'nonsense'"):
        xp.linalg.nonsense()
    with pytest.raises(TypeError, match="object"):
        xp.matmul(OBJECTS, B)
    with pytest.raises(ValueError, match="1999"):
        x.__array_namespace__(api_version="1999.12")


def test_without_the_array_api_names_are_refused_with_the_reason(monkeypatch):
    namespace = gemm.array(A).__array_namespace__()
    monkeypatch.setattr(np, "__version__", "1.26.4")
    with pytest.raises(AttributeError, match=r"follows the array API from 2\.0"):
        namespace.nonsense()


def test_import_replaces_nothing():
    python("import numpy as np; own = np.matmul; import gemm; assert np.matmul is own")
