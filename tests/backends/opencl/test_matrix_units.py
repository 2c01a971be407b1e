"""Matrix units of Intel's and AMD's GPUs: which devices have which kernels, and the arithmetic by which the error bound
holds.

tests/conformance runs the kernels with --emulate-matrix-units, on a runtime that has Intel's sub-groups.
"""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import check_close, exact

from gemm.backends.opencl import backend
from gemm.backends.opencl.layout import fits, layouts
from gemm.catalog import BY_NAME, KERNELS
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device, DeviceView, Problem
from gemm.select.candidates import unavailable, unfit

ROWS = [row for row in KERNELS if row.source.endswith("gemm_intel_dpas.cl")]
WMMA = [row for row in KERNELS if row.source.endswith("gemm_amd_wmma.cl")]
UNITS = "cl_intel_subgroup_matrix_multiply_accumulate"


@pytest.mark.parametrize(
    ("extensions", "sizes", "found"),
    [
        ({UNITS, "cl_intel_required_subgroup_size"}, [8, 16, 32], {"intel_dpas_8"}),
        ({UNITS, "cl_intel_required_subgroup_size"}, [16, 32], {"intel_dpas_16"}),
        ({"cl_intel_required_subgroup_size"}, [8, 16, 32], set()),
        ({UNITS, "cl_intel_required_subgroup_size"}, [], set()),
        ({UNITS}, [8], set()),
    ],
)
def test_the_units_are_those_of_the_smallest_sub_groups(monkeypatch, extensions, sizes, found):
    monkeypatch.setattr(backend, "numbers", lambda *_: sizes)
    features = backend._sub_groups(SimpleNamespace(), extensions)
    assert {feature for feature in features if "dpas" in feature} == found


@pytest.mark.parametrize("size", [8, 16])
def test_rows_need_the_units_of_their_sub_groups(size):
    features = frozenset({"intel_subgroups", f"intel_dpas_{size}", "subgroup_size_16", "subgroup_size_32"})
    gpu = Device("opencl", "opencl:7", "a GPU", "a platform", kind="gpu", features=features)
    able = [row for row in ROWS if not unavailable(row, gpu)]
    assert {row.params["SG"] for row in able} == {size}
    assert {row.name.partition("gemm_")[0] for row in able} == {"h", "b", "s8s32", "u8s32"}
    assert all(row.chosen_on("gpu", features) and not row.chosen_on("cpu", features) for row in able)


def test_rows_that_read_blocks_replace_those_that_pack():
    features = frozenset({"intel_subgroups", "intel_dpas_16", "intel_subgroup_2d_block_io"})
    chosen = [row for row in ROWS if features.issuperset(row.needs) and row.chosen_on("gpu", features)]
    assert len(chosen) == 8
    assert all(row.params["BLOCK_IO"] for row in chosen)


@pytest.mark.parametrize(
    ("change", "used"),
    [
        ({}, True),
        ({"offset": 128}, True),
        ({"strides": (1 << 20, 208, 2)}, True),  # a row stride that is a multiple of 16 bytes, but not of 64
        ({"offset": 32}, False),
        ({"strides": (1 << 20, 196, 2)}, False),
        ({"strides": (1 << 20, 64, 2)}, False),  # rows that overlap
        ({"strides": (1 << 20, 2, 192)}, False),  # transposed
        ({"strides": ((1 << 20) + 32, 192, 2)}, False),
        ({"shape": (2, 30, 95)}, False),
    ],
)
def test_blocks_are_read_in_place_where_the_hardware_can(change, used):
    view = DeviceView(None, None, 0, (2, 30, 96), (1 << 20, 192, 2), np.dtype(np.float16), None)
    a, _ = layouts(BY_NAME["hgemm_intel_dpas_io_32x64_2x16"].params, ordered=False)
    assert fits(replace(view, **change), a) is used


def test_a_prepared_matrix_is_within_the_range_of_the_kernels_positions(monkeypatch):
    layout = layouts(BY_NAME["hgemm_intel_dpas_48x32_2x8"].params, ordered=False)[1]
    b = np.zeros((100, 70), np.float16)
    monkeypatch.setattr(backend, "MOST", prod(layout.padded(*b.shape)) - 1)
    with pytest.raises(KernelFailed, match="more than"):
        backend.OpenCLBackend.keep(None, BY_NAME["hgemm_intel_dpas_48x32_2x8"], None, b, reproducible=False)


@pytest.mark.parametrize("row", ROWS + WMMA, ids=lambda row: row.name)
def test_precisions_that_rows_serve(row):
    """A unit may treat a subnormal bfloat16 as zero, which only "high" permits. None sums in the order of k."""

    def served(**how):
        return not unfit(row, Problem(row.dtype, 64, 64, 64, inputs=row.inputs, **how))

    assert served(precision="highest") == (row.dtype != "bfloat16")
    assert served(precision="high")
    assert served(precision="high", reproducible=True) == (row.dtype == "int32")


def truncated(x):
    """float64 rounded to float32 toward zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def nearest(x):
    return x.astype(np.float32)


def by_words(a, b, rounded, *, twice):
    """a times b as dpas sums them: word after word of two elements along k, each added to a float32 sum.

    Args:
        rounded: how a sum is rounded to float32.
        twice: whether the sum of a word's two products is rounded, too, before it is added.
    """
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for p in range(0, a.shape[1], 2):
        word = a[:, p : p + 2].astype(np.float64) @ b[p : p + 2].astype(np.float64)
        word = rounded(word) if twice else word
        sums = rounded(sums.astype(np.float64) + word)
    return sums


def unkind(rng, m, n, k):
    """Operands of one sign; ones whose sums cancel; ones of many sizes; a 1 before many terms just below its unit."""
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    yield abs(a), abs(b)
    yield np.concatenate([a, a], 1), np.concatenate([b, -b], 0)
    yield tuple(np.ldexp(x, rng.integers(-10, 5, x.shape)).astype(np.float16) for x in (a, b))
    small = np.full((1, k), 2.0**-12, np.float16)
    small[0, 0] = 1
    yield small, np.where(np.arange(k)[:, None] == 0, 1, np.float16(1.5 * 2.0**-12)).astype(np.float16)


@pytest.mark.parametrize("twice", [False, True], ids=["a word exact", "a word rounded"])
@pytest.mark.parametrize("rounded", [nearest, truncated], ids=lambda rounded: rounded.__name__)
def test_sums_by_words_are_within_the_bound(rounded, twice):
    """Intel documents the order of the sums, not how they are rounded: four ways are within the bound."""
    rng = np.random.default_rng(0)
    for a, b in unkind(rng, 13, 11, 2000):
        sums = by_words(a, b, rounded, twice=twice)
        wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
        check_close(sums, exact(wide_a, wide_b, None, 1.0, 0.0))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gfx1100", {"rdna", "amd_wmma"}),
        ("gfx1151:xnack-", {"rdna", "amd_wmma"}),
        ("gfx1201", {"rdna", "amd_wmma", "amd_wmma_gfx12"}),
        ("gfx1036", {"rdna"}),
        ("gfx90a:sramecc+:xnack-", set()),
        ("gfx1250", {"rdna"}),  # has other instructions
        ("AMD Radeon RX 7900 XTX (radeonsi, navi31, LLVM 19.1.7)", set()),  # Mesa's compiler has no builtins of AMD's
    ],
)
def test_amds_gpus_are_known_by_their_names(name, found):
    assert backend._amd(name) == found


@pytest.mark.parametrize(
    ("name", "types"), [("gfx1100", {"s8s32", "u8s32"}), ("gfx1200", {"h", "b", "s8s32", "u8s32"})]
)
def test_rows_for_amd_need_their_generation(name, types):
    gpu = Device("opencl", "opencl:7", name, "a platform", kind="gpu", features=frozenset(backend._amd(name)))
    able = [row for row in WMMA if not unavailable(row, gpu)]
    assert len(able) == 2 * len(types)
    assert {row.name.partition("gemm_")[0] for row in able} == types
    assert all(row.chosen_on("gpu", gpu.features) and not row.chosen_on("cpu", gpu.features) for row in able)


def kept(terms, bits):
    """float64 terms without what is below 2**-bits of the largest power of two in the last axis, toward -infinity."""
    _, top = np.frexp(np.abs(terms).max(-1, keepdims=True))
    grid = np.ldexp(1.0, top - 1 - bits)
    return np.floor(terms / grid) * grid


def by_fours(a, b):
    """a times b as AMD's simulator of gfx1201 sums them: four products along k, by pairs, added to a float32 sum."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for p in range(0, a.shape[1], 4):
        products = np.einsum("ip,pj->ijp", a[:, p : p + 4].astype(np.float64), b[p : p + 4].astype(np.float64))
        pairs = kept(products.reshape(*sums.shape, 2, 2), 24).sum(-1)
        sums = kept(np.concatenate([sums[..., None].astype(np.float64), pairs], -1), 24).sum(-1).astype(np.float32)
    return sums


def test_sums_by_fours_are_within_the_bound():
    rng = np.random.default_rng(0)
    for a, b in unkind(rng, 13, 11, 2000):
        wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
        check_close(by_fours(a, b), exact(wide_a, wide_b, None, 1.0, 0.0))
    a, b = rng.integers(-9, 10, (13, 400)), rng.integers(-9, 10, (400, 11))
    assert np.array_equal(by_fours(a, b), a @ b)


def test_the_catalog_has_each_type_for_each_size():
    assert len(WMMA) == 8
    assert len(ROWS) == 24
    assert all(BY_NAME[row.name] is row for row in ROWS + WMMA)
