"""gemm.prepare: products by a packed b have the bits of the same products by b itself, whatever else is asked."""

import copy
import pickle

import numpy as np
import pytest
from helpers import python, rand

import gemm
from gemm.extras import prepack as module


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 2, 5, 16, 64, 200])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 5), (64, 100), (1000, 333), (385, 17), (769, 2049)])
def test_the_bits_are_those_of_the_plain_product(m, k, n, dtype):
    a, b, c = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype), rand(m, n, dtype=dtype)
    prepared = gemm.prepare(b, backend="cpu")
    for _ in range(2):  # the second one is repeated without checks
        plain = gemm.gemm(a, b, c, alpha=0.5, beta=-2, reproducible=True, backend="cpu")
        assert np.array_equal(gemm.gemm(a, prepared, c, alpha=0.5, beta=-2), plain)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_any_number_of_threads(count):
    a, b = rand(300, 900), rand(900, 700)
    prepared = gemm.prepare(b)
    expected = gemm.gemm(a, b, backend="cpu")
    try:
        gemm.set_num_threads(count)
        assert np.array_equal(gemm.gemm(a, prepared), expected)
    finally:
        gemm.set_num_threads(None)


def test_strides_transposes_stacks_and_outputs():
    a, b = rand(4, 9, 40), rand(50, 80)[:, ::2]
    prepared = gemm.prepare(b, trans_b=True)
    assert prepared.shape == (40, 50)
    expected = gemm.gemm(a, b, trans_b=True, reproducible=True, backend="cpu")
    assert np.array_equal(gemm.matmul(a, prepared), expected)
    assert np.array_equal(gemm.gemm(a.mT if hasattr(a, "mT") else a.swapaxes(1, 2), prepared, trans_a="T"), expected)
    assert np.array_equal(gemm.gemm(a[1, 3], prepared), expected[1, 3])
    for out in (np.empty((4, 50, 9), np.float32).swapaxes(1, 2), np.empty((4, 9, 100), np.float32)[..., ::2]):
        assert gemm.gemm(a, prepared, out=out) is out
        assert np.array_equal(out, expected)


def test_it_is_a_copy_and_alpha_zero_reads_nothing():
    a, b = rand(3, 8), rand(8, 6)
    prepared, expected = gemm.prepare(b), gemm.gemm(a, b, backend="cpu")
    b[:] = np.nan
    assert np.array_equal(gemm.gemm(a, prepared), expected)
    assert np.array_equal(gemm.gemm(a, prepared, expected, alpha=0, beta=2), expected * 2)
    assert gemm.gemm(np.empty((0, 8), np.float32), prepared).shape == (0, 6)


@pytest.mark.parametrize(
    ("left", "product"), [("float64", "float64"), ("int64", "float64"), ("complex64", "complex64")]
)
def test_no_product_is_less_precise_than_that_of_the_matrix(left, product):
    """1 + 2**-40 times 1 in float32 would be 1. The type of the product is that of a and b, unless the user asks."""
    a, b = np.full((2, 2), 1 + 2**-40).astype(left), np.ones((2, 3), np.float32)
    prepared = gemm.prepare(b)
    words = rf"for float32, but the product is of {product}: pass dtype='{product}' to prepare, or dtype='float32'"
    for _ in range(2):  # the second call is not from the plan cache either
        with pytest.raises(TypeError, match=words):
            gemm.gemm(a, prepared)
    if left != "complex64":
        assert gemm.gemm(a, prepared, dtype="float32").dtype == np.float32
        np.testing.assert_array_equal(gemm.gemm(a, gemm.prepare(b, dtype=product)), a @ b, strict=True)
    with pytest.raises(TypeError, match=words):
        gemm.gemm(a, prepared)
    for narrow in ("float16", "int16", "uint8", "bool"):
        assert gemm.gemm(np.ones((2, 2), narrow), prepared).dtype == np.float32


def test_other_dtypes_of_a_are_converted_as_asked():
    a, b = np.arange(24).reshape(3, 8), rand(8, 6, dtype="float64")
    assert np.array_equal(gemm.gemm(a, gemm.prepare(b)), gemm.gemm(a.astype(float), b, backend="cpu"))
    single = gemm.gemm(a.astype("float32"), gemm.prepare(b, dtype="float32"))
    assert single.dtype == np.float32


def test_errors_name_the_argument():
    prepared = gemm.prepare(rand(8, 6))
    with pytest.raises(ValueError, match="columns of a"):
        gemm.gemm(rand(3, 7), prepared)
    with pytest.raises(ValueError, match="trans_b"):
        gemm.gemm(rand(3, 8), prepared, trans_b=True)
    with pytest.raises(TypeError, match="float64"):
        gemm.gemm(rand(3, 8, dtype="float64"), prepared, dtype="float64")
    with pytest.raises(ValueError, match="prepared for"):
        gemm.gemm(rand(3, 8), prepared, backend="numpy")
    with pytest.raises(ValueError, match="out"):
        gemm.gemm(rand(3, 8), prepared, out=np.empty((3, 7), np.float32))
    with pytest.raises(ValueError, match="axes"):
        gemm.prepare(rand(2, 8, 6))
    with pytest.raises(ValueError, match="no elements"):
        gemm.prepare(rand(0, 6))
    with pytest.raises(TypeError, match="prepared"):
        gemm.plan(rand(3, 8), prepared)
    with pytest.raises(TypeError, match="is not an array"):
        np.asarray(prepared)


@pytest.mark.parametrize("first", [False, True])
def test_reproducible_of_each_or_of_all(first):
    a, b = rand(5, 300), rand(300, 40)
    prepared = gemm.prepare(b, reproducible=first)
    expected = gemm.gemm(a, b, reproducible=True)
    for asked in (True, not first):
        for _ in range(2):  # the second one is repeated without checks
            assert np.array_equal(gemm.gemm(a, prepared, reproducible=asked), expected)


def test_reproducible_is_refused_where_no_kernel_offers_it():
    prepared = gemm.prepare(rand(8, 6).astype("complex64"))
    with pytest.raises(ValueError, match="reproducible"):
        gemm.gemm(rand(3, 8).astype("complex64"), prepared, reproducible=True)


def test_strides_of_parts_of_elements():
    """Which the engine does not take: a copy is multiplied by what is packed."""
    a, b = rand(3, 40), rand(40, 9)
    record = np.zeros((3, 40), [("gap", "u1"), ("x", "f4")])
    record["x"] = a
    assert record["x"].strides[1] % 4
    out = np.zeros((3, 9), [("gap", "u1"), ("x", "f4")])["x"]
    assert gemm.gemm(record["x"], gemm.prepare(b), out=out) is out
    assert np.array_equal(out, gemm.gemm(a, b, reproducible=True))


def test_narrow_integers_are_summed_in_the_type_asked_for():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (20, 300), np.int8), rng.integers(-128, 128, (300, 40), np.int8)
    expected = a.astype(np.int64) @ b
    prepared = gemm.prepare(b, dtype="int32")
    assert prepared.dtype == np.int32
    for left in (a, a.astype(np.int32)):
        assert np.array_equal(gemm.gemm(left, prepared), expected)


KINDS = ["float32", "float64", "float16", "complex64", "int8", "int64"]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("uses", [0, 1, 3])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_multiply_as_the_original(copied, uses, dtype):
    a, b = ((4 * rand(*shape)).astype(dtype) for shape in ((5, 40), (40, 70)))
    if b.dtype.kind in "fc":
        b[3, 5], b[4, 6], b[0, 0] = np.inf, np.nan, -0.0
    original = gemm.prepare(b)
    expected = [gemm.gemm(a, original) for _ in range(uses)]
    other = copied(original)
    b[:] = 0
    del b
    for _ in range(3):
        found = gemm.gemm(a, other)
        assert found.tobytes() == gemm.gemm(a, original).tobytes()
        assert all(found.tobytes() == x.tobytes() for x in expected)
    assert (other.shape, other.dtype, other.kernel, other.nbytes) == (
        original.shape, original.dtype, original.kernel, original.nbytes)  # fmt: skip


def test_a_pickle_is_read_by_another_process(tmp_path):
    """Whose memory is its own: nothing of a pickle is an address."""
    a, b = rand(6, 300), rand(300, 50)
    prepared = gemm.prepare(b, reproducible=True)
    expected = gemm.gemm(a, prepared, reproducible=True)
    (tmp_path / "pickle").write_bytes(pickle.dumps((a, prepared, expected)))
    code = """
        import pickle, sys
        import gemm
        a, prepared, expected = pickle.load(open(sys.argv[1], "rb"))
        for _ in range(3):
            assert (gemm.gemm(a, prepared, reproducible=True) == expected).all()
    """
    python(code, tmp_path / "pickle")


def test_a_pickle_that_cannot_be_read_here_says_why(monkeypatch):
    packed = pickle.dumps(gemm.prepare(rand(8, 6)))
    with monkeypatch.context() as patch:
        patch.setattr(module, "VERSION", "99.0")
        with pytest.raises(gemm.BackendUnavailable, match=r"prepared by gemm .* this is gemm 99\.0.*prepare that here"):
            pickle.loads(packed)
    with monkeypatch.context() as patch:
        patch.setattr(module, "BY_NAME", {})
        with pytest.raises(gemm.BackendUnavailable, match="a kernel that is not known here"):
            pickle.loads(packed)
    monkeypatch.setattr(module.candidates, "unavailable", lambda *_: "needs avx2049")
    with pytest.raises(gemm.BackendUnavailable, match="needs avx2049"):
        pickle.loads(packed)


def test_what_lies_on_a_device_is_not_pickled():
    prepared = gemm.prepare(rand(8, 6))
    prepared._repeated = None  # as where the memory is no array of the host
    with pytest.raises(TypeError, match=r"prepared matrix in the memory of cpu:0 cannot be pickled; pickle the matrix"):
        pickle.dumps(prepared)
    assert copy.deepcopy(prepared) is prepared
