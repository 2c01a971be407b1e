"""When a benchmark gives a ratio, and when it says what to do instead: recorded times and loads, no clock."""

import itertools
import os
import subprocess
import sys

import helpers
import numpy as np
import pytest

from gemm.bench import contest, peaks, products, verdicts
from gemm.bench.contest import Contestant, Pace
from gemm.bench.products import FLOAT32, Arithmetic, Shape
from gemm.cli import bench
from gemm.core.problem import Device

QUIET = {"load_before": [0.02, 0.1, 0.3], "load_after": [0.3, 0.1, 0.3], "others_before": 0.0, "stolen_before": 0.0,
         "others_cores": 0.01, "stolen": 0.0, "median_spread": 0.02}  # fmt: skip


class Recorded:
    """A Watch that saw these facts."""

    def __init__(self, **facts):
        self._facts = QUIET | facts

    def facts(self, spreads, helper=0.0):
        return self._facts


def contestant(backend, samples, resident=()):
    device = Device(backend, f"{backend}:0", "x")
    return Contestant(device, f"sgemm_{backend}", lambda: None, np.ones(1), host=samples, resident=list(resident))


STEADY = [contestant("cpu", [1.0, 1.01, 0.99, 1.0, 1.0]), contestant("opencl", [0.5, 0.51, 0.5, 0.49, 0.5], [0.25] * 5)]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"others_before": 1.2}, "used 1.20 cores before"),
        ({"others_cores": 1.29}, "used 1.29 cores on average"),
        ({"stolen": 0.14}, "withheld 14% of a core"),
        ({"median_spread": 0.31}, "spread by 31%"),
        (dict.fromkeys(("others_before", "others_cores", "stolen")) | {"load_before": [2.7, 1, 1]}, "was 2.70 before"),
    ],
)
def test_a_busy_machine_gets_advice_and_no_ratio(capsys, facts, words):
    (warning,) = contest.warnings(QUIET | facts)
    assert words in warning
    bench._compare(STEADY, Recorded(**facts))
    out = " ".join(capsys.readouterr().out.split())
    assert words in out
    assert verdicts.ADVICE in out
    assert "times as fast as" not in out


def test_a_load_average_that_lags_behind_does_not_count():
    assert contest.warnings(QUIET | {"load_before": [4.0, 2.0, 1.0]}) == []
    assert contest.warnings(QUIET | {"others_cores": None, "stolen": None, "load_before": None}) == []


def test_ratios_of_a_quiet_machine(capsys):
    bench._compare(STEADY, Recorded())
    out = " ".join(capsys.readouterr().out.split())
    assert "Host to host, sgemm_opencl on opencl:0 is 2 times as fast as the cpu backend (1.98 to 2)." in out
    assert "Resident, sgemm_opencl on opencl:0 is 4 times as fast as the cpu backend (4 to 4)." in out
    assert verdicts.RATIO in out
    assert verdicts.ADVICE not in out


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([2.0, 2.02, 1.98], "A is 2 times as fast as B (1.99 to 2.01)"),
        ([0.5, 0.5, 0.51], "B is 2 times as fast as A (1.98 to 2)"),
        ([0.99, 1.0, 1.01], "A and B are equally fast"),
        ([1 / 1.34, 26.6, 1.1, 3.0], "no ratio between A and B, because half of the rounds are outside 1.01 to 8.9"),
    ],
)
def test_compared(ratios, words):
    assert verdicts.compared(ratios, "A", "B") == words


def test_ratios_that_spread_get_advice(capsys):
    noisy = contestant("numpy", [1.0, 0.5, 2.0, 0.7, 1.4])
    bench._compare([STEADY[0], noisy], Recorded())
    out = " ".join(capsys.readouterr().out.split())
    assert "no ratio between NumPy and the cpu backend" in out
    assert verdicts.ADVICE in out


def test_clocks_settle():
    rising = itertools.chain([1.0] * 5, [0.8] * 5, [0.7] * 5, itertools.repeat(0.699))
    taken = []
    assert contest.steady(lambda: taken.append(next(rising)) or taken[-1], limit=100.0)
    assert len(taken) == 20
    halves = (2.0**-at for at in itertools.count())
    assert not contest.steady(lambda: next(halves) * 10, limit=15.0)


def test_resident_samples_of_a_gpu_wait_for_its_clocks(monkeypatch):
    settled = []
    monkeypatch.setattr(contest, "steady", lambda sample: settled.append(sample()))
    for kind, times in (("gpu", 3), ("cpu", 0)):
        one = contestant("opencl", [], [])
        one.device, one.launch = Device("opencl", "opencl:0", "x", kind=kind), lambda: None
        contest.compete([one], Pace(3, 1.0), 1, lambda name: None)
        assert (len(one.host), len(one.resident), len(settled)) == (3, 3, times)
        settled.clear()


def test_slow_calls_are_sampled_once(monkeypatch):
    monkeypatch.setattr(contest, "timed", lambda call, times=1: 0.5)
    one = contestant("numpy", [], [])
    contest.compete([one], Pace(10, 1.0), 2, lambda name: None)
    assert one.host == [0.5]


@pytest.mark.parametrize(
    "how",
    [Arithmetic(dtype) for dtype in ("float16", "float64", "complex64", "complex128", "int8", "int32", "int64")]
    + [Arithmetic("int32", ("uint8", "int8")), Arithmetic("float32", ("float16", "float16"), "medium"), FLOAT32],
    ids=str,
)
def test_results_of_every_type_are_checked(how):
    shape = Shape(9, 7, 33)
    a, b = shape.operands(*how.types)
    assert [x.dtype.name for x in (a, b)] == list(how.types)
    out = (a.astype(how.dtype) @ b.astype(how.dtype)).astype(how.dtype)
    one = contestant("cpu", [])
    one.out = out
    contest.check([one], shape, a, b, how)
    assert one.worst <= 1
    out[3, 4] += 1 if out.dtype.kind == "i" else 0.5
    contest.check([one], shape, a, b, how)
    assert one.worst > 1


def test_vectors_and_stacks_are_families():
    shapes = [case.shape for name in ("gemv", "batched") for case in products.cases([name], quick=True)]
    assert any(shape.n == 1 for shape in shapes)
    assert any(shape.m == 1 for shape in shapes)
    assert any(shape.batch > 1 for shape in shapes)


def test_links_of_an_emulated_gpu():
    program = """if True:
        from gemm.backends import registry
        from gemm.bench import peaks
        peaks._MOVED = 1 << 20
        (device, *_) = registry.backend("cuda").devices()
        found = peaks.link(device)
        assert set(found) == set(peaks.LINKS) and all(value > 0 for value in found.values()), found
    """
    environment = os.environ | helpers.machine()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=200)


def test_links_and_peaks_of_opencl_devices():
    from gemm.bench.comparison import all_devices

    devices = [device for device in all_devices()[0] if device.backend == "opencl"]
    if not devices:
        pytest.skip("there is no OpenCL device")
    found = peaks.link(devices[0])
    assert set(found) == set(peaks.LINKS)
    assert all(value > 0 for value in found.values())
    assert peaks._opencl(devices[0], "float32").gflops > 0
    assert peaks._opencl(devices[0], "int8") is None
    assert peaks.link(Device("cpu", "cpu:0", "x")) is None
