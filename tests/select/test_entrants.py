"""The soonest entrant is found without weighing all, and is the one that weighing all would have found."""

import random
from dataclasses import replace

import pytest
from helpers import probed

from gemm.backends import registry
from gemm.catalog import BY_NAME, KERNELS
from gemm.core.problem import Device, Problem
from gemm.select import candidates, choice, tuning_db, verification

FEATURES = frozenset(feature for row in KERNELS for feature in (*row.needs, *row.ordered_needs))
LIMITS = {"compute_units": 16, "work_group": 1024, "local_memory": 64 << 10, "image_width": 16384,
          "image_height": 16384, "private_memory": 0, "max_alloc": 1 << 31}  # fmt: skip
GPU = Device("opencl", "opencl:7", "a GPU", "a platform", "1.0", "gpu", features=FEATURES - {"subgroup_size_8"},
             limits=LIMITS)  # fmt: skip
HOPPER = Device("cuda", "cuda:7", "another GPU", "", "1.0", "gpu", features=FEATURES,
                limits={"sm_count": 132, "clock_mhz": 1755, "memory_gbs": 4800, "compute_capability": 90,
                        "block_threads": 1024, "shared_memory": 48 << 10,
                        "shared_memory_optin": 227 << 10})  # fmt: skip
KINDS = [
    {"dtype": "float32"}, {"dtype": "float32", "reproducible": True}, {"dtype": "float64"},
    {"dtype": "float32", "precision": "medium"}, {"dtype": "float16"},
    {"dtype": "int32", "inputs": ("int8", "int8")},
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh():
    """Nothing that a test has looked up is found by the next."""
    verification.forget_choices()
    yield
    verification.forget_choices()


def facts():
    """A probe's, of both GPUs, with rates as different as they can be."""
    source = random.Random(3)
    found = {"opencl": {}, "cuda": {}}
    for row in KERNELS:
        if row.backend in found:
            found[row.backend][row.name] = {
                "launch": 10 ** source.uniform(-6, -4), "flops": 10 ** source.uniform(11, 14), "upload": 2e10,
                "download": 1e10, "staged": 10 ** source.uniform(-5, -4), "start": 2e-5,
                "overlaps": 1 << 20 if row.backend == "cuda" else 0,
            }  # fmt: skip
    return probed((GPU, found["opencl"]), (HOPPER, found["cuda"]))


def bound(entrant, problem):
    return entrant.bound.seconds(problem, problem.flops, problem.moved)


def problems(device, kind, count=60):
    source = random.Random(5)
    for _ in range(count):
        m, n, k = (round(2 ** source.uniform(0, 13)) for _ in range(3))
        batch = source.choice([1, 1, 7, 300])
        layout = source.choice(["NNN", "NTN", "TNN", "SNT"])
        yield Problem(m=m, n=n, k=k, batch=batch, layout=layout, device=device.key, **kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.parametrize("device", [GPU, HOPPER], ids=lambda device: device.backend)
def test_bounds_are_bounds_and_the_first_is_the_least(device, kind):
    known = facts()
    for problem in problems(device, kind):
        for asked in (problem, replace(problem, device="host")):
            field = [
                candidates.RowOnDevice(row, device, candidates.example(asked), known, trusting=True)
                for row in KERNELS if row.backend == device.backend
            ]  # fmt: skip
            found = {}
            for entrant in field:
                weighed = entrant.weigh(asked)
                if weighed.seconds is not None:
                    assert bound(entrant, asked) <= weighed.seconds * (1 + 1e-9), (entrant.row.name, asked)
                    found[entrant.row.name] = weighed.seconds
            queue = choice._Queue(asked)
            queue.add(candidates.Lineup(field))
            first = queue.pop()
            assert (first is None) == (not found), asked
            if first is not None:
                assert first.seconds == min(found.values()), asked
                rest = [c.seconds for c in iter(queue.pop, None)]
                assert [first.seconds, *rest] == sorted(found.values())
                assert {c.kernel.name for c in queue.weighed() if c.seconds is not None} == found.keys()


def test_few_are_weighed(monkeypatch):
    weighed = []
    weigh = candidates.RowOnDevice.weigh
    monkeypatch.setattr(
        candidates.RowOnDevice, "weigh", lambda self, problem: weighed.append(self) or weigh(self, problem)
    )
    kind = candidates.example(Problem("float32", 1, 1, 1, device=GPU.key))
    line = candidates.lineup_on(kind, "auto", None, facts(), GPU)
    able = [entrant for rows in line.able.values() for _, entrant in rows]
    for problem in problems(GPU, KINDS[0]):
        queue = choice._Queue(problem)
        queue.add(line)
        assert queue.pop() is not None
    assert len(able) > 10
    assert len(weighed) < 60 * len(able) / 2


def test_what_was_tuned_here_has_no_bound_by_the_rate_of_the_probe():
    row = next(row for row in KERNELS if row.backend == "opencl" and row.space and row.dtype == "float32")
    problem = Problem("float32", 1024, 1024, 1024, device=GPU.key)
    values = {name: choices[0] for name, choices in row.space.items()}
    record = tuning_db.Record(
        row.name, (1, 1024, 1024, 1024), "NN", GPU.driver, tuning_db.fingerprint(row), values, 1e-7
    )
    entrant = candidates.RowOnDevice(row, GPU, candidates.example(problem), facts(), trusting=True)
    slow = bound(entrant, problem)
    tuning_db.save(GPU, [record])
    try:
        assert bound(entrant, problem) < slow
        assert bound(entrant, problem) <= entrant.weigh(problem).seconds
    finally:
        tuning_db.disk_cache.update(tuning_db.entry(GPU), lambda blob: b'{"schema": "gemm-tuning/1", "devices": []}')
        tuning_db.forget()


def test_a_type_without_kernels_is_refused_in_one_line():
    with pytest.raises(TypeError, match=r"int64 has no kernel for backend 'opencl' \(its kernels multiply float32"):
        choice.choose(Problem("int64", 8, 8, 8, device=GPU.key), holder=GPU, backend="opencl")


SME = "sme", "smef64f64"


@pytest.mark.parametrize(("name", "features", "m", "known", "why"), [
    ("sgemm_sme_32x32", (), 32, True, "needs sme, which"),
    ("dgemm_sme_16x32", SME[:1], 32, True, "needs smef64f64, which"),
    ("sgemm_sme_32x32", SME, 32, False, "not verified"),
    ("sgemm_sme_32x32", SME, 31, True, "chosen only by name but where m >= MR and n >= NR"),
    ("sgemm_sme_32x32", SME[:1], 32, True, ""), ("dgemm_sme_16x32", SME, 16, True, ""),
])  # fmt: skip
@pytest.mark.parametrize(("backend", "isa"), [("cpu", ""), ("auto", "neon"), ("auto", "sme"), ("sme", "")])
def test_sme_is_chosen_for_large_products_on_cpus_that_have_it_and_where_it_is_measured(
    name, features, m, known, why, backend, isa, monkeypatch
):
    monkeypatch.setenv("GEMM_CPU_ISA", isa)
    cpu = Device("cpu", "cpu:0", "a CPU", features=frozenset(("neon", *features)))
    monkeypatch.setattr(registry.backend("cpu"), "_devices", (cpu,))
    measured = probed((cpu, {name: {"launch": 1e-6, "flops": 1e11}})) if known else None
    problem = Problem(BY_NAME[name].dtype, m, 32, 64)
    found = candidates.lineup(candidates.example(problem), backend, None, measured, host=True, trusting=True)
    weighed = next(each for each in found.all if each.row.name == name).weigh(problem)
    wanted = why if "sme" not in (backend, isa) or why.startswith("needs") else ""
    assert weighed.why_not.startswith(wanted)
    assert (weighed.seconds is None) == bool(wanted)


@pytest.mark.parametrize(("k", "trusting", "why"), [
    (16, False, ""), (17, False, "chosen only by name but where k <= BK"), (17, True, ""),
])  # fmt: skip
def test_a_row_is_chosen_for_what_suits_it_unless_it_is_named(k, trusting, why):
    row = replace(next(row for row in KERNELS if row.name == "sgemm_cuda_ffma_64x64"), suits="k <= BK")
    assert row.params["BK"] == 16
    problem = Problem("float32", 64, 64, k)
    entrant = candidates.RowOnDevice(row, HOPPER, candidates.example(problem), None, trusting=trusting)
    found = entrant.weigh(problem)
    assert (found.why_not, found.seconds is None) == (why, bool(why))


@pytest.mark.parametrize(("vendor", "features", "target"), [
    ("adreno", {"image", "fp16", "adreno"}, "adreno"), ("other", {"image", "fp16"}, "generic"),
    ("intel", {"image", "intel_subgroups", "intel_required_subgroup_size", "subgroup_size_8"}, "intel"),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_before_the_probe_a_vendors_kernels_come_first_on_its_gpus(vendor, features, target, dtype):
    gpu = replace(GPU, features=frozenset(features), name=vendor)
    for size in (64, 512, 4096):
        problem = Problem(dtype, size, size, size, device=gpu.key)
        entrants = candidates.lineup_on(candidates.example(problem), "opencl", None, None, gpu)
        soonest = min((x.weigh(problem) for x in entrants.all if not x.why_not), key=lambda x: x.seconds or 1e9)
        assert soonest.kernel.target == target, soonest
