"""What holds at the edges: sums that overflow before alpha scales them, an out shifted over an operand of a GPU."""

import numpy as np
import pytest

import gemm
from gemm.backends import registry

ROWS = [status for status in gemm.kernels() if status.available and status.backend in ("cpu", "numpy")
        and status.dtype in ("float32", "float64") and not status.row.inputs]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda status: status.name)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_alpha_does_not_save_sums_that_overflow(row, beta):
    """The contract, 7: such an element is no number, or within the bound; all other elements are as ever."""
    big, alpha = (1e20, 1e-30) if row.dtype == "float32" else (1e160, 1e-300)
    m, n, k = 9, 21, 7
    a, b, c = np.ones((m, k), row.dtype), np.ones((k, n), row.dtype), np.ones((m, n), row.dtype)
    a[2], b[:, 5] = big, big
    for reproducible in sorted({False, row.row.ordered}):
        options = {"kernel": row.name, "reproducible": reproducible}
        with np.errstate(all="ignore"):
            found = gemm.gemm(a, b, c, alpha=alpha, beta=beta, **options)
        element = float(found[2, 5])
        exact = k * (big * alpha) * big + beta
        assert not np.isfinite(element) or (not reproducible and abs(element - exact) <= 1e-5 * exact)
        if reproducible:
            assert element == np.inf
        right = alpha * (a.astype(np.longdouble) @ b.astype(np.longdouble)) + beta
        right[2, 5] = found[2, 5] = 0
        np.testing.assert_allclose(found, right.astype(row.dtype), rtol=1e-5)


class Place:
    """A matrix in a part of the memory of a GPU's array."""

    def __init__(self, memory, start, shape, steps):
        self.memory, (address, _) = memory, memory.__cuda_array_interface__["data"]
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address + 4 * start, False),
            "strides": tuple(4 * step for step in steps), "version": 3,
        }  # fmt: skip


@pytest.mark.parametrize("which", ["a", "b", "c"])
@pytest.mark.parametrize("turned", [False, True])
def test_products_on_a_gpu_whose_out_is_shifted_over_an_operand(emulated_gpu, which, turned):
    rng = np.random.default_rng(4)
    backend = registry.backend("cuda")
    device = backend.devices()[0]
    n, start = 4, 40
    for shift in (-17, -16, -15, -1, 0, 1, 15, 16, 17):
        numbers = rng.standard_normal(96).astype(np.float32)
        memory = backend.to_device(numbers, device).owner
        apart = rng.standard_normal((3, n, n)).astype(np.float32)
        steps = (1, n) if turned else (n, 1)
        given = {name: backend.to_device(apart[i], device).owner for i, name in enumerate("abc")}
        host = dict(zip("abc", apart, strict=True))
        given[which] = Place(memory, start, (n, n), steps)
        host[which] = np.lib.stride_tricks.as_strided(numbers[start:], (n, n), [4 * step for step in steps])
        right = (host["a"].astype(float) @ host["b"] + 0.5 * host["c"]).astype(np.float32)
        expected = numbers.copy()
        expected[start + shift : start + shift + n * n] = right.ravel()
        out = Place(memory, start + shift, (n, n), (n, 1))
        assert gemm.gemm(given["a"], given["b"], given["c"], beta=0.5, out=out) is out
        np.testing.assert_allclose(memory.copy_to_host(), expected, rtol=1e-5, atol=1e-5)
