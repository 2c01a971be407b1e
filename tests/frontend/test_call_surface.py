"""The call: shapes, dtypes, layouts, scalars, outs and mistakes, against np.matmul and sums written out in NumPy.

Entries are small integers, so that equality is due whatever computes; kernels as such are conformance/'s business.
"""

import array
import re
import warnings
from functools import partial

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from conformance.repeated import repeated
from helpers import whole
from hypothesis import given
from hypothesis import strategies as st

import gemm

BACKENDS = ["auto", "cpu"]
FLOATS = ["float32", "float64"]
backends = pytest.mark.parametrize("backend", BACKENDS)

seeds = st.integers(0, 2**32 - 1)
scalars = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5])
sides = st.integers(0, 7)


same = partial(np.testing.assert_array_equal, strict=True)


@st.composite
def views(draw, x):
    """`x` as a view of other memory: offset, stepped, reversed, its axes in any order."""
    order = draw(st.permutations(range(x.ndim)))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in order]
    signs = [draw(st.sampled_from([1, 1, -1])) for _ in order]
    pads = [draw(st.integers(0, 2)) for _ in order]
    shape = [x.shape[axis] * step + pad for axis, step, pad in zip(order, steps, pads, strict=True)]
    view = np.full(shape, 99, x.dtype)[(..., *(slice(pad, None, step) for pad, step in zip(pads, steps, strict=True)))]
    view = view[(..., *(slice(x.shape[axis]) for axis in order))]
    view = view[(..., *(slice(None, None, sign) for sign in signs))].transpose(np.argsort(order))
    view[...] = x
    return view


# Shapes.


@backends
@given(data=st.data(), seed=seeds, dtype=st.sampled_from(FLOATS), shapes=hnp.mutually_broadcastable_shapes(
       signature="(m?,k),(k,n?)->(m?,n?)", min_side=0, max_side=5, max_dims=3))  # fmt: skip
def test_matmul_is_numpys(backend, data, shapes, seed, dtype):
    a, b = (data.draw(views(whole(*shape, dtype=dtype, seed=seed + i))) for i, shape in enumerate(shapes.input_shapes))
    same(gemm.matmul(a, b, backend=backend), np.matmul(a, b))


@backends
@given(data=st.data(), seed=seeds, dtype=st.sampled_from(FLOATS), m=sides, n=sides, k=sides,
       alpha=scalars, beta=scalars,
       trans=st.tuples(*[st.sampled_from([False, True, "N", "T", "C", "n", "t", "c", np.True_])] * 2),
       batch=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3))  # fmt: skip
def test_gemm_is_its_formula(
    backend, data, seed, dtype, m, n, k, alpha, beta,
    trans, batch,
):  # fmt: skip
    (left, right), full = batch.input_shapes, (*batch.result_shape, m, n)
    a, b = whole(*left, m, k, dtype=dtype, seed=seed), whole(*right, k, n, dtype=dtype, seed=seed + 1)
    c = whole(*data.draw(st.sampled_from([full, (m, n), (n,), (1, n), (m, 1), (1,), ()])), dtype=dtype, seed=seed)
    expected = alpha * np.matmul(a, b) + beta * np.broadcast_to(c, full)
    flip = [str(t).upper() in ("TRUE", "T", "C") for t in trans]
    x, y = (data.draw(views(z.swapaxes(-1, -2) if f else z)) for z, f in zip((a, b), flip, strict=True))
    z = data.draw(views(c))
    options = {"alpha": alpha, "beta": beta, "trans_a": trans[0], "trans_b": trans[1], "backend": backend}
    same(gemm.gemm(x, y, z, **options), expected.astype(dtype))
    out = data.draw(views(np.full(full, np.nan, dtype)))
    assert gemm.gemm(x, y, z, out=out, **options) is out
    same(out, expected.astype(dtype))
    same(z, c)


@backends
@given(data=st.data(), seed=seeds, size=st.sampled_from([1, 2, 3, 5, 20, 40]), beta=scalars)
def test_out_overlaps_anything(backend, data, seed, size, beta):
    """a, b, c and out are windows of one memory, at any distance and in any orientation."""
    room = 2 * size * size + 30
    memory = whole(room, dtype="float32", seed=seed)
    starts = [data.draw(st.integers(0, room - size * size)) for _ in "abco"]

    def window(start):
        view = memory[start : start + size * size].reshape(size, size)
        view = view.T if data.draw(st.booleans()) else view
        return view[:: data.draw(st.sampled_from([1, -1]))]

    a, b, c, out = map(window, starts)
    before = memory.copy()
    expected = 2 * (a @ b) + beta * c
    outside = np.ones(room, bool)
    outside[starts[-1] : starts[-1] + size * size] = False
    repeated(gemm.gemm)(a, b, c, alpha=2.0, beta=beta, out=out, backend=backend)
    same(out, expected.astype("float32"))
    same(memory[outside], before[outside])


# Dtypes.

PAIRS = [
    ("float32", "float32"), ("float32", "float64"), ("float16", "float16"), ("float16", "float32"), ("int8", "int8"),
    ("int32", "int32"), ("int64", "float32"), ("uint8", "int8"), ("uint64", "int64"), ("bool", "bool"),
    ("bool", "int16"),
    ("complex64", "complex64"), ("complex128", "float32"), ("longdouble", "float64"), (">f4", ">f4"), (">f8", "<f4"),
    (">i4", "int16"), ("bool", "float16"), ("clongdouble", "int8"),
]  # fmt: skip


@backends
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_dtypes_promote_as_numpys(backend, left, right):
    a, b = abs(whole(5, 4, seed=1)).astype(left), abs(whole(4, 3, seed=2)).astype(right)
    expected = np.matmul(a, b)
    same(gemm.matmul(a, b, backend=backend), expected)
    same(gemm.matmul(b.T, a.T, backend=backend), expected.T)
    assert gemm.matmul(a, b, backend=backend).dtype.isnative


@backends
def test_integers_are_exact_and_wrap(backend):
    rng = np.random.default_rng(3)
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        info = np.iinfo(dtype)
        a, b, c = (rng.integers(info.min, info.max, (6, 6), dtype, endpoint=True) for _ in range(3))
        same(gemm.gemm(a, b, backend=backend), np.matmul(a, b))
        with np.errstate(over="ignore"):
            same(gemm.gemm(a, b, c, alpha=3, beta=2, backend=backend), 3 * np.matmul(a, b) + 2 * c)
    big = np.array([[2**62 + 1]])
    same(gemm.gemm(big, np.array([[1]]), big, alpha=1, beta=1, backend=backend), 2 * big)


@backends
def test_asked_dtype(backend):
    a, b = whole(3, 4, dtype="float32", seed=5), whole(4, 2, dtype="float32", seed=6)
    same(gemm.gemm(a, b, dtype="float64", backend=backend), (a @ b).astype("float64"))
    same(gemm.gemm(a.astype("float64"), b, dtype=np.float32, backend=backend), a @ b)
    same(gemm.gemm(a.astype("int8"), b.astype("int8"), dtype="int32", backend=backend), (a @ b).astype("int32"))
    with pytest.raises(TypeError, match="dtype"):
        gemm.gemm(a, b, dtype="int32", backend=backend)


# What operands may be.


@backends
@pytest.mark.parametrize("dtype", FLOATS)
def test_fields_of_records(backend, dtype):
    """Strides that are no multiple of the element, and elements that are not aligned."""
    packed = np.dtype([("tag", "u1"), ("value", dtype)])
    a, b, c, out = (np.zeros(shape, packed) for shape in ((5, 4), (4, 6), (5, 6), (5, 6)))
    for seed, x in enumerate((a, b, c)):
        x["value"] = whole(*x.shape, seed=seed)
        x["tag"] = 7
    expected = 2 * (a["value"] @ b["value"]) - c["value"]
    result = gemm.gemm(a["value"], b["value"], c["value"], alpha=2.0, beta=-1.0, out=out["value"], backend=backend)
    same(result, expected)
    same(out["value"], expected)
    assert (out["tag"] == 0).all()
    assert (c["tag"] == 7).all()
    aligned = np.zeros((5, 6), np.dtype([("value", dtype), ("tag", "u1")], align=True))
    gemm.gemm(a["value"], b["value"], out=aligned["value"], backend=backend)
    same(aligned["value"], a["value"] @ b["value"])


@backends
def test_operands_of_other_kinds(backend):
    a, b = whole(3, 4, seed=7), whole(4, 2, seed=8)
    expected = a @ b

    class Lazy:
        def __array__(self, dtype=None, copy=None):
            return a if dtype is None else a.astype(dtype)

    frozen = a.copy()
    frozen.flags.writeable = False
    swapped = a.astype(a.dtype.newbyteorder())
    for x in (a.tolist(), tuple(map(tuple, a.tolist())), Lazy(), memoryview(a), frozen, swapped, np.asfortranarray(a)):
        same(gemm.gemm(x, b, backend=backend), expected)
    same(gemm.gemm([1.0, 2.0], array.array("d", [3.0, 4.0]), backend=backend), np.matmul([1.0, 2.0], [3.0, 4.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        same(np.asarray(gemm.gemm(np.asmatrix(a), b, backend=backend)), expected)
    same(gemm.gemm([[1, 2]], [[3], [4]], backend=backend), np.array([[11]]))
    with pytest.raises(TypeError, match=r"\ba\b.*mask"):
        gemm.gemm(np.ma.array(a, mask=a > 0), b, backend=backend)


@backends
def test_swapped_and_cast_out(backend):
    a, b = whole(3, 4, dtype="float32", seed=9), whole(4, 2, dtype="float32", seed=10)
    for dtype in (">f4", "float64", "float16", "complex64"):
        out = np.full((3, 2), 9, dtype)
        assert gemm.gemm(a, b, out=out, backend=backend) is out
        np.testing.assert_array_equal(out, a @ b)
    out = np.zeros((3, 2), "float64")
    same(gemm.gemm(a, b, np.ones(2, "float32"), beta=1.0, out=out, backend=backend), (a @ b + 1.0).astype("float64"))


@backends
def test_result_is_memory_of_its_own(backend):
    c = whole(3, 2, seed=11)
    for k in (0, 4):
        a, b = np.ones((3, k)), np.ones((k, 2))
        for alpha, beta in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.0)):
            before = c.copy()
            result = gemm.gemm(a, b, c, alpha=alpha, beta=beta, backend=backend)
            assert not np.shares_memory(result, c)
            result[...] = 99
            same(c, before)


@backends
def test_no_floating_point_warnings(backend):
    top = np.finfo("float32").max
    a = np.array([[top, np.nan, np.inf, 1e-45, 0.0]] * 5, "float32")
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for dtype in ("float32", "float64", "float16"):
            with np.errstate(all="ignore"):
                x = a.astype(dtype)
            gemm.gemm(x, x, backend=backend)
            gemm.gemm(x, x, x, alpha=1e30 if dtype != "float16" else 1e4, beta=-1.0, backend=backend)
            gemm.gemm(x, x, x, alpha=0, beta=3.0, backend=backend)


# Scalars.


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), True + 1, np.longdouble(2)])
def test_kinds_of_scalars(value):
    a = whole(3, 3, dtype="float32", seed=12)
    result = gemm.gemm(a, a, a, alpha=value, beta=value)
    same(result, 2 * (a @ a) + 2 * a)


def test_scalars_are_rounded_to_the_dtype():
    a = np.full((1, 1), 2.0**24, "float32")
    assert gemm.gemm(a, np.ones_like(a), alpha=0.1)[0, 0] == np.float32(0.1) * a[0, 0]
    c = np.full((1, 1), 3, "float32")
    assert gemm.gemm(a, a, c, alpha=0, beta=1 / 3)[0, 0] == np.float32(1 / 3) * c[0, 0]


# Mistakes.

A, B, C = np.ones((3, 4)), np.ones((4, 2)), np.ones((3, 2))
FROZEN = np.ones((3, 2))
FROZEN.flags.writeable = False
REPEATED = np.lib.stride_tricks.as_strided(np.ones(2), (3, 2), (0, 8))
NOT_ORDERED = {"backend": "auto", "kernel": "gemm_numpy_reference", "reproducible": True}
MISTAKES = {
    "a is a scalar": ((1.0, B), {}, ValueError, r"\ba\b"),
    "b is a scalar": ((A, np.array(2.0)), {}, ValueError, r"\bb\b"),
    "inner sizes": ((A, np.ones((3, 2))), {}, ValueError, r"4.*3"),
    "inner sizes of vectors": ((np.ones(4), np.ones(3)), {}, ValueError, r"4.*3"),
    "inner sizes after transposing": ((A, B), {"trans_a": True}, ValueError, r"3.*4"),
    "batches": ((np.ones((2, 3, 4)), np.ones((3, 4, 2))), {}, ValueError, "batch|broadcast"),
    "c does not broadcast": ((A, B, np.ones((3, 3))), {"beta": 1.0}, ValueError, r"\bc\b.*\(3, 3\)"),
    "c has more axes": ((A, B, np.ones((2, 3, 2))), {"beta": 1.0}, ValueError, r"\bc\b"),
    "no c": ((A, B), {"beta": 1.0}, ValueError, r"\bc\b"),
    "no c, out given": ((A, B), {"beta": 1.0, "out": np.ones((3, 2))}, ValueError, r"\bc\b"),
    "no c, beta is NaN": ((A, B), {"beta": float("nan")}, ValueError, r"\bc\b"),
    "out of another shape": ((A, B), {"out": np.ones((2, 3))}, ValueError, r"out.*\(2, 3\)"),
    "out would have to broadcast": ((A, B), {"out": np.ones((1, 3, 2))}, ValueError, "out"),
    "out is read-only": ((A, B), {"out": FROZEN}, ValueError, "out.*read-only"),
    "out repeats elements": ((A, B), {"out": REPEATED}, ValueError, "out"),
    "out is a list": ((A, B), {"out": [[0.0] * 2] * 3}, TypeError, "out"),
    "out of integers": ((A, B), {"out": np.ones((3, 2), int)}, TypeError, "out.*int"),
    "out real, result complex": ((A * 1j, B), {"out": np.ones((3, 2))}, TypeError, "out"),
    "complex alpha": ((A, B), {"alpha": 1j}, TypeError, "alpha"),
    "complex beta": ((A, B, C), {"beta": 1 + 0j}, TypeError, "beta"),
    "alpha is a string": ((A, B), {"alpha": "2"}, TypeError, "alpha"),
    "alpha is None": ((A, B), {"alpha": None}, TypeError, "alpha"),
    "alpha is a vector": ((A, B), {"alpha": np.ones(3)}, TypeError, "alpha"),
    "alpha halves integers": ((A.astype(int), B.astype(int)), {"alpha": 0.5}, TypeError, "alpha"),
    "trans": ((A, B), {"trans_a": "X"}, ValueError, "trans_a.*X"),
    "trans is a number": ((A, B), {"trans_b": 1.5}, TypeError, "trans_b"),
    "backend": ((A, B), {"backend": "gpu"}, ValueError, "backend 'gpu' is not known: did you mean cuda or opencl"),
    "backend, misspelt": ((A, B), {"backend": "openccl"}, ValueError, r"openccl' is not known: did you mean opencl\?$"),
    "backend in capitals": ((A, B), {"backend": "CUDA"}, ValueError, r"did you mean cuda\?$"),
    "backend like none": ((A, B), {"backend": "moon"}, ValueError, "use auto, cpu, .* or a device such as 'opencl:0'"),
    "backend is None": ((A, B), {"backend": None}, ValueError, "backend"),
    "kernel": ((A, B), {"kernel": "sgemm"}, ValueError, "kernel.*mean.*sgemm_"),
    "kernel of another dtype": ((A, B), {"kernel": "sgemm_scalar_4x4"}, TypeError, "multiplies float32, not float64"),
    "kernel of another backend": ((A, B), {"kernel": "dgemm_scalar_4x4", "backend": "opencl"}, ValueError,
                                  "does not belong"),
    "precision": ((A, B), {"precision": "low"}, ValueError, "precision.*highest.*low"),
    "reproducible is a string": ((A, B), {"reproducible": "no"}, TypeError, "reproducible must be a bool, not str"),
    "reproducible is None": ((A, B), {"reproducible": None}, TypeError, "reproducible must be a bool, not NoneType"),
    "not reproducible": ((A, B), NOT_ORDERED, ValueError, "reproducible"),
    "NumPy is not reproducible": ((A, B), {"backend": "numpy", "reproducible": True}, ValueError, "reproducible"),
    "objects": ((A.astype(object), B), {}, TypeError, r"\ba\b.*object"),
    "strings": ((A, np.array([["x"] * 2] * 4)), {}, TypeError, r"\bb\b"),
    "dates": ((A, np.zeros((4, 2), "M8[s]")), {}, TypeError, r"\bb\b"),
    "ragged list": (([[1, 2], [3]], B), {}, (TypeError, ValueError), r"\ba\b"),
    "nothing": ((None, B), {}, TypeError, "a is None"),
    "nothing as b": ((A, None), {}, TypeError, "b is None"),
    "the shape before transposing": ((A, B), {"trans_a": True}, ValueError,
                                     r"a has shape \(3, 4\), trans_a=True.*op\(a\) \(3\)"),
    "the shape of a vector": ((A[0], np.ones(3)), {}, ValueError, r"a has shape \(4,\) and b has shape \(3,\):"),
    "the whole shape of batches": ((np.ones((2, 3, 4)), np.ones((3, 4, 2))), {}, ValueError,
                                   r"a has shape \(2, 3, 4\) and b has shape \(3, 4, 2\)"),
    "dtype of no type": ((A, B), {"dtype": "float23"}, TypeError, "dtype='float23' is not a dtype"),
    "dtype of no number": ((A, B), {"dtype": "U3"}, TypeError, "dtype"),
}  # fmt: skip


@backends
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_name_the_argument(backend, name):
    operands, options, kind, pattern = MISTAKES[name]
    out = options.get("out")
    before = np.array(out, copy=True) if isinstance(out, np.ndarray) else None
    with pytest.raises(kind, match=f"(?s){pattern}"):
        gemm.gemm(*operands, **{"backend": backend, **options})
    if before is not None:
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("shapes", [((0, 4), (4, 2)), ((3, 0), (0, 2)), ((2, 0, 3), (3, 4))])
def test_mistakes_count_on_empty_products_too(shapes):
    a, b = map(np.ones, shapes)
    wrong = {"backend": "gpu", "kernel": "none", "precision": "low", "beta": 1.0, "out": np.ones((7, 7))}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name.replace("beta", "c")):
            gemm.gemm(a, b, **{name: value})


def test_mistakes_of_the_other_functions_name_their_arguments():
    for call, kind, pattern in (
        (
            lambda: gemm.vecdot(np.ones((2, 3)), np.ones((2, 4))),
            ValueError,
            "x1 has length 3 along axis -1, x2 4",
        ),
        (lambda: gemm.vecdot(None, A), TypeError, "x1 is None"),
        (lambda: gemm.tensordot(A, None), TypeError, "b is None"),
        (lambda: gemm.einsum("ij,jk", A, None), TypeError, "operand 1 is None"),
        (lambda: gemm.gemm_many([A, None], [B, B]), TypeError, "product 1: a is None"),
        (lambda: gemm.prepare(None), TypeError, "b is None"),
        (lambda: gemm.prepare(A[0]), ValueError, "b must be a matrix with 2 axes; its number of axes is 1"),
        (lambda: gemm.gemm_many([A] * 3, [B] * 4), ValueError, "the same number of operands, but a has 3, b has 4"),
        (lambda: gemm.gemm_many([A], [B], alhpa=2), TypeError, "option 'alhpa' is not known: did you mean alpha"),
        (
            lambda: gemm.einsum("ij,jk", A, A),
            ValueError,
            "'j' of operand 1 has length 3; in an earlier operand",
        ),
        (lambda: gemm.plan(A, B)(A, np.ones((4, 3))), ValueError, "products with n=2, not 3: make a new plan"),
        (lambda: gemm.gemm(A, B[:, 0], bias=np.ones(7)), ValueError, r"bias has shape \(7,\).*must be \(3,\)"),
    ):
        with pytest.raises(kind, match=pattern):
            call()


@pytest.mark.parametrize("wrong", ["no", 1, 0, None])
def test_reproducible_is_a_bool_for_each_function(wrong):
    """1 == True, and the plans of repeated products are found by equal options: True goes first."""
    for call in (
        lambda option: gemm.gemm(A, B, reproducible=option),
        lambda option: gemm.matmul(A, B, reproducible=option),
        lambda option: gemm.plan(A, B, reproducible=option),
        lambda option: gemm.explain(A, B, reproducible=option),
        lambda option: gemm.prepare(B, reproducible=option),
        lambda option: gemm.use(reproducible=option),
        lambda option: gemm.array(A, reproducible=option),
        lambda option: gemm.einsum("ij,jk", A, B, reproducible=option),
        lambda option: gemm.einsum("ij->i", A, reproducible=option),
        lambda option: gemm.tensordot(A, B, 1, reproducible=option),
        lambda option: gemm.vecdot(A, A, reproducible=option),
        lambda option: gemm.gemm_many([A], [B], reproducible=option),
    ):
        for right in (True, False, np.True_, np.False_, True):
            call(right)
        with pytest.raises(TypeError, match="reproducible must be a bool"):
            call(wrong)


def test_a_plan_prints_its_time_in_a_unit():
    assert re.search(r"about [\d.]+ (µs|ms|s): ", repr(gemm.plan(A, B)))


def test_positions_of_arguments():
    with pytest.raises(TypeError):
        gemm.gemm(A, B, C, 2.0)
    with pytest.raises(TypeError):
        gemm.matmul(x1=A, x2=B)


def test_types_that_are_equal_and_not_the_same_are_kept_apart():
    for dtype in (np.int64, np.longlong, np.int64):
        one = np.ones(2, dtype)
        assert type(gemm.matmul(one, one)) is dtype
        assert type(gemm.matmul(np.ones(2, np.int8), np.ones(2, np.int8), dtype=dtype)) is dtype
