"""Bias and activations: the same contract on every backend, fused or a pass over the result."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import gemm
from gemm.core.epilogue import erfc

BACKENDS = [name for name in ("cpu", "numpy", "cuda") if not gemm.backends()[name]]
REAL = ("float32", "float64", "float16", "bfloat16")
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh")


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def random(*shape, dtype, seed=0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 2).astype(dtype)


def applied(x, activation):
    """The activation in float64."""
    if activation == "relu":
        return np.where(x < 0, 0, x)
    if activation == "gelu":
        return 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2))
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def check(result, sums, bias, activation, terms, unit=2.0**-24):
    """`result` is activation(sums + bias), where sums are within (terms + 2)·unit of a size of some tens."""
    dtype = result.dtype
    exact = applied(sums + bias, activation)
    rounded = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name, 0.0)
    unit = 2.0**-53 if dtype == np.float64 else unit
    # No activation is steeper than 1.13.
    bound = (
        1.2 * (terms + 8) * unit * (np.abs(sums) + np.abs(bias) + 60)
        + rounded * np.abs(exact)
        + (2.0**-25 if rounded else 0)
    )
    assert (np.abs(result.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("shape", ["row", "matrix", "column", None])
def test_every_step_is_within_its_bound(backend, name, shape):
    dtype = dtype_of(name)
    a, b, c = random(2, 21, 30, dtype=dtype), random(30, 18, dtype=dtype), random(21, 18, dtype=dtype)
    bias = {"row": (18,), "matrix": (1, 18), "column": (21, 1), None: None}[shape]
    bias = None if bias is None else random(*bias, dtype=dtype, seed=1)
    wide = [x.astype(np.float64) for x in (a, b, c)]
    alpha, beta = (float(dtype.type(x)) for x in (0.7, -1.3))
    for activation in ACTIVATIONS[:: 1 if backend != "cuda" else 2]:
        result = gemm.gemm(a, b, c, alpha=0.7, beta=-1.3, bias=bias, activation=activation, backend=backend)
        assert result.dtype == dtype
        sums = alpha * (wide[0] @ wide[1]) + beta * wide[2]
        check(result, sums, np.zeros(()) if bias is None else bias.astype(np.float64), activation, 30)


@pytest.mark.parametrize("backend", BACKENDS)
def test_reproducible_bits_with_a_bias_are_those_of_each_step(backend):
    if backend == "numpy":
        pytest.skip("NumPy's sums are in no order")
    for name in ("float32", "float64"):
        a, b, c = random(21, 300, dtype=name), random(300, 18, dtype=name), random(21, 18, dtype=name)
        bias = random(18, dtype=name, seed=3)
        options = {"alpha": 0.7, "beta": -1.3, "reproducible": True, "backend": backend}
        plain = gemm.gemm(a, b, c, **options)
        assert np.array_equal(gemm.gemm(a, b, c, bias=bias, **options), plain + bias)
        assert np.array_equal(gemm.gemm(a, b, c, bias=bias, activation="relu", **options), np.maximum(plain + bias, 0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_results_are_rounded_once(backend, name):
    """A sum just above a tie, and a bias that makes up for the most of it: rounded before, the rest would be lost."""
    dtype = dtype_of(name)
    digits = 11 if name == "float16" else 8
    a = np.array([[1.0, 2.0**-digits]], dtype)  # 1 + 2^-digits lies in the middle of two numbers
    result = gemm.gemm(a, np.ones((2, 3), dtype), bias=np.full(3, -1, dtype), backend=backend)
    assert np.array_equal(result.astype(np.float64), np.full((1, 3), 2.0**-digits))


@pytest.mark.parametrize("backend", BACKENDS)
def test_integers_and_complex_numbers_take_a_bias_and_no_activation(backend):
    for name in ("int32", "int8", "complex64"):
        a, b = random(5, 7, dtype="float32").astype(name), random(7, 4, dtype="float32").astype(name)
        bias = np.arange(4).astype(name)
        assert np.array_equal(gemm.gemm(a, b, bias=bias, backend=backend), gemm.gemm(a, b, backend=backend) + bias)
        with pytest.raises(TypeError, match="activation='relu' is for real numbers"):
            gemm.gemm(a, b, activation="relu", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_in_place_and_vectors(backend):
    a, b, bias = random(6, 6, dtype="float32"), random(6, 6, dtype="float32"), random(6, dtype="float32")
    expected = np.maximum(gemm.gemm(a, b, backend=backend) + bias, 0)
    options = {"activation": "relu", "backend": backend}
    out = np.full((8, 12), np.nan, np.float32)[1:-1, ::2]
    assert gemm.gemm(a, b, bias=bias, out=out, **options) is out
    assert_allclose(out, expected, rtol=1e-5)
    x = a.copy()
    gemm.gemm(x, b, bias=bias, out=x, **options)  # over its operand
    assert_allclose(x, expected, rtol=1e-5)
    y = np.stack([bias] * 6)
    gemm.gemm(a, b, bias=y[2], out=y, **options)  # over its bias
    assert_allclose(y, expected, rtol=1e-5)
    assert_allclose(gemm.gemm(a[0], b, bias=bias, **options), expected[0], rtol=1e-5)
    column = np.maximum(gemm.gemm(a, b[:, 0], backend=backend) + bias, 0)
    assert_allclose(gemm.gemm(a, b[:, 0], bias=bias, **options), column, rtol=1e-5)
    nothing = gemm.gemm(np.ones((3, 0), np.float32), np.ones((0, 6), np.float32), bias=bias, backend=backend)
    assert np.array_equal(nothing, np.stack([bias] * 3))


def test_special_numbers():
    a = np.array([[np.nan], [np.inf], [-np.inf], [-0.0], [-1e4]], np.float32)
    b = np.ones((1, 1), np.float32)
    relu, gelu, tanh = (gemm.gemm(a, b, activation=name, backend="cpu")[:, 0] for name in ACTIVATIONS[1:])
    assert np.isnan(relu[0])
    assert relu[1:].tolist() == [np.inf, 0, 0, 0]
    for result in (gelu, tanh):
        assert np.isnan(result[[0, 2]]).all()  # -inf · 0
        assert result[1] == np.inf
        assert (result[3:] == 0).all()


def test_plans_prepared_operands_and_repetitions():
    a, b, bias = random(9, 40, dtype="float32"), random(40, 7, dtype="float32"), random(7, dtype="float32")
    plain, expected = gemm.gemm(a, b), np.maximum(gemm.gemm(a, b) + bias, 0)
    for _ in range(3):  # the second and third ones might be answered from memory
        assert np.array_equal(gemm.gemm(a, b, bias=bias, activation="relu"), expected)
        assert np.array_equal(gemm.gemm(a, b, activation="relu"), np.maximum(plain, 0))
        assert np.array_equal(gemm.gemm(a, b), plain)
    plan, prepared = gemm.plan(a, b, bias=bias, activation="relu"), gemm.prepare(b)
    for _ in range(2):
        assert np.array_equal(plan(a, b, bias=bias), expected)
        assert_allclose(gemm.gemm(a, prepared, bias=bias, activation="relu"), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="make a new plan"):
        plan(a, b)
    half = gemm.prepare(b.astype(np.float16))
    with pytest.raises(TypeError, match="prepared b"):
        gemm.gemm(a.astype(np.float16), half, bias=bias.astype(np.float16))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"activation": "tanh"}, ValueError, "activation must be None or one of relu, gelu, gelu_tanh, not 'tanh'"),
        ({"activation": "gelu", "reproducible": True}, ValueError, "activation='gelu' does not have the same bits"),
        ({"bias": np.ones(3)}, ValueError, r"bias has shape \(3,\); for 2 × 4 results it must be \(4,\)"),
        ({"bias": np.ones((2, 4))}, ValueError, "bias has shape"),
        ({"bias": np.ones(())}, ValueError, "bias has shape"),
        ({"bias": np.ones(4, complex)}, TypeError, "bias has dtype complex128"),
        ({"bias": ["x"] * 4}, TypeError, "bias has dtype"),
        ({"bias": np.ones(4), "kernel": "hgemm_scalar_4x4", "dtype": "float16"}, TypeError, "which a bias"),
    ],
)
def test_mistakes_name_the_argument(options, error, words):
    with pytest.raises(error, match=words):
        gemm.gemm(np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), **options)


def test_erfc():
    x = np.concatenate([np.linspace(-7, 26, 20001), [np.inf, -np.inf, 0, -0.0, 1e300, -1e300]])
    expected = np.vectorize(math.erfc)(x)
    assert (np.abs(erfc(x) - expected) <= 2e-15 * expected).all()
    assert np.isnan(erfc(np.array([np.nan]))).all()
