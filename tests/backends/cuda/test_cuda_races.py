"""The emulated GPU's checker of races: clean kernels are clean, and each planted fault in csrc/cuda is reported.

Shapes have more tiles than clusters, and k is cut where the kernel cuts it, so that all memory is handed over again.
"""

import json
import re
import struct
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from cuda_machine import HERE
from cuda_machine.direct import Failed, source


@pytest.fixture(autouse=True)
def races(plain_settings, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_RACES", "1")


Texts = dict[str, str]  # of files of csrc/cuda that differ from what lies there


def product(
    a, b, out, shape, strides, *, parts = 1,
    memory = 0, arrivals = 0, mapped = 0, batch = 1, scale = "f",
):  # fmt: skip
    """The arguments of a product (struct Gemm): `strides` of a's rows and columns, b's, c's and out's."""
    m, n, k = shape
    a_row, a_col, b_row, b_col, out_row, out_col = strides
    numbers = (m, n, k, batch, a_row, a_col, 0, b_row, b_col, 0, 0, 0, 0, out_row, out_col, m * out_row, 0, 0)
    head = struct.pack("5Q18q2Q4i", a, b, 0, out, 0, *numbers, memory, arrivals, parts, 0, 0, mapped)
    return head.ljust(224, b"\0") + struct.pack(scale, 1).ljust(16, b"\0") + struct.pack(scale, 0).ljust(16, b"\0")


def numbers(dtype, *shapes):
    random = np.random.default_rng(1)
    return [random.integers(-4, 5, shape).astype(dtype) for shape in shapes]


@contextmanager
def on_device(machine, *arrays):
    """The arrays in memory of the machine, which gets it back."""
    there = [machine.to_device(array) for array in arrays]
    try:
        yield there
    finally:
        for array in there:
            array.free()


def check(out, a, b):
    x, y = a.astype(np.float64), b.astype(np.float64)
    bound = 2.0**-9 * (np.abs(x) @ np.abs(y))
    assert np.all(np.abs(out - x @ y) <= bound), "wrong numbers"


def compiled(machine, name, texts, macros, arch="sm_90a"):
    headers = {file: text for file, text in texts.items() if file.endswith(".cuh")}
    return machine.kernel(texts.get(f"{name}.cu") or source(f"{name}.cu"), name, macros, arch, headers)


def hopper(
    machine, texts, *, name, parts, sharing, clusters = 1, boxes = 0,
    kind = "tf32", bk = 32, shape = (200, 128, 256), **macros,
):  # fmt: skip
    """A product of gemm_cuda_kmajor or gemm_cuda_wgmma: b contiguous along k, tiles of 64 x 64."""
    m, n, k = shape
    dtype = {"tf32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}[kind]
    turned = bool(macros.get("A_TURNED"))
    stages = 2
    kernel = compiled(machine, name, texts, {
        "BM": 64, "BN": 64, "BK": bk, "STAGES": stages, "MULTICAST": sharing, "OUT_BOXES": boxes, "RESIDENT": 1,
        "THREADS": 256, "OUT_TYPE": "float", "PIECE": 64,
        **({"A_TYPE": "float", "B_TYPE": "float"} if kind == "tf32" else {"B_TURNED": 1}), **macros,
    })  # fmt: skip
    a, b = numbers(dtype, (m, k), (n, k))
    arrays = a.T.copy()[None] if turned else a[None], b[None], np.full((1, m, n), np.nan, np.float32)
    with on_device(machine, *arrays) as (x, y, out):
        maps = [
            machine.tensor_map(x, (32, bk, 1) if turned else (bk, 64, 1), 128, kind),
            machine.tensor_map(y, (bk, 64 // sharing, 1), 128, kind),
            *([machine.tensor_map(out, (32, 16, 1), 128)] if boxes else []),
        ]
        strides = (*((1, m) if turned else (k, 1)), 1, k, n, 1)
        given = product(x.address, y.address, out.address, shape, strides, parts=parts, mapped=boxes > 0)
        shared = stages * (128 * 128 + 16) + 4 * (2560, 3072, 4096)[boxes] + 1040 + (1008 if boxes else 0)
        cluster = sharing * parts
        kernel((clusters * cluster,), (256,), given, *maps, shared=shared, cluster=cluster, overlaps=True)
        check(out.get()[0], a, b.T)


def ffma_tma(machine, texts, *, parts, shared_tiles=False):
    """A product of gemm_cuda_ffma_tma; `shared_tiles`: the last tiles are shared by all blocks, through memory."""
    m, n, k, stages = 200, 128, 160, 2
    blocks = 3 if shared_tiles else parts
    kernel = compiled(machine, "gemm_cuda_ffma_tma", texts,
                      {"BM": 128, "BN": 64, "TM": 8, "TN": 8, "STAGES": stages, "THREADS": 256})  # fmt: skip
    a, b = numbers(np.float32, (m, k), (k, n))
    arrays = a[None], b[None], np.full((1, m, n), np.nan, np.float32)
    room = np.zeros(blocks * 128 * 64), np.zeros(blocks + 1, np.uint32)
    with on_device(machine, *arrays, *room) as (x, y, out, sums, counts):
        given = product(
            x.address, y.address, out.address, (m, n, k), (k, 1, n, 1, n, 1), parts=parts,
            memory=sums.address if shared_tiles else 0, arrivals=counts.address,
        )  # fmt: skip
        maps = machine.tensor_map(x, (32, 128, 1), 128), machine.tensor_map(y, (64, 32, 1))
        size = stages * (32 * 192 * 4 + 16) + 1040
        kernel((blocks,), (256,), given, *maps, shared=size, cluster=parts, overlaps=True)
        check(out.get()[0], a, b)


def dmma(machine, texts, *, parts=2, k=150):
    """A product of gemm_cuda_dmma, whose parts meet in global memory."""
    m, n, stages = 40, 70, 4
    kernel = compiled(machine, "gemm_cuda_dmma", texts,
                      {"BM": 32, "BN": 64, "BK": 16, "TM": 16, "TN": 32, "STAGES": stages})  # fmt: skip
    a, b = numbers(np.float64, (m, k), (k, n))
    room = np.zeros(4 * parts * 32 * 64), np.zeros(4, np.uint32)
    with on_device(machine, a, b, np.full((m, n), np.nan), *room) as (x, y, out, sums, counts):
        given = product(
            x.address, y.address, out.address, (m, n, k), (k, 1, n, 1, n, 1), parts=parts, memory=sums.address,
            arrivals=counts.address, scale="d",
        )  # fmt: skip
        kernel((4 * parts,), (128,), given, shared=stages * (32 + 64) * 16 * 8, overlaps=True)
        check(out.get(), a, b)


def plain(
    machine, texts, *, name, tile, shape,
    threads = 256, parts = 1, shared = 0, **macros,
):  # fmt: skip
    """A float32 product of a kernel without maps, whose parts meet in shared memory; a and b lie along their rows."""
    m, n, k = shape
    high, wide = tile
    kernel = compiled(machine, name, texts, {"BM": high, "BN": wide, "THREADS": threads, **macros})
    a, b = numbers(np.float32, (m, k), (k, n))
    blocks = -(-m // high) * -(-n // wide) * parts
    with on_device(machine, a, b, np.full((m, n), np.nan, np.float32)) as (x, y, out):
        given = product(x.address, y.address, out.address, shape, (k, 1, n, 1, n, 1), parts=parts)
        kernel((blocks,), (threads,), given, shared=shared, cluster=parts, overlaps=True)
        check(out.get(), a, b)


CASES = {
    "kmajor": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=2, sharing=2),
    "kmajor alone": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=3, sharing=1),
    "kmajor boxes": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=1, sharing=2, boxes=2),
    "kmajor one box": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=1, sharing=1, boxes=1, clusters=2),
    "kmajor turned": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=2, sharing=2, A_TURNED=1),
    "wgmma": lambda *at: hopper(*at, name="gemm_cuda_wgmma", parts=2, sharing=2, kind="bfloat16", bk=64),
    "kmajor whole": lambda *at: hopper(*at, name="gemm_cuda_kmajor", parts=1, sharing=2),
    "wgmma whole": lambda *at: hopper(*at, name="gemm_cuda_wgmma", parts=1, sharing=2, kind="bfloat16", bk=64),
    "ffma": lambda *at: ffma_tma(*at, parts=2),
    "ffma shared": lambda *at: ffma_tma(*at, parts=1, shared_tiles=True),
    "dmma": dmma,
    "ffma by cp.async": lambda *at: plain(
        *at,
        name="gemm_cuda_ffma",
        tile=(64, 64),
        shape=(70, 70, 100),
        threads=128,
        parts=2,
        TM=8,
        TN=8,
        BK=16,
        STAGES=3,
        GROUPS=2,
        shared=3 * 16 * (68 + 68) * 4,
    ),
    "ffma held": lambda *at: plain(
        *at,
        name="gemm_cuda_ffma_held",
        tile=(64, 64),
        shape=(70, 70, 50),
        threads=64,
        parts=2,
        TM=8,
        TN=8,
    ),
    "gemv": lambda *at: plain(
        *at,
        name="gemm_cuda_gemv",
        tile=(64, 8),
        shape=(70, 8, 3000),
        parts=2,
        BK=128,
        A_VECTOR=1,
    ),
    "gemv chains": lambda *at: plain(
        *at,
        name="gemm_cuda_gemv",
        tile=(64, 8),
        shape=(70, 8, 300),
        BK=128,
        A_VECTOR=1,
        ORDERED=1,
    ),
    "outer": lambda *at: plain(*at, name="gemm_cuda_outer", tile=(128, 128), shape=(130, 130, 70)),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_have_no_race(machine, monkeypatch, name):
    for seed in range(1, 4):
        monkeypatch.setenv("CUDA_MACHINE_SEED", str(seed))
        CASES[name](machine, {})


FAULTS = json.loads((HERE / "races.json").read_text(encoding="utf-8"))
"""Planted in csrc/cuda, one after the other: in each file of `changes`, an old text of its code becomes a new one; the
product `case` shows the fault, and the machine's report of it matches `told`. Comments are not part of the code."""


def planted(fault):
    texts = {}
    for file, old, new in fault["changes"]:
        text = texts.get(file) or re.sub(" *//.*", "", source(file))
        assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
        texts[file] = text.replace(old, new)
    return texts


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["what"])
def test_planted_faults_are_reported(machine, monkeypatch, fault):
    texts = planted(fault)
    for seed in range(1, 4):
        monkeypatch.setenv("CUDA_MACHINE_SEED", str(seed))
        with pytest.raises(Failed, match=fault.get("told", "race at")):
            CASES[fault["case"]](machine, texts)


@pytest.mark.parametrize("timing", ["early", "mixed", "late"])
def test_delays_alone_show_the_old_race(machine, monkeypatch, timing):
    monkeypatch.setenv("CUDA_MACHINE_RACES", "0")
    monkeypatch.setenv("CUDA_MACHINE_ASYNC", timing)
    texts = planted(FAULTS[0])
    for seed in range(1, 13):
        monkeypatch.setenv("CUDA_MACHINE_SEED", str(seed))
        try:
            CASES["kmajor"](machine, texts)
        except AssertionError:
            CASES["kmajor"](machine, {})
            return
    pytest.fail("no seed gave wrong numbers")


PLAIN = """
#include "ptx.cuh"
extern "C" __global__ void turn(float *x) {
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];
    MEET
    x[threadIdx.x] = held[63 - threadIdx.x];
}
"""


def test_threads_of_a_block_must_meet(machine):
    values = np.arange(64, dtype=np.float32)
    machine.kernel(PLAIN, "turn", {"MEET": "__syncthreads();"})((1,), (64,), values)
    np.testing.assert_array_equal(values, np.arange(64)[::-1])
    for meet in ("", "__syncwarp();"):
        with pytest.raises(Failed, match="race at"):
            machine.kernel(PLAIN, "turn", {"MEET": meet})((1,), (64,), values)


NARROW = """
extern "C" __global__ void turn(unsigned char *x) {
    __shared__ __align__(4) unsigned char held[64];
    held[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 1) held[OTHER] = 7;
    __syncthreads();
    if (threadIdx.x == 0) x[0] = *(const unsigned *)held >> 8;
}
"""


def test_neighbours_of_a_word_are_apart(machine):
    values = np.zeros(64, np.uint8)
    machine.kernel(NARROW, "turn", {"OTHER": 1})((1,), (64,), values)
    assert values[0] == 7
    with pytest.raises(Failed, match="race at"):
        machine.kernel(NARROW, "turn", {"OTHER": 2})((1,), (64,), values)
