"""Tiles that all blocks of a persistent grid share by k, on the emulated GPU of 6 multiprocessors."""

import numpy as np
import pytest

from gemm.backends.cuda.backend import CudaBackend
from gemm.catalog import BY_NAME, launch_arithmetic
from gemm.core.problem import Problem

ROWS = [name for name, row in BY_NAME.items() if row.params.get("shares")]


def product(gpu, name, a, b, c=None):
    """a·b + c on the row of that name, of which some tiles are shared."""
    row = BY_NAME[name]
    *batch, m, k = a.shape
    n, stack = b.shape[-1], int(np.prod(batch))
    assert launch_arithmetic.shared(row, launch_arithmetic.groups(row, m, n, stack), k, 6) == 6
    out = np.full((*batch, m, n), np.nan, np.float32)
    problem = Problem("float32", m, n, k, stack, beta="0" if c is None else "1")
    CudaBackend().launcher(row, gpu, problem)(a, b, c, out, 1.0, 0.0 if c is None else 1.0)
    return out


@pytest.mark.parametrize(("batch", "k"), [((), 2048), ((5,), 2047), ((), 1030)])
@pytest.mark.parametrize("name", ROWS)
def test_every_part_of_a_shared_tile_is_added_once(emulated_gpu, name, k, batch):
    random = np.random.default_rng(k)
    m, n = (130, 100) if batch else (300, 260)  # 2 tiles a product, or 9
    a, b, c = (random.integers(-8, 9, (*batch, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    np.testing.assert_array_equal(product(emulated_gpu, name, a, b), a @ b)
    np.testing.assert_array_equal(product(emulated_gpu, name, a, b, c), a @ b + c)


@pytest.mark.parametrize("name", ROWS)
def test_bits_do_not_depend_on_which_block_starts_first(emulated_gpu, name, monkeypatch):
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((300, 2000), (2000, 260)))
    results = []
    for seed in ("0", "1", "2"):  # of the order in which blocks run
        monkeypatch.setenv("CUDA_MACHINE_SEED", seed)
        results.append(product(emulated_gpu, name, a, b))
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))
