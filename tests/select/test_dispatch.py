"""Choosing, demoting, and devices whose drivers crash, hang or compute garbage."""

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import helpers
import numpy as np
import pytest
from helpers import at_once, python
from numpy.testing import assert_array_equal

import gemm
from gemm import cli, execute
from gemm.backends import registry
from gemm.catalog import BACKENDS, BY_NAME, KERNELS, Kernel
from gemm.cli import tune
from gemm.core import disk_cache, threads
from gemm.core.backend import Backend
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device, Problem, Rates
from gemm.frontend import inventory
from gemm.select import calibration, candidates, cost, probe, verification, worker
from gemm.select import measure as measuring
from gemm.select.measure import measure

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(20, dtype=np.float32).reshape(4, 5)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test starts without demotions and cached choices, and leaves none."""
    monkeypatch.setattr(verification, "_failed", {})
    monkeypatch.setattr(verification, "_lost", {})
    verification.forget_choices()
    yield
    verification.forget_choices()


def test_importing_and_small_products_load_no_device_library_and_start_no_thread():
    """Not in Python, nor in the process: no driver is mapped, and there are no more threads than NumPy started."""
    python(
        """
        import os, re, sys, threading
        from pathlib import Path
        import numpy as np
        def threads():
            return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else threading.active_count()
        before = threads()
        import gemm
        for n in (1, 8, 64, 128):
            a = np.ones((n, n), np.float32)
            right = np.full((n, n), n)
            with gemm.use():
                products = gemm.gemm(a, a), a @ a, np.matmul(a, a), gemm.einsum("ij,jk", a, a), gemm.plan(a, a)(a, a)
            products += (gemm.gemm(a, gemm.prepare(a)), gemm.gemm([a, a], a)[1], gemm.gemm(a, a, reproducible=True))
            for product in products:
                np.testing.assert_array_equal(product, right)
        loaded = [m for m in sys.modules if m.partition(".")[0] in ("pyopencl", "cuda", "torch", "cupy")]
        assert not loaded, loaded
        assert threading.active_count() == 1
        assert threads() == before
        if sys.platform == "linux":
            mapped = set(re.findall(r"/\\S+", Path("/proc/self/maps").read_text()))
            drivers = [x for x in mapped if re.search(r"opencl|libcuda|nvrtc|pocl|level_zero|libze_", x, re.IGNORECASE)]
            assert any("_cpu." in x for x in mapped), mapped
            assert not drivers, drivers
        """,
        GEMM_NUM_THREADS="1",
    )


def test_small_products_go_to_the_cpu_and_say_so():
    chosen = gemm.plan(A, B)
    assert BY_NAME[chosen.kernel].backend == "cpu"
    assert chosen.device == "cpu:0"


def test_a_target_of_another_machine_is_unavailable_with_the_reason():
    target = "neon" if "neon" not in registry.backend("cpu").devices()[0].features else "avx2"
    with pytest.raises(gemm.BackendUnavailable, match=f"needs .*{target}"):
        gemm.gemm(A, B, backend=target)


def test_a_problem_is_chosen_for_once():
    problem = Problem("float32", 30, 31, 32)
    assert execute.choose(problem) is execute.choose(problem)


def test_the_model_sends_small_products_to_the_cpu_and_large_ones_to_a_fast_device():
    """The source documents' rule, from the launch and transfer terms alone."""
    row = BY_NAME["sgemm_cuda_tile"]
    gpu = Device("cuda", "cuda:0", "a GPU", kind="gpu")
    gpu_rates = Rates(launch=1e-5, flops=5e12, upload=2e10, download=2e10)
    cpu = Device("cpu", "cpu:0", "a CPU", limits={"threads": 4})
    cpu_rates = Rates(launch=2e-6, flops=2e11)

    def seconds(n, place="host"):
        problem = Problem("float32", n, n, n, device=place)
        there = cost.predict(row, gpu, problem, gpu_rates).seconds
        here = cost.predict(BY_NAME["sgemm_scalar_4x4"], cpu, problem, cpu_rates).seconds
        return here, there

    here, there = seconds(64)
    assert here < there
    here, there = seconds(4096)
    assert there < here
    # Operands that are resident pay no transfer.
    assert seconds(1024, "cuda:0")[1] < seconds(1024)[1]


GPU = Device("opencl", "opencl:9", "a GPU", kind="gpu", limits={"compute_units": 132})


def weigh(name, rates, *shape, **problem):
    return cost.predict(BY_NAME[name], GPU, Problem("float32", *shape, device=GPU.key, **problem), rates).seconds


def test_the_model_counts_idle_units_and_launches():
    rates = Rates(launch=1e-5, flops=4e13)
    tile, small = "sgemm_generic_tile_128x128", "sgemm_generic_tile_64x32"
    # Four groups on 132 units: not slower per group than 132 of them.
    assert weigh(tile, rates, 256, 256, 64) == weigh(tile, rates, 1408, 1536, 64)
    assert weigh(small, rates, 256, 256, 256) < weigh(tile, rates, 256, 256, 256)
    assert weigh(tile, rates, 8192, 8192, 8192) == pytest.approx(1e-5 + 2 * 8192**3 / 4e13, rel=0.05)
    # Shared sums cost a second launch, which a reproducible product, whose k is not split, does without.
    split, whole = (weigh(tile, rates, 128, 128, 8192, reproducible=ordered) for ordered in (False, True))
    assert 2e-5 < split < whole


def test_the_model_counts_passes_over_what_a_kernel_streams():
    rates = Rates(launch=1e-5, flops=4e13, memory=4e12)
    few, more, image = "sgemm_generic_skinny_4x4", "sgemm_generic_skinny_16x4", "sgemm_generic_tile_64x64"
    once = weigh(few, rates, 4, 4096, 4096, batch=8)
    assert once == pytest.approx(1e-5 + 8 * 4 * 4096**2 / 4e12, rel=0.1)
    assert weigh(few, rates, 5, 4096, 4096, batch=8) == pytest.approx(
        cost.MOST_PASSES * once, rel=0.15
    )  # b comes twice, and once from a cache
    assert weigh(more, rates, 5, 4096, 4096, batch=8) < 1.2 * once
    assert weigh(few, replace(rates, memory=0.0), 4, 4096, 4096, batch=8) < once / 2
    assert weigh("sgemm_generic_dot_16x4", rates, 4096, 4, 4096) == pytest.approx(1e-5 + 4 * 4096**2 / 4e12, rel=0.2)
    assert weigh(image, rates, 4096, 4096, 4096) < 1.2 * weigh(image, replace(rates, memory=0.0), 4096, 4096, 4096)


def test_the_model_counts_what_is_loaded_by_elements():
    rates = Rates(launch=1e-5, flops=4e13)
    direct = "sgemm_generic_tile_direct_32x32"
    whole = weigh(direct, rates, 1024, 1024, 1024)
    assert 1.2 * whole < weigh(direct, rates, 1024, 1024, 1023) < weigh(direct, rates, 1024, 1023, 1023) < 2 * whole
    turned = weigh(direct, rates, 1023, 1024, 1024, layout="TNN")
    assert whole < turned == pytest.approx(weigh(direct, rates, 1024, 1023, 1024, layout="NNN"), rel=0.01)
    # A work-item that reads memory for each step waits for it, unless others of its unit have enough to do.
    naive = "sgemm_generic_naive"
    assert weigh(naive, rates, 8, 16, 4096) == weigh(naive, rates, 8 * 132, 16 * 8, 4096)


@pytest.mark.parametrize("shape", [(8, 8, 8), (32, 32, 32), (1, 2048, 2048), (1024, 1024, 1024)])
def test_noise_of_the_memorys_rate_chooses_no_cpu_kernel(shape):
    """Reading takes most of a small product's time, and the kernels for one type read the same memory."""
    host = Device("cpu", "cpu:0", "a CPU")
    fast, slow = "sgemm_avx512_12x32", "sgemm_avx2_6x16"
    facts = helpers.probed((host, {
        fast: {"launch": 2e-6, "flops": 1e11, "memory": 1.0e10},
        slow: {"launch": 2e-6, "flops": 6e10, "memory": 1.5e10},
        "zgemm_scalar_2x4": {"launch": 2e-6, "flops": 1e9, "memory": 2e9},
    }))  # fmt: skip
    problem = Problem("float32", *shape)
    times = [
        cost.predict(BY_NAME[name], host, problem, facts.rates(BY_NAME[name], host)).seconds for name in (fast, slow)
    ]
    assert times[0] < times[1]
    assert facts.rates(BY_NAME["zgemm_scalar_2x4"], host).memory == 2e9  # a rate of other types


def test_only_gpus_have_the_memory_timed_that_a_kernel_streams():
    asked = []

    def timed(m, n, k, row):
        asked.append((m, n, k))
        return 1e-5 + 4.0 * (m * k + k * n + m * n) / 4e12

    skinny, dot, tile = (BY_NAME[f"sgemm_generic_{form}"] for form in ("skinny_4x4", "dot_16x4", "tile_64x64"))
    for row in (skinny, dot):
        assert measuring._streamed(timed, row, GPU, 1e-5) == pytest.approx(4e12)
        m, n, k = asked[-1]
        assert row.groups(m, n) == row.groups(m, n) * k // row.share(k, row.groups(m, n), 132) == 4 * 132
        assert 0.9 * measuring.READ < 4 * k * max(m, n) <= measuring.READ  # one wave of groups, which share no k
    assert measuring._streamed(timed, tile, GPU, 1e-5) == 0
    assert measuring._streamed(timed, skinny, replace(GPU, kind="cpu"), 1e-5) == 0
    measuring._streamed(timed, skinny, replace(GPU, limits={"compute_units": 4, "max_alloc": 1 << 20}), 1e-5)
    assert 4 * asked[-1][1] * asked[-1][2] == 1 << 20
    assert len(asked) == 3


def test_the_model_counts_the_packing_of_operands():
    rates = Rates(launch=1e-5, flops=4e13, staged=3e-4)
    tile, naive, image = "sgemm_generic_tile_64x64", "sgemm_generic_naive", "sgemm_adreno_image_8x4"
    assert weigh(tile, rates, 64, 64, 64) < 1e-4
    for shape, layout in (((64, 64, 63), "NNN"), ((63, 64, 64), "NNN"), ((64, 64, 64), "TNN"), ((64, 64, 64), "NTN")):
        assert weigh(tile, rates, *shape, layout=layout) > 3e-4
        assert weigh(naive, rates, *shape, layout=layout) < 1e-4
    assert weigh(image, rates, 64, 64, 64) > 3e-4
    turned = "sgemm_adreno_turned_8x8"
    assert weigh(turned, rates, 64, 64, 64, layout="TNN") < 1e-4 < weigh(turned, rates, 64, 64, 64)


def test_packing_takes_as_long_as_the_memory_does():
    known = Rates(launch=1e-5, flops=4e13, staged=3e-4, memory=4e12)
    tile, shape = "sgemm_generic_tile_64x64", (8192, 64, 8191)
    packed, aligned = weigh(tile, known, *shape), weigh(tile, known, 8192, 64, 8192)
    assert packed - aligned == pytest.approx(3e-4 + cost.PACKING * 4 * (8192 + 64) * 8191 / 4e12, rel=0.01)


def test_one_kernel_times_the_memory_for_all_of_a_device():
    forms = {"skinny_4x4": 4e12, "skinny_16x4": 3e12, "tile_64x64": 0.0}
    facts = helpers.probed((GPU, {
        f"sgemm_generic_{form}": {"launch": 1e-5, "flops": 4e13, "memory": rate} for form, rate in forms.items()
    }))  # fmt: skip
    found = {form: facts.rates(BY_NAME[f"sgemm_generic_{form}"], GPU).memory for form in forms}
    assert found == {**forms, "tile_64x64": 4e12}
    for form in forms:
        row = BY_NAME[f"sgemm_generic_{form}"]
        soonest = cost.Bound(row, GPU, [facts.rates(row, GPU)], moved=False)
        for shape in ((1, 1, 1), (5, 7, 0), (4, 4096, 4096), (37, 41, 43), (4096, 3, 700), (2048, 2048, 2048)):
            problem = Problem("float32", *shape, device=GPU.key)
            found = cost.predict(row, GPU, problem, facts.rates(row, GPU)).seconds
            assert soonest.seconds(problem, problem.flops, problem.moved) <= found * (1 + 1e-9)


def random_rates(rng):
    """Rates as probes find them, some of them not there."""
    found = {"launch": 10 ** rng.uniform(-6, -3), "flops": 10 ** rng.uniform(9, 14)}
    for name, span in (("upload", (8, 11)), ("download", (8, 11)), ("memory", (9, 13)), ("start", (-6, -3))):
        if rng.random() < 0.7:
            found[name] = 10 ** rng.uniform(*span)
    found["overlaps"] = int(10 ** rng.uniform(3, 9)) if rng.random() < 0.5 else 0
    return Rates(**found)


PLAIN = ("sgemm_scalar_4x4", "sgemm_generic_naive", "sgemm_generic_tile_64x64", "sgemm_generic_skinny_16x4",
         "dgemm_generic_dot_16x4", "sgemm_adreno_image_8x4")  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_the_soonest_is_never_later_than_what_is_predicted(name):
    """Of any of several variants, whatever the rates, sizes, layouts and places."""
    rng, row, device = np.random.default_rng(3), BY_NAME[name], replace(GPU, backend=BY_NAME[name].backend)
    for _ in range(400):
        measured = [random_rates(rng) for _ in range(rng.integers(1, 4))]
        host = bool(rng.integers(2))
        soonest = cost.Bound(row, device, measured, moved=host)
        sizes = [int(10 ** rng.uniform(0, 4)) for _ in "mnk"]
        problem = Problem(row.dtype, *sizes, int(rng.choice([1, 1, 7, 300])), beta=str(rng.choice(["0", "x"])),
                          layout="".join(rng.choice(list("NTS"), 3)),
                          device="host" if host else device.key)  # fmt: skip
        bound = soonest.seconds(problem, problem.flops, problem.moved)
        for rates in measured:
            assert bound <= cost.predict(row, device, problem, rates).seconds * (1 + 1e-9), (problem, measured)


def test_the_soonest_of_variants_that_differ_in_what_is_moved_meanwhile():
    measured = [Rates(launch=1e-5, flops=1e12, upload=1e10, download=1e10, start=1e-5, overlaps=1 << x)
                for x in (10, 30)]  # fmt: skip
    row, problem = BY_NAME["sgemm_generic_naive"], Problem("float32", 2000, 2000, 2000)
    bound = cost.Bound(row, GPU, measured, moved=True).seconds(problem, problem.flops, problem.moved)
    least = min(cost.predict(row, GPU, problem, rates).seconds for rates in measured)
    assert least * 0.5 <= bound <= least * (1 + 1e-9)


def test_the_soonest_of_a_plain_kernel_is_not_merely_low():
    rates, cpu = Rates(launch=1e-5, flops=1e12), Device("cpu", "cpu:0", "a CPU", limits={"threads": 4})
    row, problem = BY_NAME["sgemm_scalar_4x4"], Problem("float32", 512, 512, 512)
    found = cost.predict(row, cpu, problem, rates).seconds
    assert cost.Bound(row, cpu, [rates], moved=True).seconds(problem, problem.flops, problem.moved) >= found / 2


@pytest.mark.parametrize("state", ["not there", "failed", "verified"])
def test_what_was_not_verified_computes_no_product(state):
    """Unless it is named; a kernel beside it that was verified does not speak for it."""
    row, beside = BY_NAME["sgemm_generic_naive"], BY_NAME["sgemm_generic_local_16x16"]
    rates = {"launch": 1e-5, "flops": 4e13}
    kernels = {beside.label: rates}
    if state != "not there":
        kernels[row.label] = rates if state == "verified" else {**rates, "error": "x"}
    facts, problem = helpers.probed((GPU, kernels)), Problem("float32", 64, 64, 64, device=GPU.key)
    chosen, named = (candidates.RowOnDevice(row, GPU, problem, facts, trusting=t).weigh(problem) for t in (False, True))
    assert (chosen.seconds is not None) == (state == "verified")
    assert named.seconds is not None


def test_the_model_charges_no_transfer_for_what_stays_where_it_lies():
    def transfer(name, *places, wrapped=0, beta="x", layout="NNN"):
        rates = Rates(launch=1e-5, flops=4e13, upload=1.0, download=1.0, staged=3e-4, wrapped=wrapped)
        problem = Problem("float32", 64, 128, 256, places=places, beta=beta, layout=layout)
        found = cost.predict(BY_NAME[name], GPU, problem, rates)
        return found.transfer, found.launch

    naive, tile, image, here = "sgemm_generic_naive", "sgemm_generic_tile_64x64", "sgemm_adreno_image_8x4", GPU.key
    a, b, c = 4 * 64 * 256, 4 * 256 * 128, 4 * 64 * 128
    assert transfer(naive) == (a + b + 2 * c, 1e-5)
    assert transfer(naive, here, here, here, here) == (0, 1e-5)
    assert transfer(naive, here, "", here, "") == (b + c, 1e-5)
    assert transfer(naive, here, here, "", here, beta="0") == (0, 1e-5)
    assert transfer(naive, *["opencl:1"] * 4)[0] == a + b + 2 * c
    assert transfer(image, here, here, here, here) == (0, pytest.approx(3.1e-4))  # packed there
    # The caller's own arrays: where drivers take them, from an alignment that they ask for, in a layout that fits.
    assert transfer(naive, *["4096"] * 4)[0] == a + b + 2 * c
    assert transfer(naive, *["4096"] * 4, wrapped=4096) == transfer(naive, *["64"] * 4, wrapped=64) == (0, 1e-5)
    assert transfer(naive, "64", "4096", "64", "4096", wrapped=4096)[0] == a + c
    assert transfer(tile, *["64"] * 4, wrapped=64)[0] == 0
    assert transfer(tile, *["64"] * 4, wrapped=64, layout="TNN")[0] == a + b
    assert transfer(image, *["64"] * 4, wrapped=64)[0] == a + b


def test_a_device_is_looked_for_sooner_where_nothing_is_moved():
    large = Problem("float32", 8192, 8192, 1)
    seconds = 2e-3
    assert not cost.a_device_could_win(large, seconds)
    assert cost.a_device_could_win(replace(large, places=("64", "64", "", "opencl:0")), seconds)


def test_the_model_swaps_operands_as_the_launcher_does():
    rates = Rates(launch=1e-5, flops=4e12, staged=3e-4)
    dot, skinny = "sgemm_generic_dot_16x4", "sgemm_generic_skinny_4x4"
    tall, flat = (4096, 4, 4096), (4, 4096, 4096)
    assert weigh(dot, rates, *tall) == weigh(dot, rates, *flat, layout="NTN") < 1e-4
    assert weigh(skinny, rates, *flat) == weigh(skinny, rates, *tall, layout="TNN") < 1e-4
    # What does not lie along k is packed first, and that takes longer than the product.
    assert weigh(dot, rates, *tall, layout="TNN") > 3e-4 + 2 * (weigh(dot, rates, *tall) - 1e-5)
    assert weigh(dot, rates, *flat) > weigh(dot, rates, *flat, layout="NTN")
    assert weigh(skinny, rates, *flat, layout="NTN") > 3e-4


@pytest.mark.parametrize("units", [1, 16, 132])
@pytest.mark.parametrize(
    "name", ["sgemm_generic_tile_128x128", "sgemm_generic_skinny_16x4", "sgemm_generic_dot_8x1", "sgemm_generic_naive"]
)
def test_shares_of_k_cover_it_and_fill_the_device(name, units):
    row = BY_NAME[name]
    for k in (0, 1, 63, 64, 200, 1000, 4096, 100_003):
        for groups in (1, 3, 64, 200, 5000):
            share = row.share(k, groups, units)
            assert share == k or (share % row.params["BK"] == 0 and 0 < share < k)
            assert groups * -(-k // max(share, 1)) <= max(groups, 8 * units + groups)
    assert BY_NAME["sgemm_generic_naive"].share(100_003, 1, 132) == 100_003
    assert BY_NAME["sgemm_generic_skinny_16x4"].share(8192, 16, 132) <= 1024


class Faulty(Backend):
    """A backend whose one device fails as told; it delegates to the CPU's kernels when it works."""

    name = "faulty"

    def __init__(self, error):
        self.error = error
        self.calls = 0

    def devices(self):
        return (Device("faulty", "faulty:0", "faulty", limits={"threads": 10**9}),)

    def launcher(self, kernel, device, problem):
        def launch(a, b, c, out, alpha, beta):
            self.calls += 1
            raise self.error

        return launch


@pytest.fixture
def faulty(monkeypatch):
    """Makes Faulty the backend of least predicted time; call it with the error to raise."""

    def plant(error):
        backend, real = Faulty(error), registry.backend
        row = Kernel("sgemm_faulty_1x1", "faulty", "faulty", "float32", "none.c", gflops=1e6)
        monkeypatch.setattr(candidates, "KERNELS", (*KERNELS, row))
        monkeypatch.setattr(candidates, "HOST_BACKENDS", ("cpu", "numpy", "faulty"))
        monkeypatch.setattr(registry, "backend", lambda name: backend if name == "faulty" else real(name))
        return backend

    return plant


def test_a_kernel_that_fails_is_demoted_and_the_product_delivered(faulty, caplog):
    backend = faulty(KernelFailed("the device was lost"))
    with caplog.at_level(logging.WARNING, "gemm"):
        assert_array_equal(gemm.gemm(A, B), A @ B)
        assert_array_equal(gemm.gemm(A, B), A @ B)
    assert backend.calls == 1
    assert caplog.text.count("the device was lost") == 1


def test_out_of_memory_goes_elsewhere_without_demoting(faulty):
    backend = faulty(KernelFailed("no room", memory=True))
    c = np.ones((3, 5), np.float32)
    for _ in range(2):
        result = gemm.gemm(A, B, c, beta=2.0, out=c.copy())
        assert_array_equal(result, A @ B + 2)
    assert backend.calls == 2


def test_out_of_memory_everywhere_is_a_memory_error_and_loses_nothing(monkeypatch):
    def launcher(self, kernel, device, problem):
        def launch(a, b, c, out, alpha, beta):
            raise KernelFailed("no room for the packed panels", memory=True)

        return launch

    execute.forget()
    for name in ("cpu", "numpy"):
        monkeypatch.setattr(type(registry.backend(name)), "launcher", launcher)
    c = np.full((3, 5), 7, np.float32)
    with pytest.raises(MemoryError, match="packed panels"):
        gemm.gemm(A, B, c, beta=1.0, out=c)
    assert (c == 7).all()
    execute.forget()


# The probe against drivers that misbehave. `evil.py` is put on the child's path and joins its backends.

EVIL = """
import os, sys, time
from gemm.core.backend import Backend
from gemm.core.problem import Device

class Evil(Backend):
    name = "evil"
    def devices(self):
        fault = os.environ["EVIL"]
        if fault == "abort": os.abort()
        if fault == "exit": os._exit(0)
        if fault == "hang": time.sleep(600)
        if fault == "noise": print("driver banner", flush=True)
        if fault == "broken": raise AttributeError("module 'driver' has no attribute 'devices'")
        return (Device("evil", "evil:0", "an evil device"),)
    def launcher(self, kernel, device, problem):
        fault = os.environ["EVIL"]
        if fault == "crash": os.abort()
        def launch(a, b, c, out, alpha, beta):
            if fault == "raises": raise TypeError("not what this version takes")
            out[...] = a @ b * (1 if fault == "good" else 1.001)
        return launch
"""
CUSTOMIZE = """
import gemm.catalog as catalog
catalog.BACKENDS["evil"] = "evil:Evil"
catalog.KERNELS = (*[row for row in catalog.KERNELS if row.name == "sgemm_scalar_4x4"],
                   catalog.Kernel("sgemm_evil_1x1", "evil", "evil", "float32", "none.c", ordered=False))
for name in ("opencl", "cuda"):
    del catalog.BACKENDS[name]
"""


def probed(tmp_path, fault):
    """The facts that a probe finds when a backend of the fault joins."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)
    told = python(
        """
        import json, logging
        logging.basicConfig()
        from gemm.select import probe
        facts = probe.facts()
        print(json.dumps(facts.lines))
        """,
        path=tmp_path, GEMM_CACHE_DIR=tmp_path / "cache", EVIL=fault, GEMM_PROBE_TIMEOUT="5",
    )  # fmt: skip
    (line,) = [line for line in told.splitlines() if line.startswith("[")]
    return probe.Facts(json.loads(line)), told


@pytest.mark.parametrize("fault", ["abort", "exit", "hang"])
def test_a_backend_that_kills_or_hangs_the_probe_is_done_without(tmp_path, fault):
    facts, log = probed(tmp_path, fault)
    assert "evil" in facts.unavailable
    assert "gemm does without evil" in log
    assert any(record["ok"] for (name, _), record in facts.kernels.items() if BY_NAME[name].backend == "cpu")


def test_what_a_library_raises_of_its_own_is_told(tmp_path):
    """And costs no child: errors of another class than the package's are as good."""
    facts, log = probed(tmp_path, "broken")
    assert "has no attribute 'devices'" in facts.unavailable["evil"]
    facts, more = probed(tmp_path / "other", "raises")
    assert "not what this version takes" in facts.kernels["sgemm_evil_1x1", "evil:0"]["error"]
    assert "does without" not in log + more


def test_a_child_that_the_system_refuses_to_start_is_said_and_not_remembered(monkeypatch, caplog):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    stored = []
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(disk_cache, "load", lambda _: None)
    monkeypatch.setattr(disk_cache, "store", lambda *entry: stored.append(entry))
    monkeypatch.setattr(disk_cache, "update", lambda *entry: stored.append(entry))
    monkeypatch.setattr(probe, "recalled", probe.Recalled())
    assert probe.facts().lines == []
    assert not verification.verified(BY_NAME["sgemm_cuda_tile"], Device("cuda", "cuda:0", "a GPU"), ordered=True)
    assert [record.getMessage().count("temporarily unavailable") for record in caplog.records] == [1, 1]
    assert stored == []


@pytest.mark.parametrize("fault", ["crash", "garbage", "noise"])
def test_a_kernel_that_fails_verification_is_not_trusted(tmp_path, fault):
    facts, _ = probed(tmp_path, fault)
    assert not facts.kernels["sgemm_evil_1x1", "evil:0"]["ok"]
    assert facts.kernels["sgemm_evil_1x1", "evil:0"]["error"]


def test_the_probe_remembers_on_disk(tmp_path):
    first, _ = probed(tmp_path, "noise")
    entry = next((tmp_path / "cache").glob("probe-*"))
    written = entry.stat().st_mtime_ns
    second, _ = probed(tmp_path, "noise")
    assert first.lines == second.lines
    assert entry.stat().st_mtime_ns == written


def test_processes_that_probe_at_once_leave_whole_facts(tmp_path):
    found = at_once(lambda _: probed(tmp_path, "noise")[0].lines, range(2))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    kept, log = probed(tmp_path, "noise")
    assert kept.lines in found
    assert "ignores" not in log


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc") or sys.platform != "linux", reason="builds a shared library")
@pytest.mark.parametrize("fault", ["abort();", "_exit(0);", "for (;;) sleep(1);"])
def test_auto_survives_an_opencl_driver_that_dies_on_loading(tmp_path, fault):
    pytest.importorskip("pyopencl")
    source = tmp_path / "driver.c"
    source.write_text(
        f"#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void load(void) {{ {fault} }}\n"
    )
    library = tmp_path / "driver.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors" / "bad.icd").write_text(str(library))
    told = python(
        """
        import logging, numpy as np, gemm
        from gemm.select import worker
        logging.basicConfig()
        a = np.ones((700, 700), np.float32)
        with worker.waiting():
            assert (gemm.gemm(a, a) == 700).all()
        """,
        GEMM_CACHE_DIR=tmp_path / "cache", OCL_ICD_VENDORS=tmp_path / "vendors", GEMM_PROBE_TIMEOUT="5",
        GEMM_NUM_THREADS="1", GEMM_CPU_ISA="scalar",  # the probe measures few rows
    )  # fmt: skip
    assert "gemm does without opencl" in told


def test_kernels_of_mixed_types_are_measured_with_an_output_of_theirs():
    """An output of the operands' type would be a quarter of the room that int32 takes: PoCL aborts on that."""
    outputs = set()

    class Resident(Faulty):
        def to_device(self, array, device):
            return array

        def to_host(self, view):
            return view

        def launcher(self, kernel, device, problem):
            return lambda a, b, c, out, alpha, beta: outputs.add((a.dtype.name, b.dtype.name, out.dtype.name))

    backend = Resident(None)
    row = Kernel("u8s32gemm_faulty_1x1", "faulty", "faulty", "int32", "none.c", inputs=("uint8", "int8"))
    measure(backend, row, backend.devices()[0], budget=1e-9)
    assert outputs == {("uint8", "int8", "int32")}


READERS = {
    "GEMM_PROBE_TIMEOUT": (worker.timeout, ["soon", "inf", "nan", "-1", "0", "1e300"], {"5": 5.0, " 7.5 ": 7.5}),
    "GEMM_NUM_THREADS": (threads.granted, ["many", "0", "-2", "1.5", "inf"], {"1": 1}),
    "GEMM_ADAPT": (
        calibration.adapts,
        ["maybe", "2"],
        {"0": False, "off": False, "False": False, "1": True, "on": True},
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_settings_are_read_alike(monkeypatch, name):
    """What is not set or empty is the default; what means nothing is an error that names the variable."""
    read, wrong, right = READERS[name]
    monkeypatch.delenv(name, raising=False)
    default = read()
    for text in ("", "  "):
        monkeypatch.setenv(name, text)
        assert read() == default
    for text, value in right.items():
        monkeypatch.setenv(name, text)
        assert read() == value
    for text in wrong:
        monkeypatch.setenv(name, text)
        with pytest.raises(ValueError, match=f"environment variable {name} must be .*, not '{text}'"):
            read()


def test_a_child_executes_no_file_of_the_current_folder(tmp_path, monkeypatch):
    """Nor of a relative folder of PYTHONPATH."""
    for name in ("queue", "json", "runpy", "numpy", "gemm"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})")
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", os.pathsep, f".{os.pathsep}"):
        monkeypatch.setenv("PYTHONPATH", path)
        with worker.Child("gemm.select.probe") as one:
            lines = list(one.ask({"skip": list(BACKENDS), "verify": True}, 60))
        assert not [line for line in lines if line["step"] == "died"]
        assert not (tmp_path / "executed").exists()


def test_a_frozen_program_is_not_started_again(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with worker.Child("gemm.select.probe") as one:
        (line,) = one.ask({}, 60)
    assert line["step"] == "refused"
    assert "frozen" in line["cause"]


def test_a_link_is_what_products_of_host_operands_take_longer(monkeypatch):
    """20 µs, and 2 GB/s to the device and 1 GB/s back, whatever the product itself takes."""

    def seconds(backend, kernel, device, problem, row):
        m, n, k = problem.m, problem.n, problem.k
        return 1e-3 + (0.0 if problem.device == device.key else 2e-5 + 4 * (m * k + k * n) / 2e9 + 4 * m * n / 1e9)

    monkeypatch.setattr(measuring, "seconds", seconds)
    monkeypatch.setattr(measuring, "_links", {})
    backend = Faulty(None)
    row = Kernel("sgemm_faulty_1x1", "faulty", "faulty", "float32", "none.c")
    upload, download, start = measuring.link(backend, row, backend.devices()[0])
    assert upload == pytest.approx(2e9, rel=0.02)
    assert download == pytest.approx(1e9, rel=0.02)
    assert 2e-5 <= start < 5e-4  # the other operand, and the small part of the result, too


def test_operands_that_move_while_others_are_multiplied_cost_the_longer_of_both():
    link = Rates(launch=1e-5, flops=5e12, upload=2e10, download=1e10, start=1e-4, overlaps=1 << 20)
    assert cost.moving(link, 1000, 0, 1.0) == pytest.approx(1e-4 + 1000 / 2e10)
    assert cost.moving(link, 2 * 10**9, 10**9, 1.0) == pytest.approx(1e-4 + 0.1 * 0.11)  # both ways in 0.11 s
    assert cost.moving(link, 2 * 10**10, 10**9, 0.5) == pytest.approx(1e-4 + (1.01 + 0.05) - 0.5)
    assert cost.moving(link, 0, 0, 1.0) == 0.0
    for few, many in (((1 << 20) - 1, 1 << 20), ((1 << 19) - 1, 1 << 19)):  # the first bytes for which both are at once
        out = (1 << 20) - many
        assert cost.moving(link, few, out, 1.0) == pytest.approx(1e-4 + few / 2e10 + out / 1e10, rel=1e-6)
        longer, shorter = max(many / 2e10, out / 1e10), min(many / 2e10, out / 1e10)
        assert cost.moving(link, many, out, 1.0) == pytest.approx(1e-4 + 0.1 * (longer + 0.1 * shorter), rel=1e-6)


def test_operands_that_numpy_converts_first_cost_that():
    device = next(iter(registry.backend("cpu").devices()))
    rates = Rates(launch=2e-6, flops=1e11, memory=5e10)
    plain = Problem("int32", 4, 3936, 2209)
    narrow = replace(plain, inputs=("int8", "int8"))
    wide, given = (cost.predict(BY_NAME["i32gemm_scalar_4x4"], device, x, rates).seconds for x in (plain, narrow))
    own = cost.predict(BY_NAME["s8s32gemm_scalar_4x4"], device, narrow, rates).seconds
    assert given - own == pytest.approx((4 + 3936) * 2209 / cost.CONVERTED)
    assert own < wide  # a quarter of the bytes


@pytest.mark.parametrize(("name", "step"), [("sgemm_generic_naive", 1), ("sgemm_generic_dot_16x4", 128)])
def test_an_item_of_a_gpu_takes_time_for_its_outputs(name, step):
    device = Device("opencl", "opencl:9", "a GPU", kind="gpu", limits={"compute_units": 4})
    row, rates = BY_NAME[name], Rates(launch=1e-5, flops=1e12)
    few, same, more = (
        cost.predict(row, device, Problem("float32", 1024, 1024, k, device=device.key), rates).compute
        for k in (4 * step - step // 2, 4 * step, 16 * step)
    )
    assert more / few == pytest.approx((16 * step + cost.ENDS) / (4 * step + cost.ENDS))
    assert same == few  # k is computed in whole steps, which are not what waits in local memory


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat has the load of other processes")
def test_a_probe_says_how_many_cores_other_processes_used(monkeypatch):
    spent = iter((100.0, 118.0, 120.0))
    moments = iter((0.0, 10.0, 20.0))
    monkeypatch.setattr(threads, "_ticks", lambda: (next(spent), 0.0))
    monkeypatch.setattr(threads.os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(threads.time, "monotonic", lambda: next(moments))
    lines = list(probe.explore({"skip": list(BACKENDS), "verify": True}))
    assert lines == [{"step": "load", "others": 1.8}]
    assert probe.Facts(lines).others == 1.8
    assert list(probe.explore({"skip": list(BACKENDS), "verify": False})) == []  # it times nothing


def test_each_check_of_a_probe_restarts_its_time_limit():
    """The probe must not reject a slow kernel that passed when a product waited for it."""
    backend = registry.backend("numpy")
    first, *others = (row.label for row in probe._variants("numpy", backend.devices()[0]))
    skip = [name for name in BACKENDS if name != "numpy"] + [f"{name} on numpy:0" for name in others]
    lines = list(probe.explore({"skip": skip, "verify": True}))
    begun = [line for line in lines if line == {"step": "begin", "what": f"{first} on numpy:0"}]
    assert len(begun) > 5
    assert [line["ok"] for line in lines if line["step"] == "kernel"] == [True]


@pytest.mark.parametrize("others", [None, 0.4, 1.8])
def test_a_disturbed_probe_is_mentioned_and_repeated_by_gemm_tune(monkeypatch, capsys, others):
    device = registry.backend("cpu").devices()[0]
    known = helpers.probed((device, {"sgemm_scalar_4x4": {"launch": 2e-6, "flops": 1e9, "memory": 1e10}}))
    monkeypatch.setattr(probe.os, "cpu_count", lambda: 2)
    helpers.remember(monkeypatch, probe.Facts([*known.lines, {"step": "load", "others": others}]))
    verification.forget_choices()
    note = "Kernels were timed while other processes used 1.8 cores: gemm tune measures again."
    gemm.explain(A, B, kernel="sgemm_scalar_4x4")
    assert (note in capsys.readouterr().out) == (others == 1.8)
    assert (note in inventory.sections()) == (others == 1.8)
    monkeypatch.setattr(tune, "_calibrate", lambda *_: None)
    for options, kept in ((["--quick"], True), ([], others != 1.8)):
        assert cli.main(["tune", "--device", "cpu:0", *options]) == 0
        assert (probe.entry() in probe.recalled) == kept
