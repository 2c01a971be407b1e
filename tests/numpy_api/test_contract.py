"""tensordot, einsum and the rest of gemm.numpy_api: NumPy's results, by one product a pair, without needless copies."""

import itertools
import sys

import hypothesis
import hypothesis.strategies as st
import numpy as np
import opt_einsum
import pytest
from helpers import RNG, same, whole
from numpy.testing import assert_array_equal

import gemm
from gemm.core import operands

DTYPES = ("float64", "float32", "int32", "int8", "complex128", "bool")


@pytest.fixture
def products(monkeypatch):
    """The operands of each product that a contraction hands to gemm."""
    calls = []
    real = gemm.gemm

    def counted(a, b, **options):
        calls.append((a, b))
        return real(a, b, **options)

    monkeypatch.setattr(sys.modules["gemm.numpy_api.tensordot"], "gemm", counted)
    return calls


@st.composite
def arrays(draw, shape, dtype):
    """An array of `shape` whose axes lie in memory in any order, perhaps backwards or with gaps."""
    order = draw(st.permutations(range(len(shape))))
    gaps = draw(st.sampled_from([1, 1, -1, 2]))
    array = whole(*(shape[axis] * abs(gaps) for axis in order), dtype=dtype)[(slice(None, None, gaps),) * len(shape)]
    return array.transpose(np.argsort(order).astype(int))


@st.composite
def subscripts(draw):
    """(subscripts, operands) that np.einsum takes: labels repeat, broadcast, are summed alone or kept by several."""
    sizes = {label: draw(st.integers(0, 3) if label == "e" else st.integers(1, 3)) for label in "abcde"}
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    operands = []
    dtype = draw(st.sampled_from(DTYPES))
    for term in terms:
        narrow = draw(st.sets(st.sampled_from(term or "a"))) if draw(st.booleans()) else set()
        shape = [1 if label in narrow and term.count(label) == 1 else sizes[label] for label in term]
        operands.append(draw(arrays(shape, dtype)))
    used = sorted(set("".join(terms)))
    output = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
    arrow = f"->{''.join(output)}" if draw(st.booleans()) else ""
    return ",".join(terms) + arrow, operands


@hypothesis.given(subscripts(), st.sampled_from([True, False, "optimal"]))
def test_einsum_is_numpys(case, optimize):
    text, operands = case
    same(gemm.einsum(text, *operands, optimize=optimize), np.einsum(text, *operands))


@hypothesis.given(st.data())
def test_tensordot_is_numpys(data):
    shape = data.draw(st.lists(st.integers(0, 3), max_size=4))
    left = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True) if shape else st.just([]))
    others = data.draw(st.lists(st.integers(1, 3), max_size=2))
    placed = data.draw(st.permutations([*(shape[axis] for axis in left), *others]))
    right = []
    for axis in left:
        right.append(next(i for i, size in enumerate(placed) if size == shape[axis] and i not in right))
    signs = data.draw(st.lists(st.booleans(), min_size=len(left), max_size=len(left)))
    axes = ([axis - len(shape) * sign for axis, sign in zip(left, signs, strict=True)], right)
    dtype = data.draw(st.sampled_from(DTYPES))
    a, b = data.draw(arrays(shape, dtype)), data.draw(arrays(placed, dtype))
    same(gemm.tensordot(a, b, axes), np.tensordot(a, b, axes)[()])


@pytest.mark.parametrize("axes", [0, 1, 2, -1, (1, 0), (-1, -2), ((), ()), ([0], [1])])
def test_forms_of_axes(axes):
    a, b = whole(3, 3), whole(3, 3)
    same(gemm.tensordot(a, b, axes), np.tensordot(a, b, axes)[()])
    same(gemm.tensordot(a.tolist(), b, axes=axes), np.tensordot(a, b, axes)[()])


@pytest.mark.parametrize(
    "axes", [3, ([0, 0], [0, 1]), ([0, -2], [0, 1]), ([0], [7]), ([0, 1], [0]), ([1], [0]), 1.0, "ab", ([0.5], [0.5])]
)
def test_errors_of_tensordot(axes):
    a, b = whole(2, 3), whole(2, 3)
    with pytest.raises((ValueError, IndexError, TypeError)) as numpys:
        np.tensordot(a, b, axes)
    with pytest.raises(numpys.type):
        gemm.tensordot(a, b, axes)


@pytest.mark.parametrize(
    "arguments",
    [
        ("...ij,...jk", (2, 3), (4, 3, 2)), ("i...,i...->...", (2, 1, 3), (2, 4, 1)),
        ("ij...,jk...->...ik", (2, 3), (3, 2)), ("i j , j k -> i k", (2, 3), (3, 2)), ("...,...", (2, 3), ()),
        ("ba,cb", (2, 3), (4, 2)), ("Zb,ba", (2, 3), (3, 2)), ("i...i", (2, 3, 2)), ("ii->i", (3, 3)), ("", ()),
        (",", (), ()), ("ij,jk,kl,lm->im", (2, 3), (3, 4), (4, 2), (2, 5)),
    ],
)  # fmt: skip
def test_forms_of_subscripts(arguments):
    text, *shapes = arguments
    operands = [whole(*shape) for shape in shapes]
    same(gemm.einsum(text, *operands), np.einsum(text, *operands))


def test_labels_as_lists():
    a, b, dots = whole(2, 3), whole(4, 3), Ellipsis
    for arguments in ((a, [0, 1], b, [2, 1], [2, 0]), (a, [0, 1], b, [26, 1]), (a, [dots, 1], b, [5, 1], [5, dots])):
        same(gemm.einsum(*arguments), np.einsum(*arguments))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("...i->i", (2, 3)), {}), (("ij,jk", (2, 3), (2, 3)), {}), (("ij,j", (2, 3), ()), {}),
        (("ij", (2, 3), (2,)), {}), (("ij,jk->ikk", (2, 3), (3, 2)), {}), (("ij->iz", (2, 3)), {}),
        (("ij->i->j", (2, 3)), {}), (("i1", (2, 3)), {}), (("i..j", (2, 3)), {}), (("ijk", (2, 3)), {}),
        (("ii", (1, 3)), {}), (("ij",), {}), ((), {}),
        (("ij,jk", (2, 3), (3, 2)), {"out": np.zeros((3, 2, 2))}),
        (("ij,jk", (2, 3), (3, 2)), {"out": np.zeros((2, 2), np.float32)}),
        (("ij,jk,kl", (2, 3), (3, 2), (2, 1)), {"optimize": ["einsum_path", (0, 1)]}),
        (("ij,jk,kl", (2, 3), (3, 2), (2, 1)), {"optimize": (1, 2, 3)}),
    ],
)  # fmt: skip
def test_errors_of_einsum(arguments, options):
    text, operands = arguments[:1], [whole(*shape) for shape in arguments[1:]]
    with pytest.raises((ValueError, TypeError, RuntimeError)) as numpys:
        np.einsum(*text, *operands, **options)
    with pytest.raises(numpys.type):
        gemm.einsum(*text, *operands, **options)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "text", ["bb->", "bb->b", "bb", "bbb->b", "aabb->ab", "abab->ab", "...bb->...", "b,b->", "b,b->b", "b,b,b->b",
             "ab,ab->", "ab,ba->b", "ab,bc->ac", "bb,b->", "bb,b->b", "abb,b->a", "aa,bb->ab", "aa,ab->b"],
)  # fmt: skip
def test_repeated_labels_of_lengths_0_1_and_n(text, optimize):
    """Every mixture of lengths: NumPy's values and refusals. A diagonal's axes have one length, also where NumPy, which
    takes 0 for unset, leaves its result uninitialised."""
    terms = [term.replace("...", "z") for term in text.partition("->")[0].split(",")]
    for lengths in itertools.product((0, 1, 3), repeat=sum(map(len, terms))):
        rest = iter(lengths)
        shapes = [tuple(itertools.islice(rest, len(term))) for term in terms]
        operands = [whole(*shape) for shape in shapes]
        uneven = any(len(set(zip(term, shape, strict=True))) > len(set(term))
                     for term, shape in zip(terms, shapes, strict=True))  # fmt: skip
        try:
            expected = None if uneven else np.einsum(text, *operands)
        except ValueError:
            expected = None
        if expected is None:
            with pytest.raises(ValueError, match=r"label '\w' of operand \d has length"):
                gemm.einsum(text, *operands, optimize=optimize)
        else:
            same(gemm.einsum(text, *operands, optimize=optimize), expected)


@pytest.mark.parametrize("labels", [([0, 52],), ([-1, 0],), ("ij",)])
def test_errors_of_labels(labels):
    a = whole(2, 3)
    with pytest.raises((ValueError, TypeError)) as numpys:
        np.einsum(a, *labels)
    with pytest.raises(numpys.type):
        gemm.einsum(a, *labels)


def test_unknown_options_and_dtypes_are_named():
    v = whole(3)
    with pytest.raises(TypeError, match="alpha"):
        gemm.einsum("i,i", v, v, alpha=2)
    with pytest.raises(TypeError, match="trans_a"):
        gemm.tensordot(v, v, 1, trans_a=True)
    with pytest.raises(TypeError, match="option 'reproducibel' is not known: did you mean reproducible"):
        gemm.use(reproducibel=True)
    with pytest.raises(TypeError, match="operand 1 has dtype object"):
        gemm.einsum("i,i", v, v.astype(object))


@pytest.mark.parametrize("optimize", [True, "greedy", ("greedy", 10**6), ["einsum_path", (1, 2), (0, 1)]])
def test_a_pair_is_one_product(products, optimize):
    operands = whole(4, 5), whole(5, 6), whole(6, 7)
    same(gemm.einsum("ij,jk,kl->il", *operands, optimize=optimize), np.einsum("ij,jk,kl->il", *operands))
    assert len(products) == 2
    gemm.tensordot(whole(2, 3, 4), whole(3, 4, 5))
    gemm.vecdot(whole(2, 3), whole(3))
    assert len(products) == 4


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("ij,jk->ik", "ij", "jk"), ("ij,jk->ik", "ji", "kj"), ("ij,jk->ki", "ij", "jk"), ("bij,bjk->bik", "bij", "bkj"),
        ("abij,abjk->abik", "abij", "abjk"), ("abij,bajk->abik", "abij", "bajk"), ("ijkl,klmn->ijmn", "ijkl", "mnkl"),
        ("ijkl,lkmn->ijmn", "ijkl", "klmn"), ("iakb,kjb->iaj", "iakb", "jkb"), ("ijk,ijk->", "jki", "jki"),
    ],
)  # fmt: skip
def test_axes_that_merge_are_not_copied(products, text, a, b):
    """a and b: the order in which the operands' axes lie in memory."""
    sizes = dict(zip("abijklmn", (2, 3, 4, 5, 6, 7, 3, 2), strict=True))
    operands = []
    for term, order in zip(text.partition("->")[0].split(","), (a, b), strict=True):
        lying = whole(*(sizes[label] for label in order))
        operands.append(lying.transpose([order.index(label) for label in term]))
    same(gemm.einsum(text, *operands), np.einsum(text, *operands))
    ((left, right),) = products
    assert {np.shares_memory(left, operand) for operand in operands} == {True, False}
    assert {np.shares_memory(right, operand) for operand in operands} == {True, False}


def test_only_what_does_not_merge_is_copied(products):
    a, b = whole(4, 5, 6), whole(5, 7)
    same(gemm.einsum("ijk,jl->ikl", a, b), np.einsum("ijk,jl->ikl", a, b))
    ((left, right),) = products
    assert not np.shares_memory(left, a)
    assert np.shares_memory(right, b)


def test_elements_alone_are_no_product_of_matrices(products):
    a, b = whole(3, 4), whole(4)
    same(gemm.einsum("ij,j->ji", a, b), np.einsum("ij,j->ji", a, b))
    same(gemm.tensordot(a, b, 0), np.tensordot(a, b, 0))
    same(gemm.einsum("ij->i", a), np.einsum("ij->i", a))
    assert not products


def test_a_single_operand_is_a_view():
    a = whole(3, 3)
    for text in ("ij->ji", "ii->i"):
        view = gemm.einsum(text, a)
        assert np.shares_memory(view, a)
        view[...] = 7
        assert (np.einsum(text, a) == 7).all()


@pytest.mark.parametrize("optimize", [True, False])
def test_out_is_filled(optimize):
    a, b, c = whole(2, 3, dtype="float32"), whole(3, 4, dtype="float32"), whole(4, 5)
    out = np.full((5, 2), 9.0)
    assert gemm.einsum("ij,jk,kl->li", a, b, c, out=out, optimize=optimize) is out
    assert_array_equal(out, np.einsum("ij,jk,kl->li", a, b, c))
    scalar = np.zeros(())
    assert gemm.einsum("ij,ij", a, a, out=scalar) is scalar
    assert scalar == (a * a).sum()


class Own(np.ndarray):
    """A subclass of NumPy's arrays."""


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (2, 3)])
@pytest.mark.parametrize("kind", [Own, np.matrix, np.recarray, gemm.Array, "torch"])
def test_out_of_another_class_may_be_empty(kind, shape):
    """What has elements may be told from a copy by its memory; what has none must not be refused for that."""
    a, b = whole(shape[0], 4), whole(4, shape[1])
    for product in (
        lambda out: gemm.gemm(a, b, out=out), lambda out: gemm.matmul(a, b, out=out),
        lambda out: gemm.einsum("ij,jk", a, b, out=out), lambda out: gemm.gemm_many([a], b, out=[out])[0],
    ):  # fmt: skip
        if kind == "torch":
            out = pytest.importorskip("torch").zeros(shape, dtype=pytest.importorskip("torch").float64)
        else:
            out = np.zeros(shape).view(kind)
        assert product(out) is out
        assert_array_equal(np.asarray(out), a @ b)


@pytest.mark.parametrize("out", [[], [[], []], ()])
def test_out_that_is_no_array_is_refused(out):
    shape = np.shape(out)
    a, b = (whole(2, 0), whole(0, 0)) if len(shape) == 2 else (whole(0, 3), whole(3))
    with pytest.raises(TypeError, match="out must be an array to write to"):
        gemm.gemm(a, b, out=out)


def test_out_may_be_an_operand():
    a, b = whole(3, 3), whole(3, 3)
    expected = a @ b
    gemm.einsum("ij,jk", a, b, out=a)
    assert_array_equal(a, expected)


def test_each_step_has_the_dtype_of_all_operands():
    """In float32 the first pair, 2²⁴ + 1, would be rounded."""
    a, b = np.array([2.0**24, 1], np.float32), np.ones(2, np.float32)
    same(gemm.einsum("i,i,->", a, b, np.int64(1)), np.float64(2**24 + 1))
    same(gemm.einsum("i,->", a, np.float64(1)), np.float64(2**24 + 1))
    same(gemm.einsum("i->", a, dtype="float64"), np.float64(2**24 + 1))
    same(gemm.tensordot(a, b.astype(np.float64), 1), np.float64(2**24 + 1))


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_narrow_results_are_rounded_once(narrow):
    kind = operands.named(narrow, "the test's dtype")
    ones, many = np.ones((2, 5000), kind), np.full(5000, 1, kind)
    for result in (gemm.einsum("ij,j->i", ones, many), gemm.einsum("ij->i", ones), gemm.tensordot(ones, many, 1)):
        assert result.dtype == kind
        assert_array_equal(result, np.full(2, 5000, kind))
    same(gemm.einsum("i,i,->", many, many, kind.type(1 / 256)), kind.type(5000 / 256))


def test_reproducible_bits_do_not_depend_on_the_layout():
    a, b = RNG.standard_normal((2, 6, 5, 40, 7)).astype(np.float32)[:, :, :, :, 0]
    turned = np.asfortranarray(a), np.moveaxis(np.ascontiguousarray(np.moveaxis(b, 0, 1)), 1, 0)
    for text in ("ijk,ljk->il", "ijk,ljk->li", "ijk,ijk->", "ijk,lmn->il", "ijk,ljk,mjk->ilm", "ijk->i"):
        operands = [(a, b, a)[i] for i in range(text.count(",") + 1)]
        others = [(turned[0], turned[1], turned[0])[i] for i in range(text.count(",") + 1)]
        bits = gemm.einsum(text, *operands, reproducible=True)
        assert_array_equal(gemm.einsum(text, *others, reproducible=True), bits)
        np.testing.assert_allclose(bits, np.einsum(text, *operands, optimize=True), rtol=1e-3, atol=1e-3)
    chain = gemm.gemm(a.reshape(6, -1), b.reshape(6, -1), trans_b=True, reproducible=True)
    assert_array_equal(gemm.tensordot(*turned, ([1, 2], [1, 2]), reproducible=True), chain)


def test_options_reach_the_product():
    a = whole(2, 3)
    with pytest.raises(ValueError, match="backend 'nonsense' is not known; use auto, cpu"):
        gemm.tensordot(a, a.T, 1, backend="nonsense")
    with pytest.raises(ValueError, match="precision must be one of"):
        gemm.einsum("ij,jk", a, a.T, precision="nonsense")
    for result in (gemm.tensordot(a, a.T, 1, dtype="float32"), gemm.einsum("ij,jk", a, a.T, dtype="float32")):
        same(result, (a @ a.T).astype(np.float32))


@pytest.mark.parametrize(("left", "right", "axis"), [((3,), (3,), -1), ((2, 3), (3,), -1), ((3, 2), (4, 3, 1), -2)])
@pytest.mark.parametrize("dtype", ["int32", "complex128"])
def test_vecdot_conjugates_and_broadcasts(left, right, axis, dtype):
    a, b = whole(*left, dtype=dtype), whole(*right, dtype=dtype)
    if dtype == "complex128":
        a, b = a + 1j * whole(*left), b - 2j * whole(*right)
    axes = [np.moveaxis(x, axis, -1) for x in (a, b)]
    same(gemm.vecdot(a, b, axis=axis), (axes[0].conj() * axes[1]).sum(-1, dtype=dtype))


def test_errors_of_vecdot_and_matrix_transpose():
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        gemm.vecdot(whole(3), whole(3), axis=1)
    with pytest.raises(ValueError, match="must agree"):
        gemm.vecdot(whole(2, 3), whole(2))
    with pytest.raises(ValueError, match="1 axes"):
        gemm.matrix_transpose(whole(3))


def test_transposes_are_views():
    a = whole(2, 3, 4)
    for result, expected in (
        (gemm.transpose(a), a.T), (gemm.transpose(a, axes=(1, -1, 0)), a.transpose(1, 2, 0)),
        (gemm.matrix_transpose(a), a.swapaxes(1, 2)),
    ):  # fmt: skip
        same(result, expected)
        assert np.shares_memory(result, a)
    same(gemm.transpose([[1, 2]]), np.array([[1], [2]]))


@pytest.mark.parametrize("text", ["ij,jk,kl->il", "ij,jk,lk->li", "bij,bjk->ibk", "ij,ij->", "ab,cd->dcba", "i,ij,j"])
def test_opt_einsum(products, text):
    sizes = dict(zip("abcdijkl", (2, 3, 4, 5, 3, 4, 5, 6), strict=True))
    operands = [whole(*(sizes[label] for label in term)) for term in text.partition("->")[0].split(",")]
    expected = np.einsum(text, *operands)
    result = opt_einsum.contract(text, *operands, backend="gemm")
    assert_array_equal(result, expected)
    if expected.ndim:  # opt_einsum writes to out[:]
        out = np.zeros_like(expected)
        opt_einsum.contract(text, *operands, backend="gemm", out=out)
        assert_array_equal(out, expected)
    assert products or text == "ab,cd->dcba"


class Elsewhere:
    """An array of a device, or of another library: its shape, and what its methods were asked."""

    def __init__(self, array, asked):
        self.array, self.asked = array, asked
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype

    def permute(self, axes):
        self.asked.append(("permute", axes))
        return Elsewhere(self.array.transpose(axes), self.asked)

    def reshape(self, shape):
        self.asked.append(("reshape", shape))
        return Elsewhere(self.array.reshape(shape), self.asked)


def test_device_arrays_are_turned_by_their_own_methods(monkeypatch):
    """Without a device: what `wrap` finds is said to lie on one, and the product is NumPy's."""
    contract = sys.modules["gemm.numpy_api.tensordot"]
    monkeypatch.setattr(contract, "DeviceView", Elsewhere)
    monkeypatch.setattr(contract.interop, "wrap", lambda array, name: array)
    monkeypatch.setattr(contract, "gemm", lambda a, b, **_: Elsewhere(a.array @ b.array, a.asked))
    a, b, asked = whole(2, 3, 4), whole(4, 5, 3), []
    result = gemm.tensordot(Elsewhere(a, asked), Elsewhere(b, asked), ([1, 2], [2, 0]))
    same(result.array, np.tensordot(a, b, ([1, 2], [2, 0])))
    assert asked == [("reshape", (2, 12)), ("permute", (2, 0, 1)), ("reshape", (12, 5))]
    same(gemm.transpose(Elsewhere(a, asked)).array, a.T)
    same(gemm.matrix_transpose(Elsewhere(a, asked)).array, a.swapaxes(1, 2))

    def refuse(self, shape):
        raise ValueError("cannot reshape without copy")

    monkeypatch.setattr(Elsewhere, "reshape", refuse)
    with pytest.raises(TypeError, match=r"a cannot be reshaped to \(2, 12\) without a copy: cannot reshape"):
        gemm.tensordot(Elsewhere(a, asked), Elsewhere(b, asked), ([1, 2], [2, 0]))
    monkeypatch.delattr(Elsewhere, "reshape")
    with pytest.raises(TypeError, match="a of type Elsewhere has no method reshape"):
        gemm.tensordot(Elsewhere(a, asked), Elsewhere(b, asked), ([1, 2], [2, 0]))
    monkeypatch.delattr(Elsewhere, "permute")
    with pytest.raises(TypeError, match="b of type Elsewhere has no method transpose"):
        gemm.tensordot(Elsewhere(a[0].T, asked), Elsewhere(b, asked), ([1], [2]))
