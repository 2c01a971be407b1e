"""Products of NumPy arrays on the emulated GPU (tests/cuda_machine): the whole way, with streams that run late."""

import numpy as np
import pytest
from helpers import at_once, emulate, forget_drivers, python, rand
from oracle import check_same_bits, ordered

from gemm.backends.cuda import panels, pinned, staging, transfer
from gemm.backends.cuda.backend import CudaBackend
from gemm.catalog import BY_NAME
from gemm.core.errors import KernelFailed
from gemm.core.problem import Problem


@pytest.fixture
def device(monkeypatch):
    """The emulated GPU, where products of 70 rows already go in panels."""
    emulate(monkeypatch, streams="late", memory=64)
    for module, name, small in (
        (transfer, "SLOT", 1 << 12), (pinned, "SLOT", 1 << 13), (staging, "SMALL", 1 << 13),
        (panels, "_NARROWEST", 32), (panels, "_GRAIN", 32), (panels, "LINK", 1e4),
        (panels, "_GROUP", 1 << 13), (staging, "LINE", 128),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, small)
    forget()
    yield CudaBackend().devices()[0]
    forget()


def forget():
    forget_drivers(pinned.channels, panels.panels)


def run(device, a, b, c, out, *scale):
    row = BY_NAME["sgemm_cuda_tile"]
    problem = Problem("float32", *out.shape[-2:], a.shape[-1])
    CudaBackend().launcher(row, device, problem)(a, b, c, out, *scale)


@pytest.mark.parametrize(
    ("batch", "m", "n", "k"), [((), 5, 7, 3), ((), 96, 128, 40), ((9,), 20, 33, 17), ((2, 3), 40, 5, 60)]
)
def test_bits_are_those_of_the_chain(device, batch, m, n, k):
    a, b, c = rand(*batch, m, k), rand(*batch, k, n), rand(*batch, m, n)
    for x in (a, a[..., ::-1], np.asfortranarray(a)):
        out = np.full_like(c, np.nan)
        run(device, x, b, None, out, 1.0, 0.0)
        check_same_bits(out, ordered(x, b))
    out = c.copy()
    run(device, a, b, out, out, 1.5, -0.5)
    check_same_bits(out, ordered(a, b, c, 1.5, -0.5))


def test_what_does_not_fit_runs_in_blocks(device, monkeypatch):
    """64 MiB of device memory, and 71 MB of operands."""
    monkeypatch.setattr(transfer, "SLOT", 1 << 22)
    monkeypatch.setattr(pinned, "SLOT", 1 << 22)
    a, b = rand(9, 900_000), rand(900_000, 9)
    out = np.empty((9, 9), np.float32)
    run(device, a, b, None, out, 1.0, 0.0)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=2.0)


def test_large_arrays_go_by_rings_both_ways(device):
    array = rand(600, 700)
    there = CudaBackend().to_device(array, device)
    np.testing.assert_array_equal(there.owner.copy_to_host(), array)
    np.testing.assert_array_equal(CudaBackend().to_host(there.mT), array.T)


def test_threads_multiply_side_by_side(device):
    def work(seed):
        a, b = rand(64 + seed, 50), rand(50, 70)
        for _ in range(2):
            out = np.empty((64 + seed, 70), np.float32)
            run(device, a, b, None, out, 1.0, 0.0)
            check_same_bits(out, ordered(a, b))

    at_once(work, range(6))


@pytest.mark.parametrize("fault", ["cuLaunchKernel:1:719", "cuMemcpyHtoDAsync_v2:2:999", "cuMemAllocFromPoolAsync:1:2",
                                   "cuMemHostAlloc:1:2", "cuStreamCreate:2:2"])  # fmt: skip
@pytest.mark.parametrize("size", [4, 96])
def test_faults_leave_the_operands(device, monkeypatch, fault, size):
    a, b, c = rand(size, 40), rand(40, 64), rand(size, 64)
    before = a.copy(), b.copy(), c.copy()
    out, warm = c.copy(), np.empty_like(c)
    if "HostAlloc" not in fault and "StreamCreate" not in fault:
        run(device, a, b, None, warm, 1.0, 0.0)  # kernels are loaded, channels are there
    monkeypatch.setenv("CUDA_MACHINE_FAIL", fault)
    failure = None
    try:
        run(device, a, b, out, out, 1.0, 1.0)
    except KernelFailed as error:
        failure = error
    assert failure is None or not failure.spoilt
    check_same_bits(out, ordered(a, b, c, 1.0, 1.0) if failure is None else before[2])
    for x, y in zip((a, b, c), before, strict=True):
        np.testing.assert_array_equal(x, y)
    monkeypatch.delenv("CUDA_MACHINE_FAIL")
    out = c.copy()
    run(device, a, b, out, out, 1.0, 1.0)
    check_same_bits(out, ordered(a, b, c, 1.0, 1.0))


FORKED = """
import os, sys, numpy as np, gemm
a = np.ones((40, 50), np.float32)
gemm.gemm(a, a.T, kernel="sgemm_cuda_tile")
child = os.fork()
if child == 0:
    try:
        gemm.gemm(a, a.T, kernel="sgemm_cuda_tile")
    except gemm.BackendUnavailable as error:
        result = gemm.gemm(a, a.T, backend="cpu")
        os._exit(0 if (result == 50).all() else 2)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_does_without(device):
    python(FORKED)


def test_results_of_the_public_face(device):
    """Each option that staging passes on: types, a bias, conjugates, one vector."""
    code = """
import numpy as np, gemm
def on_gpu(letter, *operands, **options):
    return gemm.gemm(*operands, kernel=f"{letter}gemm_cuda_tile", **options)
rng = np.random.default_rng(0)
a, b = rng.integers(-9, 9, (33, 20)), rng.integers(-9, 9, (20, 17))
for kind, letter in (("float32", "s"), ("float64", "d"), ("float16", "h"), ("complex64", "c"), ("int8", "i8"),
                     ("int16", "i16"), ("int32", "i32"), ("int64", "i64")):
    x, y = a.astype(kind), b.astype(kind)
    np.testing.assert_array_equal(on_gpu(letter, x, y), x @ y)
x, y = a.astype("float32"), b.astype("float32")
bias = np.arange(17, dtype="float32")
np.testing.assert_array_equal(on_gpu("s", x, y, bias=bias, activation="relu"), np.maximum(x @ y + bias, 0))
z = (x + 1j * x[::-1]).astype("complex64")
np.testing.assert_array_equal(on_gpu("c", z, z, trans_b="C"), z @ z.conj().T)
np.testing.assert_array_equal(on_gpu("s", x, y[:, 0]), x @ y[:, 0])
"""
    python(code)
