"""backend="cuda:all" on several emulated GPUs."""

import gc
import json
from functools import cache

import helpers
import numpy as np
import pytest
from helpers import ROOT, forget_drivers, machine, probed, products, rand, run
from numpy.testing import assert_array_equal

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.core import operands
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Problem, Split
from gemm.execute import split
from gemm.select import probe, verification

M, N, K = 97, 74, 41
ALL = "cuda:all"


@pytest.fixture
def emulate(monkeypatch):
    """emulate(count, ...) is so many emulated GPUs, of which the probe is said to have found that `tile` is right."""

    def machine(count, **settings):
        helpers.emulate(monkeypatch, "5.3", devices=count, pools=1, sms=2, **{"streams": "late", **settings})
        monkeypatch.setattr(registry, "backend", cache(registry.backend.__wrapped__))
        devices = registry.backend("cuda").devices()
        monkeypatch.setattr(probe, "recalled", probe.Recalled({probe.entry(): probed(*((x, {}) for x in devices))}))
        verdict = {True: {"ok": True, "error": ""}, False: {"ok": False, "error": "for the test"}}
        monkeypatch.setattr(
            verification, "record", lambda kernel, device, **_: verdict[kernel.name.endswith("cuda_tile")]
        )
        monkeypatch.setattr(verification, "_failed", {})
        monkeypatch.setattr(verification, "_lost", {})
        monkeypatch.setattr(split, "START", 0.0)
        monkeypatch.setattr(split, "GAIN", 9.0)  # whatever a split gains
        execute.forget()
        return devices

    yield machine
    execute.forget()
    gc.collect()  # arrays give their memory back to this machine
    forget_drivers()


@pytest.fixture(params=[2, 3, 4])
def gpus(request, emulate):
    """What is enqueued happens when it is waited for with three of them, else at any time."""
    return emulate(request.param, streams="late" if request.param == 3 else "mixed")


@pytest.fixture(params=["late", "mixed"])
def two(request, emulate):
    """What is enqueued happens when it is waited for, or at any time."""
    return emulate(2, streams=request.param)


def divided(*operands, **options):
    """The plan of a product, which must be split."""
    plan = execute.choose(gemm.plan(*operands, backend=ALL, **options)._problem, ALL)
    assert isinstance(plan, Split)
    return plan


# Operands on the host.


def the_same(*operands, out=None, **options):
    """The bits of the CPU, on several GPUs, with and without an out."""
    options["reproducible"] = True
    assert len({side.device.key for side in divided(*operands, out=out, **options).sides}) > 1
    right = gemm.gemm(*operands, backend="cpu", **options)
    assert_array_equal(gemm.gemm(*operands, backend=ALL, **options), right)
    if out is not None:
        assert gemm.gemm(*operands, backend=ALL, out=out, **options) is out
        assert_array_equal(out, right)


PRODUCTS = products(M, N, K) | {
    "wide": ((rand(3, K), rand(K, 200)), {}),
    "no terms": ((rand(M, 0), rand(0, N), rand(M, N)), {"beta": 2.0}),
    "no factor": ((rand(M, K), rand(K, N), rand(M, N)), {"alpha": 0, "beta": 2.0}),
}


def pairwise(names):
    """Each name with one of the numbers of GPUs."""
    return pytest.mark.parametrize(("gpus", "name"), [(2 + i % 3, x) for i, x in enumerate(names)], indirect=["gpus"])


@pairwise(PRODUCTS)
def test_host_operands(gpus, name):
    operands, options = PRODUCTS[name]
    the_same(*operands, **options)


@pairwise(["float16", "bfloat16", "float32", "int32", "complex64"])
def test_types(gpus, name):
    dtype = operands.named(name, "test")
    a, b, c = (np.trunc(4 * rand(*shape)).astype(dtype) for shape in ((M, K), (K, N), (M, N)))
    wide = np.dtype("f4" if name.endswith("16") else dtype)
    right = (2 * (a.astype(wide) @ b.astype(wide)) + c.astype(wide)).astype(dtype)  # all of it is exact
    assert len(divided(a, b, c, alpha=2, beta=1).sides) > 1
    found = gemm.gemm(a, b, c, alpha=2, beta=1, backend=ALL)
    assert_array_equal(found.astype(wide), right.astype(wide))


def test_out_may_be_an_operand(gpus):
    a, b = rand(M, M), rand(M, M).T
    right = gemm.gemm(a, b, a, beta=0.5, backend="cpu", reproducible=True)
    assert gemm.gemm(a, b, a, beta=0.5, out=a, backend=ALL, reproducible=True) is a
    assert_array_equal(a, right)


# Operands on one GPU, which multiplies them.


def resident(*operands, on=0):
    """Copies on a GPU."""
    backend = registry.backend("cuda")
    device = backend.devices()[on]
    return [None if x is None else backend.to_device(x, device).owner for x in operands]


def multiplied_there(a, b, c=None, **options):
    """The bits of the CPU, of operands on the second GPU, which computes them."""
    right = gemm.gemm(a, b, c, backend="cpu", reproducible=True, **options)
    x, y, z = resident(a, b, c, on=1)
    assert gemm.plan(x, y, z, backend=ALL, reproducible=True, **options).device == "cuda:1"
    found = gemm.gemm(x, y, z, backend=ALL, reproducible=True, **options)
    assert_array_equal(found.copy_to_host(), right)
    assert found.device.key == "cuda:1"


@pytest.mark.parametrize("name", ["plain", "transposed", "beta", "a stack of large ones"])
def test_operands_on_one_gpu(two, name):
    operands, options = PRODUCTS[name]
    multiplied_there(*operands, **{key: x for key, x in options.items() if key != "out"})


# What fails.


@pytest.mark.parametrize(("function", "status"), [("cuMemAllocFromPoolAsync", 2), ("cuLaunchKernel", 1)])
def test_a_gpu_that_fails_is_made_up_for(gpus, monkeypatch, function, status):
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    monkeypatch.setenv("CUDA_MACHINE_FAIL", f"{function}@1:1:{status}:sticky")
    assert gemm.gemm(a, b, c, beta=0.5, backend=ALL, out=c, reproducible=True) is c
    monkeypatch.delenv("CUDA_MACHINE_FAIL")
    assert_array_equal(c, right)
    assert {key for _, key in verification._failed} == ({"cuda:1"} if status == 1 else set())
    assert gemm.gemm(a, b, backend=ALL).shape == (M, N)


def test_where_every_gpu_fails_it_is_told(two, monkeypatch):
    a, b = rand(M, K), rand(K, N)
    x, y = resident(a, b)
    out = gemm.gemm(x, y, backend=ALL)
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuMemAllocFromPoolAsync:1:2:sticky")
    with pytest.raises(MemoryError, match="OUT_OF_MEMORY"):
        gemm.gemm(a, b, backend=ALL)
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuLaunchKernel:1:1:sticky")
    with pytest.raises(BackendUnavailable, match="INVALID_VALUE"):
        gemm.gemm(x, y, backend=ALL, out=out)


def test_one_gpu_is_told(emulate):
    emulate(1)
    (x,) = resident(rand(8, 8))
    for call in (lambda: gemm.gemm(rand(8, 8), rand(8, 8), backend=ALL), lambda: gemm.gemm(x, x, backend=ALL)):
        with pytest.raises(BackendUnavailable, match="there is one GPU only"):
            call()


def test_a_prepared_matrix_is_one_devices(two):
    with pytest.raises(ValueError, match="one device"):
        gemm.prepare(rand(K, N), backend=ALL)


# How products are cut.


def test_bounds_follow_the_rates():
    assert split.bounds(100, [1, 1, 2], 10) == (0, 20, 50, 100)  # 25 rounds to even tens
    assert split.bounds(3, [1] * 4) == (0, 1, 2, 2, 3)
    assert split.bounds(0, [1, 1]) == (0, 0, 0)


def test_large_squares_are_cut_in_a_grid_and_tall_ones_by_rows(monkeypatch, gpus):
    square, tall = (execute.choose(Problem("float32", m, 512, 512), ALL) for m in (512, 4096))
    assert isinstance(square, Split)
    assert isinstance(tall, Split)
    assert [len(cut) for cut in square.cuts] == [2 if len(gpus) == 4 else 1] * len(gpus)
    assert [axis for cut in tall.cuts for axis, _, _ in cut] == ["m"] * len(gpus)
    assert "alone would take" in square.reason


def test_small_products_are_one_gpus(two, monkeypatch):
    monkeypatch.setattr(split, "GAIN", 0.95)
    monkeypatch.setattr(split, "START", 2e-4)
    execute.forget()
    plan = execute.choose(Problem("float32", 8, 8, 8), ALL)
    assert not isinstance(plan, Split)
    assert "more devices would not gain enough" in plan.reason
    x, y = resident(rand(8, 8), rand(8, 8), on=1)
    assert gemm.plan(x, y, backend=ALL).device == "cuda:1"
    assert_array_equal(
        gemm.gemm(x, y, backend=ALL, reproducible=True).copy_to_host(),
        gemm.gemm(rand(8, 8), rand(8, 8), backend="cpu"),
    )  # fmt: skip


@pytest.mark.slow
def test_the_benchmark_tells_speed_ups(tmp_path):
    file = tmp_path / "multi.json"
    options = "--rounds", "2", "--dtypes", "float32", "--json", file
    # The emulation is too slow for the probe, which computes until its limit, on each GPU.
    given = {**machine("5.3", devices=2, sms=2), "GEMM_PROBE_TIMEOUT": "8"}
    told = run("benchmarks/multi_gpu.py", "--size", "48", *options, cwd=ROOT, **given)
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "gemm-multi-gpu/1"
    assert len(document["devices"]) == 2
    assert document["absent"].keys() <= {"torch"}
    rows = [row for row in document["results"] if row["contestant"] == "gemm"]
    assert [row["gpus"] for row in rows] == [1, 2]
    for row in rows:
        assert row["speedup"] == pytest.approx(rows[0]["median"] / row["median"])
    assert f"{48:>6} {'float32':>9} {2:>4}" in told
