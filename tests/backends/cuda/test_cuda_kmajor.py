"""TF32, int8 and fp8 on the emulated GPU: wherever operands lie, bit for bit what the tensor cores' model says."""

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest
from cuda_machine.direct import source
from oracle import wrapped
from oracle.tensor_core import product, round_tf32

from gemm.backends.cuda.backend import CudaBackend
from gemm.catalog import BY_NAME
from gemm.core.problem import Problem

LAYOUTS = pytest.mark.parametrize(
    ("emulated_gpu", "layout"), [("late", "NN"), ("early", "NT"), ("late", "TN"), ("early", "TT")],
    indirect=["emulated_gpu"],
)  # fmt: skip
TF32 = ("sgemm_cuda_kmajor_tf32_64x64", "sgemm_cuda_kmajor_tf32_128x64")
FP8 = ("e4m3sgemm_cuda_kmajor_64x64", "e5m2e4m3sgemm_cuda_kmajor_128x64", "e4m3sgemm_cuda_kmajor_128x256")
INTEGERS = ("s8s32gemm_cuda_kmajor_64x64", "u8s32gemm_cuda_kmajor_128x64")


def matrix(random, shape, dtype, letter="N"):
    """Random numbers; "T": whose columns are contiguous."""
    own = np.dtype(dtype)
    if letter == "T":
        return matrix(random, (*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)
    if own.kind in "iu":
        info = np.iinfo(own)
        return random.integers(info.min, info.max, shape, own, endpoint=True)
    return random.standard_normal(shape).astype(own)


def run(gpu, name, a, b, c, alpha=1, beta=0, *, whole=False):
    """alpha·a·b + beta·c on the row of that name. `whole`: k is not cut into parts."""
    row = BY_NAME[name]
    shape = (*a.shape[:-1], b.shape[-1])
    out = np.zeros(shape, row.dtype)
    problem = Problem(
        row.dtype, *shape[-2:], a.shape[-1], precision=row.precision, inputs=row.inputs, reproducible=whole
    )
    CudaBackend().launcher(row, gpu, problem)(a, b, c, out, alpha, beta)
    return out


@LAYOUTS
@pytest.mark.parametrize("name", TF32 + FP8)
def test_bits_are_the_model_s(emulated_gpu, name, layout):
    row, random = BY_NAME[name], np.random.default_rng(1)
    types = row.inputs or (row.dtype, row.dtype)
    a, b = matrix(random, (140, 333), types[0], layout[0]), matrix(random, (333, 70), types[1], layout[1])
    out = run(emulated_gpu, name, a, b, None, whole=True)
    if row.inputs:  # instructions of zeros that end a stage cut the sum again
        more = -(-333 // 128) * 128 - 333
        x, y = np.pad(a.astype(np.float32), [(0, 0), (0, more)]), np.pad(b.astype(np.float32), [(0, more), (0, 0)])
        want = product(x, y, "fp8", promote=128)
    else:
        want = product(round_tf32(a), round_tf32(b), "tf32")
    np.testing.assert_array_equal(out, want)


@LAYOUTS
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact(emulated_gpu, name, layout):
    row, random = BY_NAME[name], np.random.default_rng(2)
    a = matrix(random, (2, 140, 333), row.inputs[0], layout[0])
    b = matrix(random, (2, 333, 70), row.inputs[1], layout[1])
    c = matrix(random, (2, 140, 70), "int32")
    np.testing.assert_array_equal(run(emulated_gpu, name, a, b, c, 3, -5), wrapped(a, b, c, 3, -5, np.int32))


@pytest.mark.parametrize("name", [*TF32[1:], *FP8[1:2], *INTEGERS])
def test_long_k_is_cut_into_parts(emulated_gpu, name):
    row, random = BY_NAME[name], np.random.default_rng(3)
    types = row.inputs or (row.dtype, row.dtype)
    a, b = matrix(random, (33, 4100), types[0]), matrix(random, (4100, 17), types[1], "T")
    out = run(emulated_gpu, name, a, b, None)
    if row.dtype == "int32":
        np.testing.assert_array_equal(out, wrapped(a, b, None, 1, 0, np.int32))
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        assert np.all(np.abs(out - x @ y) <= 2.0**-10 * (np.abs(x) @ np.abs(y)))


def test_narrow_results_are_rounded_once(emulated_gpu):
    random = np.random.default_rng(4)
    a, b = matrix(random, (70, 200), "float8_e4m3fn"), matrix(random, (200, 72), "float8_e4m3fn", "T")
    wide = run(emulated_gpu, "e4m3sgemm_cuda_kmajor_64x64", a, b, None)
    narrow = run(emulated_gpu, "e4m3bgemm_cuda_kmajor_64x64", a, b, None)
    np.testing.assert_array_equal(narrow.astype(np.float32), wide.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("name", ["e5m2e4m3sgemm_cuda_wgmma_64x64", "e4m3bgemm_cuda_wgmma_128x192"])
def test_fp8_at_its_best_becomes_float16(emulated_gpu, name):
    row, random = BY_NAME[name], np.random.default_rng(5)
    assert row.precision == "highest"
    a, b = matrix(random, (70, 200), row.inputs[0], "T"), matrix(random, (200, 72), row.inputs[1])
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact, bound = x @ y, (200 + 2) * 2.0**-24 * (np.abs(x) @ np.abs(y))
    if row.dtype == "bfloat16":
        bound = bound + 2.0**-8 * (np.abs(exact) + bound)
    assert np.all(np.abs(run(emulated_gpu, name, a, b, None).astype(np.float64) - exact) <= bound)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_pack_widens_fp8_exactly(machine, kind):
    every = np.arange(256, dtype=np.uint8)
    to, origin = machine.to_device(np.zeros((2, 136), np.uint16)), machine.to_device(every)
    pack = struct.pack("2Q8q", origin.address, to.address, 2, 128, 1, 128, 1, 0, 136, 0)
    kernel = machine.kernel(source("gemm_cuda_pack.cu"), "gemm_cuda_pack", {"ELEMENT_BYTES": 2, "WIDEN": kind})
    kernel((3, 1), (256,), ctypes.create_string_buffer(pack, len(pack)))
    got = to.get()[:, :128].view(np.float16).ravel()
    want = every.view({"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]).astype(np.float16)
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def packed(machine, array, rows, cols, strides, at):
    """What gemm_cuda_pack makes of the matrices whose first element is array[at], `strides` in elements."""
    size, batch = array.itemsize, 2
    edge = {1: 128, 2: 64, 4: 64, 8: 32}[size]
    pitch = -(-cols * size // 16) * 16 // size
    out = np.full((batch, rows, pitch), 0xA5, array.dtype)
    to, origin = machine.to_device(out), machine.to_device(array)
    numbers = (rows, cols, batch, *strides, pitch, rows * pitch)
    pack = struct.pack("2Q8q", origin.address + at * size, to.address, *numbers)
    kernel = machine.kernel(source("gemm_cuda_pack.cu"), "gemm_cuda_pack", {"ELEMENT_BYTES": size})
    kernel((-(-rows // edge) * -(-pitch // edge), 1), (256,), ctypes.create_string_buffer(pack, len(pack)))
    return to.get()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_pack(machine, size):
    random = np.random.default_rng(size)
    array = random.integers(0, 256, 80000, np.uint8).view(f"u{size}")[: 80000 // size]
    cases = [(37, 61, (64, 1, 37 * 64), 0), (37, 61, (1, 48, 61 * 48), 0), (64, 33, (1, 64, 0), 16),
             (5, 70, (70, -1, 350), 69), (70, 5, (-1, 75, 0), 80), (20, 30, (3, 63, 1), 2), (1, 1, (0, 0, 7), 3),
             (130, 9, (9, 1, 9), 1)]  # fmt: skip
    for rows, cols, strides, at in cases:
        out = packed(machine, array, rows, cols, strides, at)
        z, i, j = np.ix_(range(2), range(rows), range(cols))
        want = array[at + z * strides[2] + i * strides[0] + j * strides[1]]
        np.testing.assert_array_equal(out[..., :cols], want)
        assert not out[..., cols:].any()
