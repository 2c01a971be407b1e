"""Predictions corrected by measurements: by `gemm tune` for later processes, and while a program runs."""

import itertools
import math
import random
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers import remember
from test_entrants import GPU, facts

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.catalog import BY_NAME, KERNELS
from gemm.cli import main, tune
from gemm.core import disk_cache
from gemm.core.problem import Device, Problem
from gemm.frontend import plan_cache
from gemm.select import calibration, candidates, probe, verification
from gemm.tune import calibrate

HOST = Device("cpu", "cpu:0", "a CPU", features=frozenset({"avx2", "fma"}), limits={"threads": 4})
SQUARE = Problem("float32", 1024, 1024, 1024)
CLASS = (0, 10, 10, 10)
TYPES = ("float32", "float64", "float16", "int32")


def forget():
    disk_cache.cache_dir.cache_clear()
    verification.forget_choices()
    calibration.forget()


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """Nothing is learned, and nothing stored."""
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture
def machine(empty, monkeypatch):
    """One whose only device besides the CPU is invented."""
    known = facts()
    known.kernels = {
        key: {**x, "launch": 1e-5, "flops": 2e12, "upload": 2e9, "download": 2e9} for key, x in known.kernels.items()
    }
    remember(monkeypatch, known)
    monkeypatch.setattr(
        candidates.registry, "backend", lambda name: Backend([GPU] if name == "opencl" else REAL(name).devices())
    )
    monkeypatch.setattr(candidates, "HOST_BACKENDS", ("cpu", "numpy"))
    monkeypatch.setattr(candidates, "BACKENDS", ("cpu", "opencl", "numpy"))


REAL = registry.backend


def keep(table):
    """Store a table as `gemm tune` does."""
    for whose, known in table.items():
        for at, value in known.items():
            calibration.observe(whose, at, value)
    calibration.keep()


def factor(row, device, problem):
    return calibration.factor(calibration.subject(row, device, problem), problem)


class Backend:
    def __init__(self, devices):
        self._devices = tuple(devices)

    def devices(self):
        return self._devices


def test_a_factor_counts_for_its_class_and_less_for_neighbours(machine):
    row = BY_NAME["sgemm_scalar_4x4"]
    keep({(HOST.key, "float32"): {CLASS: math.log(3)}})
    here = factor(row, HOST, SQUARE)
    beside = factor(row, HOST, Problem("float32", 2048, 1024, 1024))
    assert 2.5 < here < 3
    assert 1 < beside < here
    assert factor(row, HOST, Problem("float32", 4096, 4096, 1024)) == 1
    assert factor(row, HOST, Problem("float64", 1024, 1024, 1024)) == 1
    assert factor(row, HOST, Problem("float32", 1024, 1024, 1024, places=("64", "64", "", "64"))) == 1
    assert factor(row, HOST, Problem("float32", 1024, 1024, 1024, device=HOST.key)) == 1


def test_what_was_fitted_is_found_again(machine):
    table = {(HOST.key, "float32"): {CLASS: 0.5, (0, 1, 2, 3): -0.25}, (GPU.key, "a_kernel"): {CLASS: 1.0}}
    keep(table)
    calibration.stored.cache_clear()
    assert calibration.stored() == table
    probe.forget()
    calibration.stored.cache_clear()
    assert calibration.stored() == {}


def test_bounds_stay_below_corrected_predictions(machine):
    dice = random.Random(2)
    classes = itertools.product((0, 3), (3, 6, 9), (3, 6, 9), (3, 6, 9))
    keep({(GPU.key, "float32"): {at: dice.uniform(-1, 1) for at in classes}})
    line = candidates.lineup(
        candidates.example(SQUARE), "opencl", None, probe.recalled[probe.entry()], host=False, trusting=False
    )
    assert line.able
    for _ in range(40):
        m, n, k = (round(2 ** dice.uniform(0, 11)) for _ in range(3))
        problem = Problem("float32", m, n, k, dice.choice((1, 8)))
        for _, bound, place in line.bounds(problem):
            weighed = line.all[place].weigh(problem)
            assert weighed.seconds is None or bound <= weighed.seconds * (1 + 1e-9)


def test_bounds_of_resident_operands_stay_below_corrected_predictions(machine):
    dice = random.Random(3)
    classes = [*itertools.product((0, 3), (3, 6, 9), (3, 6, 9), (3, 6, 9))]
    rows = [row.name for row in KERNELS if row.backend == "opencl" and row.dtype == "float32"]
    keep({(GPU.key, name): {at: dice.uniform(-1, 1) for at in classes} for name in rows})
    kind = Problem("float32", 1, 1, 1, device=GPU.key)
    line = candidates.lineup_on(candidates.example(kind), "auto", None, probe.recalled[probe.entry()], GPU)
    assert line.able
    corrected = 0
    for _ in range(40):
        m, n, k = (round(2 ** dice.uniform(2, 11)) for _ in range(3))
        problem = replace(kind, m=m, n=n, k=k, batch=dice.choice((1, 8)))
        for _, bound, place in line.bounds(problem):
            weighed = line.all[place].weigh(problem)
            assert weighed.seconds is None or bound <= weighed.seconds * (1 + 1e-9)
            corrected += weighed.factor < 1
    assert corrected


def test_a_class_is_corrected_by_what_was_measured_of_it_else_by_its_neighbours(machine):
    row, whose = BY_NAME["sgemm_scalar_4x4"], (HOST.key, "float32")
    keep({whose: {(0, 9, 9, 9): 1.0, (0, 9, 9, 10): -2.0, (0, 5, 9, 9): 0.5}})

    def late(*octaves):
        return math.log(factor(row, HOST, Problem("float32", *(1 << x for x in octaves))))

    assert late(9, 9, 9) == pytest.approx(1 / (1 + calibration.PRIOR))
    assert late(9, 9, 10) == pytest.approx(-2 / (1 + calibration.PRIOR))
    assert late(9, 8, 9) == pytest.approx(calibration.NEARBY / (calibration.PRIOR + calibration.NEARBY))
    both = calibration.PRIOR + 2 * calibration.NEARBY
    keep({whose: {(0, 9, 8, 10): 0.5}})
    assert late(9, 8, 9) == pytest.approx(1.5 * calibration.NEARBY / both)
    assert late(6, 6, 6) == 0


def test_what_the_process_sees_takes_the_place_of_what_was_fitted(machine):
    row, whose = BY_NAME["sgemm_scalar_4x4"], (HOST.key, "float32")
    keep({whose: {CLASS: 0.5}})
    calibration.observe(whose, CLASS, 1.0)
    assert factor(row, HOST, SQUARE) == pytest.approx(math.exp(1 / (1 + calibration.PRIOR)))
    ordered = replace(SQUARE, reproducible=True)  # which learns nothing
    assert factor(row, HOST, ordered) == pytest.approx(math.exp(0.5 / (1 + calibration.PRIOR)))
    calibration.forget()
    assert factor(row, HOST, SQUARE) == factor(row, HOST, ordered)


class Clock:
    """Time that only passes while something is computed."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.launched, self._seconds = 0.0, [], seconds
        monkeypatch.setattr(execute.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(execute, "launcher", self._launcher)

    def _launcher(self, plan):
        def launch(*operands):
            self.launched.append(plan.device.key)
            self.now += self._seconds[plan.device.key]

        return launch


def products(count, **more):
    a = np.ones((1024, 1024), np.float32)
    problem = Problem("float32", 1024, 1024, 1024, **more)
    return [execute.run(problem, "auto", None, (a, a, None, a, 1.0, 0.0, None)) for _ in range(count)]


class TestWhileAProgramRuns:
    def test_what_is_slower_than_predicted_gives_way(self, machine, monkeypatch):
        first = execute.choose(SQUARE)
        assert math.isfinite(first.rival)
        other = {"cpu:0": GPU.key, GPU.key: "cpu:0"}[first.device.key]
        clock = Clock(monkeypatch, {first.device.key: 3 * first.rival, other: first.rival})
        products(12)
        assert clock.launched[:2] == [first.device.key] * 2  # one that warms up, one that is timed
        assert clock.launched[-1] == other
        assert clock.launched.count(first.device.key) <= 1 + calibration.TIMES

    def test_one_slow_sample_clears_nothing(self, machine, monkeypatch):
        """Somebody else had the machine. What is known of other products stays, whatever comes of this class."""
        monkeypatch.setitem(plan_cache.memos, "known", None)
        first = execute.choose(SQUARE)
        clock = Clock(monkeypatch, {first.device.key: 3 * first.rival})
        cleared = []
        monkeypatch.setattr(
            verification, "forgetful", [*verification.forgetful, lambda: cleared.append(len(clock.launched))]
        )
        products(2)
        assert clock.launched == [first.device.key] * 2
        assert not cleared
        clock._seconds[first.device.key] = first.seconds
        assert products(6)[-1] is not None
        assert not cleared
        assert set(clock.launched) == {first.device.key}
        assert "known" in plan_cache.memos

    def test_what_gives_way_leaves_other_products_to_be_repeated(self, machine, monkeypatch):
        monkeypatch.setitem(plan_cache.memos, "known", None)
        first = execute.choose(SQUARE)
        other = {"cpu:0": GPU.key, GPU.key: "cpu:0"}[first.device.key]
        clock = Clock(monkeypatch, {first.device.key: 3 * first.rival, other: first.rival})
        products(12)
        assert clock.launched[-1] == other
        assert "known" in plan_cache.memos

    def test_what_is_as_predicted_stays_and_is_soon_certain(self, machine, monkeypatch):
        first = execute.choose(SQUARE)
        clock = Clock(monkeypatch, {first.device.key: first.seconds})
        delivered = products(8)
        assert set(clock.launched) == {first.device.key}
        assert delivered[: calibration.TIMES] == [None] * calibration.TIMES  # not yet to be repeated without a look
        assert delivered[-1] is not None

    @pytest.mark.parametrize("how", ["GEMM_ADAPT=0", "reproducible", "in place", "named"])
    def test_nothing_is_learned(self, machine, monkeypatch, how):
        if how == "GEMM_ADAPT=0":
            monkeypatch.setenv("GEMM_ADAPT", "0")
        more = {"reproducible": {"reproducible": True}, "in place": {"places": ("64", "64", "", "64")}}.get(how, {})
        first = execute.choose(Problem("float32", 1024, 1024, 1024, **more))
        clock = Clock(monkeypatch, {"cpu:0": 50.0, GPU.key: 50.0})
        if how == "named":
            a = np.ones((1024, 1024), np.float32)
            for _ in range(6):
                execute.run(SQUARE, "cpu", None, (a, a, None, a, 1.0, 0.0, None))
            assert set(clock.launched) == {"cpu:0"}
        else:
            assert None not in products(6, **more)
            assert set(clock.launched) == {first.device.key}
        assert factor(first.kernel, first.device, SQUARE) == 1


def test_tune_fits_this_machine(empty, monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "SHAPES", ((1, 96, 80, 64), (3, 33, 17, 9)))
    monkeypatch.setattr(tune, "QUICK", 60.0)  # others use the cores, too
    remember(monkeypatch, probe.Facts([]))
    assert main(["tune", "--quick", "--device", "cpu:0"]) == 0
    assert "Measured ÷ predicted" in capsys.readouterr().out
    table = calibration.stored()
    assert {what: len(known) for (_, what), known in table.items()} == dict.fromkeys(TYPES, 2)
    gemm.explain(np.ones((96, 64), np.float32), np.ones((64, 80), np.float32))
    assert "as such products were measured" in capsys.readouterr().out
    assert main(["tune", "--quick", "--level", "full"]) == 2


def test_tiny_classes_are_fitted_where_a_devices_runtime_is_the_cpus(empty, monkeypatch):
    asked = []
    monkeypatch.setattr(
        calibrate, "_measured", lambda device, problem, patience: asked.append((device, problem)) or iter(())
    )
    runtime = replace(GPU, key="opencl:8", kind="cpu")
    assert list(calibrate.calibrate([runtime, GPU], time.monotonic() + 5.0)) == []
    tiny = {(device.key, problem.device) for device, problem in asked if problem.flops < 1e5}
    assert tiny == {(runtime.key, runtime.key)}
    assert len([problem for device, problem in asked if device == GPU]) == 2 * len(calibrate.TYPES) * len(
        calibrate.SHAPES
    )
