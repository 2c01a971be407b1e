"""NumPy's BLAS as a candidate of auto: where it was verified and measured to be clearly faster than our own kernels."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import probed, remember

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.catalog import BY_NAME, KERNELS
from gemm.core import engine
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Problem
from gemm.select import calibration, candidates, choice, verification

pytestmark = pytest.mark.skipif(gemm.backends()["cpu"] != "", reason="the engine is not built")

BLAS = [row for row in KERNELS if row.backend == "numpy" and row.dtype != "*"]
LARGE = Problem("float32", 1024, 1024, 1024)
RATE = 1e11
REAL = registry.backend


def facts(times, ok=True):
    """A probe's, by which NumPy's BLAS is so many times as fast as our own kernels."""
    rates = {"launch": 2e-6, "memory": 1e10}
    of = {"cpu": {**rates, "flops": RATE}, "numpy": {**rates, "flops": RATE * times}}
    if not ok:
        of["numpy"]["error"] = "it is wrong"
    return probed(*(
        (registry.backend(name).devices()[0],
         {row.name: found for row in KERNELS if row.backend == name and row.dtype != "*"})
        for name, found in of.items()
    ))  # fmt: skip


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Sets what a probe found."""
    monkeypatch.delenv("GEMM_NUM_THREADS", raising=False)
    engine.set_num_threads(None)  # an earlier test may have left a limit, which excludes NumPy's BLAS
    monkeypatch.setattr(choice, "away", lambda *_: False)  # no other devices

    def set_facts(found):
        remember(monkeypatch, found)
        execute.forget()

    yield set_facts
    monkeypatch.undo()
    execute.forget()


def chosen(problem, backend="auto"):
    return choice.choose(problem, backend).kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_chosen_where_it_was_measured_to_be_faster(known, dtype):
    problem = replace(LARGE, dtype=dtype)
    known(facts(2.0))
    assert chosen(problem) in BLAS
    known(facts(1.05))  # two measurements of one rate differ by more
    assert chosen(problem).backend == "cpu"
    known(facts(0.5))
    assert chosen(problem).backend == "cpu"


@pytest.mark.parametrize("found", [None, facts(2.0, ok=False)], ids=["not measured", "failed verification"])
def test_it_is_not_chosen_unless_it_was_verified(known, found):
    known(found)
    assert chosen(LARGE).backend == "cpu"
    assert chosen(LARGE, "numpy").backend == "numpy"


@pytest.mark.parametrize("what", [
    {"reproducible": True}, {"batch": 8}, {"beta": "x"}, {"alpha": "x"}, {"bias": True}, {"activation": "relu"},
    {"layout": "SNN"}, {"layout": "NNT"}, {"dtype": "int32"}, {"dtype": "float16"}, {"dtype": "complex64"},
    {"m": 16, "n": 16, "k": 16},
], ids=str)  # fmt: skip
def test_it_is_left_out_where_it_does_more_than_one_product_of_its_blas(known, what):
    known(facts(2.0))
    assert chosen(replace(LARGE, **what)).backend == "cpu"


def test_it_is_left_out_while_threads_are_limited(known, monkeypatch):
    """Its threads are its own."""
    known(facts(2.0))
    try:
        engine.set_num_threads(1)
        assert chosen(LARGE).backend == "cpu"
    finally:
        engine.set_num_threads(None)
    assert chosen(LARGE).backend == "numpy"
    monkeypatch.setenv("GEMM_NUM_THREADS", "1")
    verification.forget_choices()
    assert chosen(LARGE).backend == "cpu"


def test_the_number_of_all_cores_is_no_limit(known):
    """A program that saves the number of threads and sets it again has the same choices as before."""
    known(facts(2.0))
    try:
        gemm.set_num_threads(gemm.get_num_threads())
        assert chosen(LARGE).backend == "numpy"
    finally:
        engine.set_num_threads(None)


def test_it_gives_way_where_it_proves_slower_than_predicted(known, monkeypatch):
    known(facts(2.0))
    a = np.ones((1024, 1024), np.float32)
    problem, now, launched = replace(LARGE, dtype="float32"), [0.0], []

    def launcher(plan):
        def launch(*operands):
            launched.append(plan.device.key)
            now[0] += 1.0 if plan.device.backend == "numpy" else 0.01

        return launch

    monkeypatch.setattr(execute.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(execute, "launcher", launcher)
    for _ in range(8):
        execute.run(problem, "auto", None, (a, a, None, a, 1.0, 0.0, None))
    assert launched == ["numpy:0"] * (1 + calibration.TIMES) + ["cpu:0"] * (7 - calibration.TIMES)


def test_it_computes_what_it_is_chosen_for(known):
    known(facts(2.0))
    dice = np.random.default_rng(1)
    a, b = (dice.integers(-3, 4, (512, 512)).astype(np.float32) for _ in "ab")
    plan = gemm.plan(a, b)
    assert plan.kernel == "sgemm_numpy_blas"
    exact = a.astype(int) @ b.astype(int)
    for _ in range(3):
        assert (gemm.gemm(a, b) == exact).all()


def test_bounds_stay_below_predictions_of_all_that_compute_in_host_memory(known):
    known(found := facts(2.0))
    dice = np.random.default_rng(2)
    for dtype in ("float32", "float64", "int16"):
        line = candidates.lineup(
            candidates.example(replace(LARGE, dtype=dtype)), "auto", None, found, host=True, trusting=True
        )
        for _ in range(100):
            m, n, k = (int(2 ** dice.uniform(0, 12)) for _ in "mnk")
            problem = Problem(dtype, m, n, k, int(dice.choice([1, 9])), layout=str(dice.choice(["NNN", "TSN"])))
            for _, bound, place in line.bounds(problem):
                weighed = line.all[place].weigh(problem)
                assert weighed.seconds is None or bound <= weighed.seconds * (1 + 1e-9)


def test_explain_says_why_a_smaller_prediction_for_numpys_blas_is_not_enough(known, capsys):
    known(facts(1.05))
    a = np.ones((1024, 1024), np.float32)
    gemm.explain(a, a)
    told = capsys.readouterr().out
    assert told.splitlines()[3].startswith("→ sgemm_")
    assert "NumPy's BLAS is chosen only if its predicted time × 1.1 is the least." in told


@pytest.mark.parametrize(("dtype", "rate"), [("float32", 2 * RATE), ("float64", 2 * RATE), ("int16", None)])
def test_the_reference_has_the_rates_that_were_measured_for_the_same_function(known, dtype, rate):
    known(found := facts(2.0))
    device, reference = REAL("numpy").devices()[0], BY_NAME["gemm_numpy_reference"]
    problem = replace(LARGE, m=4096, n=1, k=4096, dtype=dtype)
    candidate = candidates.RowOnDevice(reference, device, problem, found, trusting=True).weigh(problem)
    assert candidate.compute >= sum(problem.moved) / 1e10  # the measured rate of host memory
    assert candidate.basis == ("measured" if rate else "guessed")
    if rate:
        large = candidates.RowOnDevice(reference, device, LARGE, found, trusting=True).weigh(LARGE)
        assert large.compute == pytest.approx(LARGE.flops / rate, rel=0.2)


def test_an_engine_that_is_missing_is_told_of_though_numpys_blas_computes(known, monkeypatch, caplog):
    known(facts(2.0))

    def absent(name):
        if name == "cpu":
            raise BackendUnavailable("cpu", "the C extension gemm._cpu is not built")
        return REAL(name)

    monkeypatch.setattr(candidates.registry, "backend", absent)
    choice._warn_without_engine.cache_clear()
    verification.forget_choices()
    assert chosen(LARGE) in BLAS
    assert "multiplies by NumPy" in caplog.text
    choice._warn_without_engine.cache_clear()
