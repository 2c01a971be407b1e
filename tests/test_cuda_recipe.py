"""What the host hands to CUDA kernels, without a GPU and without the kernels.

From the bytes that a kernel would get, a recipe is carried out here in NumPy, by what gemm/catalog/cuda.py
promises of strides, forms, tensor maps and grids. Whatever the row and the operands' layout, the product must come out.
"""

import ctypes
import struct
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from cuda_compile import forms

from gemm.backends.cuda.launch_plan import GRID, SIZES, Chip, Layout, plain, recipe, types
from gemm.backends.cuda.operand_layout import OUT, A, Map
from gemm.catalog import BY_NAME, KERNELS
from gemm.catalog.cuda import inbox
from gemm.catalog.launch_arithmetic import parts
from gemm.select.verify.samples import types_of

ROWS = [row for row in KERNELS if row.backend == "cuda"]
TILE = BY_NAME["sgemm_cuda_tile"]
GEMM = ("a", "b", "c", "out", "bias", "m", "n", "k", "batch", "a_row", "a_col", "a_batch", "b_row", "b_col", "b_batch",
        "c_row", "c_col", "c_batch", "out_row", "out_col", "out_batch", "bias_row", "bias_col", "memory", "arrivals",
        "parts", "activation", "raster", "mapped")  # fmt: skip
NUMPY = {"float": "float32", "double": "float64", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def strided(address, dtype, shape, strides):
    """The elements at `address`, with strides in elements; a view of memory that somebody else keeps."""
    size = dtype.itemsize
    low = size * sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = size * sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0) + size
    memory = (ctypes.c_ubyte * (high - low)).from_address(address + low)
    return np.ndarray(shape, dtype, memory, -low, tuple(s * size for s in strides))


def numpy_type(name):
    return np.dtype(NUMPY.get(str(name), str(name)))


class Machine:
    """Carries recipes out on operands in this process's memory."""

    def __init__(self, made, addresses):
        room = np.full(made.workspace + 256, 0x7F, np.uint8)
        start = -room.ctypes.data % 256
        self.at = [*addresses, room.ctypes.data + start]
        offset, size = made.zeroed
        room[start + offset : start + offset + size] = 0
        self.room = room
        for step in made.steps:
            filled = bytearray(step.parameters)
            for where, slot, distance in step.pointers:
                struct.pack_into("Q", filled, where, self.at[slot] + distance)
            assert step.grid[0] < 1 << 31
            assert step.grid[1] <= GRID
            assert step.grid[0] % step.cluster == 0
            if step.kernel.name == "gemm_cuda_pack":
                self.pack(step, struct.unpack("2Q3q3q2q", filled))
            elif step.kernel.name == "gemm_cuda_split":
                self.split(step, struct.unpack("2Q3q3q2qQq", filled))
            else:
                assert step.scaled
                self.multiply(step, dict(zip(GEMM, struct.unpack_from("5Q4q12q2q2Q4i", filled), strict=True)))

    def pack(self, step, given):
        source, target, rows, cols, batch, row, col, matrix, to_row, to_batch = given
        size = int(str(dict(step.form)["ELEMENT_BYTES"]))
        assert target % 16 == to_row * size % 16 == to_batch * size % 16 == 0
        bits = np.dtype(f"u{size}")
        to = strided(target, bits, (batch, rows, to_row), (to_batch, to_row, 1))
        to[...] = 0
        if widened := dict(step.form).get("WIDEN"):
            fp8 = strided(source, numpy_type(widened), (batch, rows, cols), (matrix, row, col))
            to[:, :, :cols] = fp8.astype(np.float16).view(bits)
        else:
            to[:, :, :cols] = strided(source, bits, (batch, rows, cols), (matrix, row, col))

    def split(self, step, given):
        source, target, rows, cols, batch, row, col, matrix, to_row, to_batch, exponents, to_plane = given
        form = dict(step.form)
        count, turned, dtype = int(str(form["PLANES"])), int(str(form["TURNED"])), numpy_type(form["TYPE"])
        assert (to_plane, to_batch) == (rows * to_row, count * to_plane)
        values = strided(source, np.dtype(np.float32), (batch, rows, cols), (matrix, row, col))
        largest = np.abs(values).max(1 if turned else 2, initial=0)
        found = np.frexp(np.where(largest == 0, 1, largest))[1]
        strided(exponents, np.dtype(np.int32), found.shape, (found.shape[1], 1))[...] = found
        rest = np.ldexp(values, -np.expand_dims(found, 1 if turned else 2))
        to = strided(target, dtype, (batch, count, rows, cols), (to_batch, to_plane, to_row, 1))
        for plane in range(count):
            to[:, plane] = rest.astype(dtype)
            rest = rest - to[:, plane].astype(np.float32)

    def multiply(self, step, g):
        form, p = dict(step.form), step.kernel.params
        m, n, k, batch = g["m"], g["n"], g["k"], g["batch"]
        maps = list(step.maps)
        if p.get("OUT_BOXES"):
            self.stored(maps.pop(), step, g)
        assert len(maps) == bin(p.get("maps", 0)).count("1")
        sides = []
        for bit, side, extent in ((1, "a", m), (2, "b", n)):
            turned = form.get(f"{side.upper()}_TURNED")
            if p.get("maps", 0) & bit:
                sides.append(self.mapped(maps.pop(0), step, side, int(turned == (side == "a")), extent, g))
            else:
                sides.append(self.plain(step, side, extent, g))
        left, right = sides  # (batch, extent, k)
        sums = np.matmul(left, np.swapaxes(right, -1, -2)) if k else np.zeros((batch, m, n), left.dtype)
        self.grid(step, g)
        out_type = numpy_type(form["OUT_TYPE"])
        if g["c"]:
            c = strided(g["c"], out_type, (batch, m, n), (g["c_batch"], g["c_row"], g["c_col"]))
            sums = sums + c.astype(sums.dtype)
        if g["bias"]:
            assert form["EPILOGUE"] == 1
            sums = sums + strided(g["bias"], out_type, (m, n), (g["bias_row"], g["bias_col"])).astype(sums.dtype)
        out = strided(g["out"], out_type, (batch, m, n), (g["out_batch"], g["out_row"], g["out_col"]))
        out[...] = sums.astype(out_type)

    def plain(self, step, side, extent, g):
        """An operand read by its strides, after a look at what the form promises of them."""
        form, p = dict(step.form), step.kernel.params
        dtype = numpy_type(form[f"{side.upper()}_TYPE"])
        row, col, matrix = (g[f"{side}_{axis}"] for axis in ("row", "col", "batch"))
        along, across = (col, row) if side == "a" else (row, col)
        turned, vector = form.get(f"{side.upper()}_TURNED"), int(str(form.get(f"{side.upper()}_VECTOR", 1)))
        if g["k"] == 0:
            return np.zeros((g["batch"], extent, 0), wide(dtype))
        if turned is not None and (p.get(f"{side}_lies", 3) != 7 or vector > 1):
            unit, other, length = (across, along, extent) if turned == (side == "a") else (along, across, g["k"])
            assert unit == 1 or length == 1
            assert all(step * dtype.itemsize % (vector * dtype.itemsize) == 0 for step in (g[side], other, matrix)), (
                side
            )
        if p.get(f"{side}_lies", 3) in (1, 2):
            assert (along if p[f"{side}_lies"] == 1 else across) == 1
        found = strided(g[side], dtype, (g["batch"], extent, g["k"]), (matrix, across, along))
        return found.astype(wide(dtype))

    def mapped(self, x, step, side, turned, extent, g):
        """An operand read through its tensor map."""
        p, dtype = step.kernel.params, numpy_type(dict(step.form)[f"{side.upper()}_TYPE"])
        address, size = self.at[x.slot] + x.at, dtype.itemsize
        assert address % 16 == 0
        assert address == g[side]
        assert all(0 < stride < 1 << 40 and stride % 16 == 0 for stride in x.strides)
        assert all(0 < length <= 256 for length in x.box)
        assert x.box[0] * size % 16 == 0
        swizzle = p.get(f"{side}_swizzle", 0)
        assert not swizzle or x.box[0] * size <= swizzle
        assert x.kind == (11 if p.get("tf32") else {1: 0, 2: 1, 4: 2, 8: 4}[size])
        if p.get(f"{side}_lies", 3) != 3:
            turned = p[f"{side}_lies"] == 2
        whole = strided(address, dtype, x.dims[::-1], (x.strides[1] // size, x.strides[0] // size, 1)).astype(
            wide(dtype)
        )
        assert x.dims[:2] == ((extent, g["k"]) if turned else (g["k"], extent))
        matrices = whole.swapaxes(-1, -2) if turned else whole
        if count := p.get("planes", 0):
            matrices = matrices.reshape(-1, count, *matrices.shape[1:]).sum(1)
            where = g["memory" if side == "a" else "arrivals"]
            found = strided(where, np.dtype(np.int32), (len(matrices), extent), (extent, 1))
            matrices = np.ldexp(matrices, found[:, :, None])
        assert len(matrices) == (g["batch"] if g[f"{side}_batch"] else 1)
        return np.broadcast_to(matrices, (g["batch"], extent, g["k"]))

    def stored(self, x, step, g):
        """Out's map; that of a stands for it where out does not suit."""
        size = numpy_type(dict(step.form)["OUT_TYPE"]).itemsize
        steps = g["out_row"] * size, g["out_batch"] * size
        suits = g["out_col"] == 1 and not g["c"] and not g["out"] % 16 and not steps[0] % 16 and steps[0] > 0
        if g["batch"] > 1:
            suits = suits and not steps[1] % 16 and steps[1] > 0
        assert g["mapped"] <= suits, "an out that TMA cannot store"
        if not g["mapped"]:
            assert x == step.maps[0]
            return
        assert (self.at[x.slot] + x.at, x.kind, x.swizzle) == (g["out"], {2: 1, 4: 2}[size], 3)
        assert (x.dims, x.strides[0], x.box) == ((g["n"], g["m"], g["batch"]), steps[0], (128 // size, 16, 1))
        assert x.strides[1] == steps[1] or g["batch"] == 1

    def grid(self, step, g):
        p = step.kernel.params
        rows = p.get("MULTICAST", 1)
        tiles = -(-g["m"] // (p["BM"] * rows)) * -(-g["n"] // p["BN"])
        assert 1 <= g["parts"] <= max(1, p.get("parts", 1))
        if p.get("blocks"):
            assert step.grid[1] == 1
            most = tiles * rows * g["parts"] * g["batch"]
            assert step.grid[0] <= most or (p.get("shares") and g["memory"] and g["arrivals"])
        else:
            assert step.grid == (tiles * rows * g["parts"], -(-g["batch"] // p.get("STACK", 1)))


def wide(dtype):
    """A type in which small integers' products are exact."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def matrices(dtype, batch, rows, cols, seed):
    """Stacks of small whole numbers with every kind of stride."""
    random = np.random.default_rng(seed)

    def numbers(*shape):
        return random.integers(-2 if dtype.kind != "u" else 0, 3, shape).astype(dtype)

    pad = 16 // dtype.itemsize or 1
    yield numbers(*batch, rows, cols)
    yield numbers(*batch, cols, rows).swapaxes(-1, -2)
    whole = -(-cols // pad) * pad
    yield numbers(*batch, rows, whole)[..., :cols]
    yield numbers(*batch, cols, -(-rows // pad) * pad)[..., :rows].swapaxes(-1, -2)
    yield numbers(*batch, rows + 3, 2 * cols)[..., 1:-2, ::-2]
    if batch:
        yield np.broadcast_to(numbers(rows, whole)[:, :cols], (*batch, rows, cols))
        yield numbers(rows, cols, *batch[::-1]).transpose(*range(len(batch) + 1, 1, -1), 0, 1)


def computed(row, chip, a, b, out, **more):
    """out = a·b as `row` would compute it there; `more`: c and bias, and what else Layout has."""
    c, bias = more.pop("c", None), more.pop("bias", None)
    if bias is not None:
        size = bias.dtype.itemsize
        more["bias"] = tuple(s // size if n > 1 else 0 for n, s in zip(bias.shape, bias.strides, strict=True))
    given = (a, b, out if c is None else c, out)
    addresses = [x.__array_interface__["data"][0] for x in given]
    aligned = tuple(min(16, x & -x) for x in addresses)
    layout = Layout(out.shape, a.shape[-1], tuple(x.strides for x in given), aligned, c is not None, **more)
    made = recipe(row, chip, layout)
    Machine(made, [*addresses, 0 if bias is None else bias.__array_interface__["data"][0]])
    return made


def chip_of(row):
    least = max((int(need[3:5]) for need in row.needs if need.startswith("sm_")), default=53)
    return Chip(least, 132 if least >= 90 else 16)


SHAPES = [
    ((), 5, 7, 3),
    ((4,), 24, 40, 16),
    ((2, 3), 33, 8, 17),
    ((), 1, 130, 64),
    ((3, 1, 2), 130, 3, 20),
    ((2,), 9, 9, 0),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_layout(row):
    dtype, (left, right) = types_of(row)
    for batch, m, n, k in SHAPES:
        a_all, b_all = list(matrices(left, batch, m, k, 1)), list(matrices(right, batch, k, n, 2))
        for i, (a, b) in enumerate(product(a_all, b_all)):
            outs = np.zeros((*batch, m, n), dtype), np.zeros((*batch, n, m), dtype).swapaxes(-1, -2)
            out = outs[i % 2]
            made = computed(row, chip_of(row), a, b, out)
            exact = np.matmul(a.astype(wide(left)), b.astype(wide(right)))
            np.testing.assert_array_equal(out, exact.astype(dtype), err_msg=f"{a.strides} {b.strides} {made.copied}")
            assert made.kernel == (row if k else plain(row))
            form = {"EPILOGUE": 0, **dict(made.steps[-1].form)}
            assert form in [{"EPILOGUE": 0, **known} for known in forms(made.kernel)]


@pytest.mark.parametrize("row", [row for row in ROWS if row.fuses and row.dtype == "float32"], ids=lambda row: row.name)
def test_bias_and_c_lie_as_they_are(row):
    _, (left, right) = types_of(row)
    a, b = next(matrices(left, (), 20, 24, 1)), next(matrices(right, (), 24, 12, 2))
    c = np.arange(12, dtype=np.float32)[None] + np.zeros((20, 1), np.float32)
    for out in (np.zeros((20, 12), np.float32), np.zeros((12, 20), np.float32).T):
        for bias in (np.arange(24, dtype=np.float32)[None, ::2], np.arange(20, dtype=np.float32)[:, None]):
            computed(row, chip_of(row), a, b, out, c=c, bias=bias)
            exact = np.matmul(a.astype(float), b.astype(float)) + c + bias
            np.testing.assert_array_equal(out, exact)


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
    for k in range(1, 2000, 7):
        count = parts(row, 3, k, 132)
        steps = -(-k // 32)
        assert (count - 1) * -(-steps // count) < steps, "an empty part"
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
            assert SIZES[name] == numpy_type(name).itemsize


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
        *_, told = struct.unpack_from("5Q4q12q2q2Q4i", step.parameters)
        assert told == (mapped and not reads_c)
        assert step.maps[2] == (Map(OUT, 0, 1, (256, 256, 1), (512, 512), (64, 16, 1), 3) if told else step.maps[0])
