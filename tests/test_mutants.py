"""The suite is worth what it catches: plant a fault beneath the public face, and see the named checks fail.

Each fault wraps the launches of a sound CPU kernel, so that everything above them is the real package. Faults in the
sources themselves are data in mutants.py, which plants them, too; here it is seen that each still can be.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
from conformance import ALL_CHECKS
from conformance.faults import FAULTS, OF_TYPES
from conformance.narrowed import narrowed
from conformance.subject import ONLY, THIN, Subject, blocked
from conftest import SIBLINGS
from mutants import MUTANTS
from test_cuda_races import FAULTS as RACES
from test_cuda_races import planted as planted_race

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.catalog import BY_NAME
from gemm.core import operands

ROOT = Path(__file__).resolve().parents[1]
AREAS = ("driver", "kernels", "order", "call", "dispatch", "opencl", "cuda")
KERNELS = ("sgemm_scalar_4x4", "dgemm_scalar_4x4")
PLANTED = [(name, check) for name, (_, catches) in FAULTS.items() for check in catches]
PLANTED_OF_TYPES = [(name, check) for name, (_, _, catches) in OF_TYPES.items() for check in catches]


@pytest.fixture
def mutant(monkeypatch):
    """Plants a fault beneath every launch of the CPU backend until the test ends."""
    cls = type(registry.backend("cpu"))
    sound = cls.launcher

    def launcher_of(self, fault, kernel, device, problem):
        bound = sound(self, kernel, device, problem)

        def launch(a, b, c, out, alpha, beta):
            if a.shape[-1] == problem.k:
                bound(a, b, c, out, alpha, beta)
            else:  # a launch is made for one k, and some faults use another
                sound(self, kernel, device, replace(problem, k=a.shape[-1]))(a, b, c, out, alpha, beta)

        return fault(launch)

    def plant(fault):
        monkeypatch.setattr(cls, "launcher", partialmethod(launcher_of, fault))
        execute.forget()

    yield plant
    monkeypatch.undo()
    execute.forget()


def examined(kernel):
    row = BY_NAME[kernel]

    def call(*operands, **options):
        return gemm.gemm(*operands, kernel=kernel, **options)

    typed = narrowed(call, row.inputs, row.dtype) if row.inputs else call
    return Subject(kernel, typed, np.dtype(row.dtype), params=blocked(row), effort=THIN, inputs=row.inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("check", [name for name in ALL_CHECKS if "f" in ONLY.get(name, "f")])
def test_a_sound_kernel_passes(kernel, check, mutant):
    mutant(lambda launch: lambda *operands: launch(*operands))
    ALL_CHECKS[check](examined(kernel))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "check"), PLANTED)
def test_caught(kernel, name, check, mutant):
    mutant(FAULTS[name][0])
    with pytest.raises(AssertionError):
        ALL_CHECKS[check](examined(kernel))


@pytest.mark.parametrize(("name", "check"), PLANTED_OF_TYPES)
def test_caught_in_other_types(name, check, mutant):
    kernel, fault, _ = OF_TYPES[name]
    ALL_CHECKS[check](examined(kernel))
    mutant(fault)
    with pytest.raises(AssertionError):
        ALL_CHECKS[check](examined(kernel))


def test_overlap_unnoticed_is_caught(monkeypatch):
    monkeypatch.setattr(operands, "overlap", lambda x, y: False)
    with pytest.raises(AssertionError, match="out is"):
        ALL_CHECKS["in_place"](examined("sgemm_scalar_4x4"))


def test_every_check_catches_something():
    used = {check for *_, catches in (*FAULTS.values(), *OF_TYPES.values()) for check in catches} | {"in_place"}
    assert ALL_CHECKS.keys() - used == set(), "no planted fault shows what these checks are for"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.file}:{MUTANTS.index(m)}")
def test_a_fault_in_the_sources_applies_and_its_test_is_there(mutant):
    sound = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.planted(sound) != sound
    path, _, function = mutant.test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    name, _, case = function.partition("[")
    assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
    if not path.startswith("tests/conformance/") or not case:
        return
    row, *rest = case.removesuffix("]").split("-")
    assert row in BY_NAME
    assert rest[-1] in ALL_CHECKS
    assert rest[:-1] in ([], ["prepared"], ["pending"], ["repeated"], ["pyopencl"])
    assert "--every-row" in mutant.options or row not in SIBLINGS, "pytest collects no row that shares its source"


@pytest.mark.parametrize("fault", RACES, ids=lambda fault: fault["what"])
def test_a_planted_race_applies(fault):
    planted_race(fault)


def test_the_faults_are_many_in_every_area_and_all_but_a_few_are_killed():
    assert len(MUTANTS) >= 100
    assert len({mutant[1:4] for mutant in MUTANTS}) == len(MUTANTS), "a fault is there twice"
    planted = Counter(mutant.area for mutant in MUTANTS)
    survivors = Counter(mutant.area for mutant in MUTANTS if mutant.survives)
    print(f"{'area':12} planted  killed")
    for area in AREAS:
        print(f"{area:12} {planted[area]:7} {planted[area] - survivors[area]:7}")
    races = f"{len(RACES):7} {len(RACES):7}"
    print(f"{'races (CUDA)':12} {races}  by tests/backends/cuda/test_cuda_races.py, which plants them itself")
    assert planted.keys() == {*AREAS}
    assert min(planted.values()) >= 10
    assert survivors.total() <= 0.05 * len(MUTANTS)
    for mutant in MUTANTS:
        assert "::" in mutant.test, "one test kills a fault, not a file of them"
        assert not mutant.survives or mutant.survives.startswith(("Equivalent: ", "Unseen: ")), (
            "it says why no test can"
        )
