"""Operands narrower than the result: halves with float32 results, fp8 with bfloat16 and wider ones."""

import itertools

import numpy as np
import pytest
from helpers import rand

import gemm
from gemm.core.backend import converted_once

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3, E5M2, BF16 = (np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16"))
BACKENDS = [name for name in ("cpu", "numpy", "cuda") if not gemm.backends()[name]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "types", [*itertools.product((E4M3, E5M2), repeat=2)], ids=lambda pair: "-".join(map(str, pair))
)
def test_fp8_gives_bfloat16_or_what_is_asked_for(types, backend):
    a, b = rand(9, 40, dtype=types[0]), rand(40, 7, dtype=types[1])
    x, y = a.astype(np.float64), b.astype(np.float64)
    for asked, dtype, unit in ((None, BF16, 2.0**-8), ("bfloat16", BF16, 2.0**-8), ("float32", np.float32, 0.0)):
        result = gemm.gemm(a, b, dtype=asked, backend=backend)
        assert result.dtype == dtype
        bound = 42 * 2.0**-24 * (abs(x) @ abs(y)) * (1 + unit) + unit * abs(x @ y)
        assert (abs(result.astype(np.float64) - x @ y) <= bound).all()
    c = rand(9, 7, dtype=np.float32)
    assert gemm.gemm(a, b, c, beta=1, backend=backend).dtype == np.float32  # as bfloat16 and float32 have it


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_halves_with_a_float32_result_are_not_rounded(dtype, backend):
    a, b = rand(9, 40, dtype=dtype), rand(40, 7, dtype=dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    result = gemm.gemm(a, b, dtype="float32", backend=backend)
    assert result.dtype == np.float32
    assert (abs(result - x @ y) <= 42 * 2.0**-24 * (abs(x) @ abs(y))).all()


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_the_ordered_bits_are_those_of_the_widened_operands(name):
    for dtype, result in ((E4M3, "float32"), (E5M2, "bfloat16"), (np.float16, "float32"), (BF16, "float32")):
        a, b = rand(9, 40, dtype=dtype), rand(40, 7, dtype=dtype)
        wide = BF16 if result == "bfloat16" else np.float32
        options = {"reproducible": True, "dtype": result, "backend": name}
        expected = gemm.gemm(a.astype(wide), b.astype(wide), **options)
        assert gemm.gemm(a, b, **options).tobytes() == expected.tobytes()


def test_what_is_repeated_is_converted_once():
    b = np.broadcast_to(rand(8, 8, dtype=np.float16), (1 << 20, 8, 8))  # 256 MB in float32
    x = converted_once(b, "float32")
    assert x.strides == (0, 32, 4)
    assert np.array_equal(x[7], b[0].astype(np.float32))
    assert converted_once(b[:, :0], "float32").shape == (1 << 20, 0, 8)


def test_mistakes_are_told():
    a = rand(4, 4, dtype=E4M3)
    with pytest.raises(TypeError, match="not fp8"):
        gemm.gemm(a, a, dtype=E4M3)
    with pytest.raises(TypeError, match="no common type"):
        gemm.gemm(a, a.astype(np.float16))
    with pytest.raises(TypeError, match="which cannot be cast to dtype=int32"):
        gemm.gemm(a, a, dtype="int32")
    other = np.ones((4, 4), ml_dtypes.float8_e4m3b11fnuz)
    with pytest.raises(TypeError, match="must be boolean, integer, real or complex"):
        gemm.gemm(other, other)
