"""The launch plans of CUDA kernels, without a GPU: which forms and grids they have, what is copied, how k is cut.

That products by these plans are right is the matter of tests/conformance, on the emulated GPU.
"""

import struct
from dataclasses import replace
from functools import cache
from itertools import product
from math import gcd

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from cuda_compile import forms

from gemm.backends.cuda.launch_plan import GRID, SIZES, Chip, Layout, fallback, recipe, types
from gemm.backends.cuda.operand_layout import COMBINE, OUT, A, Map
from gemm.catalog import BY_NAME, KERNELS
from gemm.catalog.cuda import inbox
from gemm.catalog.launch_arithmetic import parts
from gemm.select.verify.single import types_of

ROWS = [row for row in KERNELS if row.backend == "cuda"]
TILE = BY_NAME["sgemm_cuda_tile"]
GEMM = "5Q4q12q2q2Q4i"
NUMPY = {"float": "float32", "double": "float64", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
SHAPES = [
    ((), 5, 7, 3), ((4,), 24, 40, 16), ((2, 3), 33, 8, 17), ((), 1, 130, 64), ((3, 1, 2), 130, 3, 20), ((2,), 9, 9, 0),
]  # fmt: skip


def matrices(dtype, batch, rows, cols):
    """Stacks with every kind of stride."""

    def new(*shape):
        return np.empty(shape, dtype)

    pad = 16 // dtype.itemsize or 1
    whole = -(-cols // pad) * pad
    yield new(*batch, rows, cols)
    yield new(*batch, cols, rows).swapaxes(-1, -2)
    yield new(*batch, rows, whole)[..., :cols]
    yield new(*batch, cols, -(-rows // pad) * pad)[..., :rows].swapaxes(-1, -2)
    yield new(*batch, rows + 3, 2 * cols)[..., 1:-2, ::-2]
    if batch:
        yield np.broadcast_to(new(rows, whole)[:, :cols], (*batch, rows, cols))
        yield new(rows, cols, *batch[::-1]).transpose(*range(len(batch) + 1, 1, -1), 0, 1)


@cache
def forms_of(row):
    return [{"EPILOGUE": 0, **form} for form in forms(row)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_launch_has_a_known_form_and_aligned_vectors(row):
    """The forms are those that benchmarks/cuda_compile.py compiles for all architectures."""
    dtype, (left, right) = types_of(row)
    least = max((int(need[3:5]) for need in row.needs if need.startswith("sm_")), default=53)
    chip = Chip(least, 132 if least >= 90 else 16)
    for batch, m, n, k in SHAPES:
        outs = np.empty((*batch, m, n), dtype), np.empty((*batch, n, m), dtype).swapaxes(-1, -2)
        for i, (a, b) in enumerate(product(matrices(left, batch, m, k), matrices(right, batch, k, n))):
            given = a, b, outs[i % 2], outs[i % 2]
            aligned = tuple(gcd(16, x.__array_interface__["data"][0]) for x in given)
            made = recipe(row, chip, Layout(outs[0].shape, k, tuple(x.strides for x in given), aligned))
            last = made.steps[-1]
            if last.kernel == COMBINE:
                last = made.steps[-2]
            assert last.kernel == (row if k else fallback(row))
            assert {"EPILOGUE": 0, **dict(last.form)} in forms_of(last.kernel)
            for step in made.steps:
                assert step.grid[0] < 1 << 31
                assert step.grid[1] <= GRID
                assert step.grid[0] % step.cluster == 0
                if step.scaled and step.kernel != COMBINE and k:
                    check_vectors(step, (*aligned, 16, 256))


def check_vectors(step, aligned):
    """Addresses and strides are multiples of the vectors that the kernel reads; `aligned` is that of each slot."""
    form, numbers = dict(step.form), struct.unpack_from(GEMM, step.parameters)
    for side, pointer, strides in (("A", 0, numbers[9:12]), ("B", 8, numbers[12:15])):
        size = SIZES[form[f"{side}_TYPE"]]
        wide = form.get(f"{side}_VECTOR", 1) * size
        (address,) = [gcd(aligned[slot], distance) for at, slot, distance in step.pointers if at == pointer]
        assert address % wide == 0
        assert wide == size or 1 in strides
        assert all(stride == 1 or stride * size % wide == 0 for stride in strides)


def test_long_stacks_are_several_launches():
    strides = ((16, 8, 4),) * 4
    made = recipe(TILE, Chip(53, 1), Layout((70000, 2, 2), 2, strides, (4,) * 4))
    assert [step.grid for step in made.steps] == [(1, 65535), (1, 70000 - 65535)]
    assert made.steps[1].pointers[0] == (0, A, 65535 * 16)
    tall = recipe(TILE, Chip(53, 1), Layout((10**8, 3), 2, ((8, 4), (12, 4), (12, 4), (12, 4)), (4,) * 4))
    assert [step.grid for step in tall.steps] == [(10**8 // 32, 1)]


def test_packed_once_where_the_batch_is_one():
    """An operand that is the same for all of a batch is copied as one matrix."""
    row = replace(TILE, params={**TILE.params, "a_lies": 1, "b_lies": 1})
    strides = ((400, 20, 4), (0, 24, 4), (480, 24, 4), (480, 24, 4))
    made = recipe(row, Chip(90, 132), Layout((9, 20, 6), 5, strides, (16,) * 4))
    assert made.copied == "b"
    assert [step.grid for step in made.steps] == [(1, 1), (1, 9)]
    assert made.workspace == 6 * 8 * 4 + 64


def test_parts_of_k():
    row = replace(TILE, params={**TILE.params, "BM": 64, "BN": 64, "BK": 32, "parts": 8})
    assert parts(row, 1, 1 << 20, 132) == 8
    assert parts(row, 1, 32, 132) == 1
    assert parts(replace(row, params={**row.params, "MULTICAST": 2}), 1, 1 << 20, 132) == 4
    layout = Layout((64, 64), 4096, ((16384, 4), (256, 4), (256, 4), (256, 4)), (16,) * 4)
    cluster, memory = (recipe(row, Chip(capability, 132), layout) for capability in (90, 80))
    assert (cluster.steps[0].cluster, cluster.workspace) == (8, 0)
    assert (memory.steps[0].cluster, memory.workspace) == (1, 256 + 8 * 64 * 64 * 4)
    assert memory.zeroed == (0, 256)
    ordered = recipe(row, Chip(90, 132), layout._replace(ordered=True))
    assert ordered.steps[0].grid == (1, 1)


def test_a_last_round_of_fewer_tiles_is_shared():
    row, chip = BY_NAME["sgemm_cuda_ffma_tma_128x128_along_k"], Chip(90, 132)

    def made(m, n, k, **more):
        return recipe(row, chip, Layout((m, n), k, ((4 * k, 4), *[(4 * n, 4)] * 3), (16,) * 4, **more))

    shared = made(576, 4096, 7168)  # 5 x 32 tiles
    assert (shared.steps[0].grid, shared.zeroed) == ((132, 1), (0, 768))  # blocks, and how many have started
    assert shared.workspace == 768 + 132 * 128 * 128 * 4
    for whole in (made(576, 4096, 7168, ordered=True), made(128, 128 * 132, 7168)):
        assert (whole.steps[0].grid, whole.zeroed, whole.workspace) == ((132, 1), (0, 0), 0)
    assert made(128, 128, 64).workspace == 0  # fewer steps than blocks


def test_types_have_sizes():
    for row in ROWS:
        for name in types(row):
            assert SIZES[name] == np.dtype(NUMPY.get(name, name)).itemsize


def test_parts_fit_into_the_memory_in_which_they_are_exchanged():
    rows = [row for row in KERNELS if row.backend == "cuda" and row.params.get("parts", 0) > 1]
    assert len(rows) > 50
    for row in rows:
        p = row.params
        if "STAGES" not in p:  # gemv and ffma_held: asserted where they are compiled
            continue
        tile = p["BM"] * p["BN"] * (8 if row.dtype == "float64" else 4)
        producers = 128 if "maps" in p else 0
        free = p["shared"]
        if producers:  # and a ring, with what its alignment may cost, and behind it what each warp stages
            free -= 2048 if p.get("OUT_BOXES") else 1040 + 16 * p["STAGES"]
        if "MULTICAST" in p:
            free -= p["BM"] // 16 * (4096 if p.get("OUT_BOXES") else 2560)
        members = (p["THREADS"] - producers) // p.get("GROUPS", 1)
        assert inbox(tile, members, p["parts"]) <= free, row.name


@pytest.mark.parametrize(("n", "row_bytes", "col_bytes", "aligned", "mapped"), [
    (256, 512, 2, 16, 1), (256, 514, 2, 16, 0), (256, 512, 2, 8, 0), (256, 1024, 4, 16, 0), (252, 512, 2, 16, 0),
])  # fmt: skip
def test_tma_stores_what_it_can(n, row_bytes, col_bytes, aligned, mapped):
    row = BY_NAME["bgemm_cuda_wgmma_128x256"]
    out = row_bytes, col_bytes
    layout = Layout((256, n), 64, ((128, 2), (512, 2), out, out), (16, 16, aligned, aligned))
    for reads_c in (False, True):
        (step,) = recipe(row, Chip(90, 132), layout._replace(reads_c=reads_c)).steps
        *_, told = struct.unpack_from(GEMM, step.parameters)
        assert told == (mapped and not reads_c)
        assert step.maps[2] == (Map(OUT, 0, 1, (256, 256, 1), (512, 512), (64, 16, 1), 3) if told else step.maps[0])
