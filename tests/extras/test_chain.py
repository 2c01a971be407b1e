"""go_on of gemm.dask: the ORDERED chain in pieces along k has the bits of the whole one, by any kernel."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import rand
from oracle import check_same_bits, ordered

import gemm
from gemm.catalog import KERNELS
from gemm.select import probe
from gemm.select.candidates import unavailable

tasks = pytest.importorskip("gemm.dask.tasks", reason="dask is not installed (the extra `dask`)")
go_on, scale = tasks.go_on, tasks.scale


def targets():
    """Those of the CPU that can run here."""
    (device,) = probe.devices("cpu")
    rows = [row for row in KERNELS if row.backend == "cpu" and row.dtype == "float32" and not row.inputs]
    return sorted({row.target for row in rows if not unavailable(row, device)})


def pieced(a, b, cuts, target="cpu"):
    """a · b in pieces of k that end at `cuts`, the first of them by gemm.gemm."""
    ends = (*cuts, a.shape[-1])
    sums = gemm.gemm(a[..., : ends[0]], b[..., : ends[0], :], reproducible=True)
    for start, end in pairwise(ends):
        go_on(sums, a[..., start:end], b[..., start:end, :], backend=target)
    return sums


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape", [(1, 50, 1), (1, 900, 130), (130, 900, 1), (65, 700, 70), (7, 13, 5), (2, 3, 2), (200, 1500, 150)], ids=str
)
def test_pieces_have_the_bits_of_the_whole(shape, dtype):
    m, k, n = shape
    a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
    expected = ordered(a, b)
    for x in (a, np.asfortranarray(a)):
        for y in (b, np.asfortranarray(b)):
            for cuts in ((0,), (k // 2,), (k // 3, k // 3 + 1), (1, k - 1)):
                for target in targets():
                    check_same_bits(pieced(x, y, cuts, target), expected)


def test_stacks_and_threads():
    a, b = rand(5, 40, 300, dtype="float32"), rand(300, 400, dtype="float32")
    check_same_bits(pieced(a, b, (100, 200)), gemm.gemm(a, b, reproducible=True))
    a, b = rand(900, 800, dtype="float32"), rand(800, 700, dtype="float32")
    whole = gemm.gemm(a, b, reproducible=True)
    for count in (1, 2, 3):
        gemm.set_num_threads(count)
        try:
            check_same_bits(pieced(a, b, (333,)), whole)
        finally:
            gemm.set_num_threads(None)


def test_a_sum_that_underflowed_stays_negative():
    tiny = np.float32(2.0**-100)
    a, b = np.array([[tiny, 0]], np.float32), np.array([[-tiny], [1]], np.float32)
    check_same_bits(pieced(a, b, (1,)), ordered(a, b))


@pytest.mark.parametrize("alpha", [1, 0.3, -2])
@pytest.mark.parametrize("beta", [0, 1, -1.7])
@pytest.mark.parametrize("shape", [(20, 30), (2, 20, 30), (30,)])
def test_scaled_as_the_chain_ends(shape, alpha, beta):
    a, b = rand(*shape[:-1], 50, dtype="float32"), rand(50, 30, dtype="float32")
    c = rand(*shape, dtype="float32")
    sums = gemm.gemm(a, b, reproducible=True)
    before = sums.copy()
    found = scale(sums, c if beta else None, alpha, beta)
    check_same_bits(found, gemm.gemm(a, b, c, alpha=alpha, beta=beta, reproducible=True))
    check_same_bits(sums, before)


def test_mistakes():
    a = np.ones((3, 3), np.float32)
    for sums in (a.astype("float16"), a.T[:2], a.tolist(), np.asfortranarray(np.ones((3, 2), np.float32))):
        with pytest.raises(TypeError, match="sums must be a NumPy array of float32 or float64"):
            go_on(sums, a, a)
    with pytest.raises(ValueError, match="out has shape"):
        go_on(np.zeros((2, 3), np.float32), a, a)
    with pytest.raises(TypeError, match="Cannot cast"):
        go_on(a.copy(), a + 1j, a)
