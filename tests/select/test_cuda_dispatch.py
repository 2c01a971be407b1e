"""What dispatch chooses on an H200, by the model alone: the family of kernels that ought to win each product."""

import re
from dataclasses import replace

import pytest

from gemm.catalog import BY_NAME, KERNELS, launch_arithmetic
from gemm.core.problem import Device, Problem
from gemm.select import candidates, cost, gpu_model

pytest.importorskip("ml_dtypes")

H200 = Device(
    "cuda", "cuda:0", "NVIDIA H200", kind="gpu",
    features=frozenset({"fp64", "sm_90a", *(f"sm_{x}" for x in (50, 53, 60, 61, 70, 75, 80, 86, 89, 90))}),
    limits={
        "sm_count": 132, "clock_mhz": 1980, "memory_gbs": 4917, "fp64_ratio": 2, "compute_capability": 90,
        "block_threads": 1024, "shared_memory": 48 << 10, "shared_memory_optin": 227 << 10, "l2_bytes": 50 << 20,
    },
)  # fmt: skip
PASCAL = Device(
    "cuda", "cuda:0", "a GeForce GTX 1080", kind="gpu",
    features=frozenset({"fp64", *(f"sm_{x}" for x in (50, 52, 53, 60, 61))}),
    limits={
        "sm_count": 20, "clock_mhz": 1733, "memory_gbs": 320, "fp64_ratio": 32, "compute_capability": 61,
        "block_threads": 1024, "shared_memory": 48 << 10, "shared_memory_optin": 48 << 10, "l2_bytes": 2 << 20,
    },
)  # fmt: skip

FP32 = {"dtype": "float32"}
HIGH, TF32 = {**FP32, "precision": "high"}, {**FP32, "precision": "medium"}
BF16, FP16, FP64 = {"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "float64"}
BF16_32 = {**FP32, "inputs": ("bfloat16", "bfloat16")}
INT8 = {"dtype": "int32", "inputs": ("int8", "int8")}
FP8 = {"dtype": "bfloat16", "inputs": ("float8_e4m3fn", "float8_e5m2"), "precision": "medium"}


def weighed(device, m, n, k, batch=1, **options):
    """Every candidate, the best first."""
    problem = Problem(options.pop("dtype"), m, n, k, batch, device=device.key, **options)
    names = {"m": m, "n": n, "k": k, "batch": batch, **device.limits}
    rows = [
        row for row in KERNELS
        if row.backend == "cuda" and not candidates.unfit(row, problem) and not candidates.unavailable(row, device)
        and row.chosen_on(device.kind, device.features) and not row.illegal(names) and row.suited(names)
    ]  # fmt: skip
    return sorted((cost.predict(row, device, problem, None) for row in rows), key=lambda c: c.seconds)


def best(*shape, device=H200, **options):
    return weighed(device, *shape, **options)[0].kernel.name


def is_of(family, name):
    return re.fullmatch(rf"\w+gemm_cuda_({family})_\w+", name)


@pytest.mark.parametrize("n", [512, 640, 1024, 1536, 2048, 3072, 4096, 8192, 16384])
@pytest.mark.parametrize(
    ("options", "family"),
    [
        (FP32, "ffma"), (HIGH, "emulated|kmajor_tf32"), (TF32, "kmajor_tf32"), (BF16, "wgmma"), (FP16, "wgmma"),
        (BF16_32, "wgmma"), (INT8, "kmajor"), (FP8, "kmajor"), ({**FP8, "precision": "highest"}, "wgmma"),
    ],
    ids=["fp32", "high", "tf32", "bf16", "fp16", "bf16-fp32", "int8", "fp8", "fp8-highest"],
)  # fmt: skip
def test_squares_go_to_the_family_of_their_type(n, options, family):
    if n < 1024 and options is HIGH:
        family = "emulated|ffma"
    assert is_of(family, best(n, n, n, **options))


def test_large_tiles_are_for_large_products():
    assert best(8192, 8192, 8192, **FP32) == "sgemm_cuda_ffma_tma_128x128"
    assert best(8192, 8192, 8192, **BF16) == "bgemm_cuda_wgmma_128x256"
    assert best(8192, 8192, 8192, **TF32) == "sgemm_cuda_kmajor_tf32_128x256"
    for options in (FP32, BF16, TF32, INT8, FP8):
        row = BY_NAME[best(256, 256, 256, **options)]
        assert row.params["BM"] * row.params["BN"] <= 128 * 64
    assert is_of("emulated_fp16x3", best(8192, 8192, 8192, **HIGH))


@pytest.mark.parametrize(
    ("shape", "family"),
    [
        ((512,) * 3, "dmma"), ((1024,) * 3, "dmma"), ((2048,) * 3, "kmajor_residues"), ((8192,) * 3, "kmajor_residues"),
        ((64, 4096, 4096), "dmma"), ((1, 8192, 8192), "gemv"), ((8192, 8192, 64), "dmma"),
        ((1024, 1024, 131072), "dmma"), ((32768, 32768, 32768), "dmma"),
    ],
)  # fmt: skip
def test_large_doubles_of_less_precision_go_by_residues(shape, family):
    assert is_of(family, best(*shape, **FP64, precision="high"))
    assert not is_of("kmajor_residues", best(*shape, **FP64))


def test_the_steps_of_residues_are_counted():
    """The planes are written and read, and the model says so: the gain is less than that of the arithmetic alone."""
    high, native = (
        next(c.seconds for c in weighed(H200, 8192, 8192, 8192, **FP64, precision="high") if name in c.kernel.name)
        for name in ("residues_128x256", "dmma_128x64")
    )
    assert 1.35 < native / high < 1.55


@pytest.mark.parametrize(
    "shape", [(64, 4096, 4096), (4096, 64, 4096), (16, 8192, 8192), (256, 256, 16384), (128, 576, 7168)]
)
@pytest.mark.parametrize(("options", "family"), [(FP32, "ffma"), (BF16, "wgmma")], ids=["fp32", "bf16"])
def test_skinny_products_fill_the_chip_by_cutting_k_or_by_small_tiles(shape, options, family):
    first = weighed(H200, *shape, **options)[0]
    row = first.kernel
    assert is_of(family, row.name)
    count = launch_arithmetic.groups(
        row, *(shape[1::-1] if row.swap and row.swaps(*shape[:2], "NNN") else shape[:2]), 1
    )
    used = count * launch_arithmetic.parts(row, count, shape[2], 132) * row.params.get("MULTICAST", 1)
    assert used >= 0.6 * 132


@pytest.mark.parametrize("options", [FP32, BF16, FP16, FP64], ids=["fp32", "bf16", "fp16", "fp64"])
def test_many_tiny_products_share_blocks(options):
    for batch, n in ((10000, 16), (100000, 4), (2000, 10)):
        assert is_of("small", best(n, n, n, batch, **options))
    assert not is_of("small", best(512, 512, 512, 64, **options))


@pytest.mark.parametrize("options", [FP32, BF16, FP16, FP64, INT8, BF16_32],
                         ids=["fp32", "bf16", "fp16", "fp64", "int8", "bf16-fp32"])  # fmt: skip
def test_few_k_and_a_large_result_go_to_who_stores_it_fastest(options):
    for m, n in ((4096, 4096), (8192, 8192), (3624, 7788), (6266, 3615)):
        assert is_of("outer", best(m, n, 2, **options))
        assert not is_of("outer", best(m, n, 256, **options))
    assert is_of("outer", best(6266, 3615, 8, reproducible=True, **options))
    assert not is_of("outer", best(512, 512, 64, **options))
    assert not is_of("outer", best(64, 4096, 4096, **options))


def test_a_result_of_ragged_rows_takes_longer():
    problem = Problem("float32", 4096, 4095, 8, device="cuda:0")
    for name, least, most in ("sgemm_cuda_ffma_128x256", 1.3, 3.0), ("sgemm_cuda_outer_128x128", 1.1, 1.5):
        ragged, turned, even = (
            cost.predict(BY_NAME[name], H200, x, None).seconds - gpu_model.CALL
            for x in (problem, replace(problem, layout="TTT", m=4095, n=4096), replace(problem, n=4096))
        )
        assert least < ragged / even < most
        assert ragged == pytest.approx(turned, rel=0.01)


def test_operands_that_lie_wrong_cost_their_copy():
    row = BY_NAME["sgemm_cuda_kmajor_tf32_128x256"]
    problem = Problem("float32", 4096, 4096, 4096, layout="NTN", device="cuda:0", precision="medium")

    def launched(layout):
        return cost.predict(row, H200, replace(problem, layout=layout), None)

    whole, other = launched("NTN"), launched("SSN")
    assert other.launch == pytest.approx(whole.launch + 2 * gpu_model.LAUNCH)
    assert other.seconds > whole.seconds + 2 * (2 * 4 * 4096**2) / 4917e9


def test_rows_of_the_result_that_are_not_aligned_cost_their_stores():
    """Blocks that share a multiprocessor hide them behind each other's arithmetic, a persistent one does not."""
    for name, hidden in (("sgemm_cuda_ffma_64x64", True), ("sgemm_cuda_ffma_128x128", False),
                         ("sgemm_cuda_ffma_tma_128x128_along_k", False)):  # fmt: skip
        row = BY_NAME[name]
        whole, odd = (
            cost.predict(row, H200, Problem("float32", 8192, n, 1024, device="cuda:0", layout="NTN"), None)
            for n in (8192, 8191)
        )
        stores = 1e-9 * row.scattered * 8192 * 8191 / 132
        assert odd.compute - whole.compute == pytest.approx(0.1 * stores if hidden else stores, rel=0.02)


def test_a_result_that_is_stored_turned_costs_its_stores():
    """Where a row computes out' of few columns; but kernels with tensor maps turn it on the way."""
    for row in (row for row in KERNELS if row.backend == "cuda" and row.swap and "gemv" not in row.name):
        problem = Problem(row.dtype, 128, 8192, 64, inputs=row.inputs, device="cuda:0")
        if not row.swaps(128, 8192, "NNN"):
            problem = replace(problem, m=8192, n=128)
        down, along = (cost.predict(row, H200, replace(problem, layout=x), None).compute for x in ("NNN", "NNT"))
        if row.params.get("maps"):
            assert down == along
        else:
            assert down > along + 0.09e-9 * row.scattered * 128 * 8192 / 132


def test_a_launch_begins_early_where_blocks_have_a_multiprocessor_each():
    def launch(name, m, device=H200):
        row = BY_NAME[name]
        return cost.predict(row, device, Problem(row.dtype, m, 8, 15, device="cuda:0"), None).launch

    assert launch("dgemm_cuda_dmma_16x128", 16 * 132) == gpu_model.CALL
    assert launch("dgemm_cuda_dmma_16x128", 16 * 133) == gpu_model.CALL + gpu_model.APART  # two share one
    assert launch("sgemm_cuda_small_16x16", 16) == gpu_model.CALL + gpu_model.APART  # which nothing keeps from that
    assert launch("sgemm_cuda_ffma_128x256", 16 * 8192) == launch("sgemm_cuda_gemv_8", 8192) == gpu_model.CALL
    assert launch("sgemm_cuda_tile", 16, PASCAL) == gpu_model.CALL  # launches of others do not overlap at all


def test_elements_that_are_copied_one_by_one_cost_their_time():
    def compute(name, m, n, k, layout="NNN", inputs=()):
        problem = Problem(BY_NAME[name].dtype, m, n, k, layout=layout, inputs=inputs, device="cuda:0")
        return cost.predict(BY_NAME[name], H200, problem, None).compute

    small, large = (
        compute(name, 4096, 4096, 4095, "NTN") - compute(name, 4096, 4096, 4096, "NTN")
        for name in ("dgemm_cuda_dmma_16x128", "dgemm_cuda_dmma_64x64")
    )
    assert small > 1.5 * large > 0  # which loads fewer elements for as many sums
    ffma = "sgemm_cuda_ffma_64x64"
    assert compute(ffma, 4096, 4096, 1023) <= compute(ffma, 4096, 4096, 1024)  # a comes so anyway, as in its rate
    assert compute(ffma, 4096, 4096, 1024, "NTN") > compute(ffma, 4096, 4096, 1024)  # and so does b along k
    packed = "sgemm_cuda_ffma_tma_128x128_along_k"
    assert compute(packed, 512, 8191, 8192) > compute(packed, 512, 8192, 8192) + gpu_model.ALONE * 8191 * 8192 / 132
    turned, straight = (
        compute("s8s32gemm_cuda_kmajor_64x64", 64, 8191, 8191, layout, ("int8", "int8")) for layout in ("NNN", "NTN")
    )
    assert turned - straight == pytest.approx(gpu_model.ALONE * 8191**2 / 132, rel=0.01)  # one by one there, too


@pytest.mark.parametrize(
    ("shape", "options", "kernel"),
    [
        ((557, 1404, 5315), INT8, "s8s32gemm_cuda_kmajor_128x64"),
        ((5, 5502, 6717), INT8, "s8s32gemm_cuda_kmajor_128x64"), ((1597, 5382, 40), FP16, "hgemm_cuda_wgmma_192x192"),
        ((119, 970, 143), BF16, "bgemm_cuda_tile"), ((14, 1, 665, 417), FP32, "sgemm_cuda_gemv_1"),
        ((5314, 371, 344, 5), FP32, "sgemm_cuda_ffma_tma_128x128_along_k"),
    ],
    ids=str,
)  # fmt: skip
def test_what_was_the_soonest_on_an_h200_is_chosen(shape, options, kernel):
    """By benchmarks/results/2026-11-24-h200-auto/auto_regret*.json, where these differ by a fifth and more."""
    assert best(*shape, **options) == kernel


def test_a_swapped_product_is_the_same_product():
    """out in columns: out' = b' a', as the launches have it."""
    for row in (row for row in KERNELS if row.backend == "cuda" and not row.swap and "float" in row.dtype):
        problem = Problem(row.dtype, 300, 5000, 700, device="cuda:0", inputs=row.inputs)
        turned = replace(problem, m=5000, n=300, layout="TTT", inputs=row.inputs[::-1])
        assert cost.predict(row, H200, turned, None).compute == cost.predict(row, H200, problem, None).compute


def test_older_gpus_run_what_they_have_instructions_for():
    assert best(2048, 2048, 2048, device=PASCAL, **FP32) == "sgemm_cuda_ffma_held_64x64"
    assert best(2048, 2048, 2048, device=PASCAL, **BF16) in ("bgemm_cuda_tile", "bgemm_cuda_small_64x64")
    slow, fast = (weighed(gpu, 2048, 2048, 2048, **FP32)[0].seconds for gpu in (PASCAL, H200))
    assert 5 < slow / fast < 20
    assert weighed(PASCAL, 2048, 2048, 2048, **FP64)[0].seconds > 8 * slow


def test_reproducible_products_are_not_cut():
    options = {"device": "cuda:0", "reproducible": True}
    row = BY_NAME["sgemm_cuda_ffma_64x64"]
    whole, cut = (
        cost.predict(row, H200, replace(Problem("float32", 64, 64, 65536, **options), reproducible=x), None)
        for x in (True, False)
    )
    assert cut.seconds < whole.seconds / 3


def test_what_a_row_says_of_its_time_is_no_parameter():
    """They are whole numbers, which kernels are compiled with and hosts go by."""
    assert all(isinstance(value, int) for row in KERNELS for value in row.params.values())


ROWS = [row for row in KERNELS if row.backend == "cuda"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parts_of_k_are_clusters_and_none_is_empty(row):
    for units in (1, 6, 132):
        for k in (0, 1, 31, 64, 700, 5003, 65536):
            steps = max(1, -(-k // row.params.get("BK", 1)))
            for count in (1, 3, 100, 5000):
                found = launch_arithmetic.parts(row, count, k, units)
                assert 1 <= found <= max(1, min(row.params.get("parts", 1), 8 // row.params.get("MULTICAST", 1)))
                assert (found - 1) * -(-steps // found) < steps


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("device", [H200, PASCAL], ids=lambda device: device.name)
def test_bounds_stay_below_predictions(row, device):
    soonest = cost.Bound(row, device, [], moved=False)
    shapes = (1, 1, 1), (5, 7, 0), (37, 41, 43), (5000, 3, 700), (3, 5000, 700), (128, 4096, 64), (4096, 4096, 4096)
    for shape in shapes:
        for batch, layout, ordered in ((1, "NNN", False), (1, "NTN", True), (100, "TNT", False)):
            problem = Problem(row.dtype, *shape, batch, layout=layout, device=device.key, inputs=row.inputs,
                              reproducible=ordered and row.ordered)  # fmt: skip
            found = cost.predict(row, device, problem, None).seconds
            assert soonest.seconds(problem, problem.flops, problem.moved) <= found * (1 + 1e-9)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_can_be_weighed(row):
    for shape in ((1, 1, 1), (37, 41, 43), (5000, 3, 700), (3, 5000, 700), (4096, 4096, 4096)):
        for layout in ("NNN", "TTT", "SSS", "NTN"):
            problem = Problem(row.dtype, *shape, layout=layout, device="cuda:0", inputs=row.inputs)
            assert 2e-6 < cost.predict(row, H200, problem, None).seconds < 1
