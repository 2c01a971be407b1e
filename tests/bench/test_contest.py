"""When a benchmark gives a ratio, and when it says what to do instead: recorded times and loads, no clock."""

import functools
import itertools
import os
import subprocess
import sys
from dataclasses import replace

import helpers
import numpy as np
import pytest

from gemm.backends import registry
from gemm.bench import charts, comparison, contest, contestants, peaks, products, verdicts
from gemm.bench.contest import Contestant, Pace
from gemm.bench.peers import Absent, Unable, devices
from gemm.bench.products import FLOAT32, Arithmetic, Shape
from gemm.cli import bench
from gemm.core import threads
from gemm.core.problem import Device, Problem

QUIET = {"load_before": [0.02, 0.1, 0.3], "load_after": [0.3, 0.1, 0.3], "others_before": 0.0, "stolen_before": 0.0,
         "others_cores": 0.01, "stolen": 0.0, "median_spread": 0.02}  # fmt: skip


class Recorded:
    """A Watch that saw these facts."""

    def __init__(self, **facts):
        self._facts = QUIET | facts

    def facts(self, spreads):
        return self._facts


def contestant(backend, samples, resident=(), kind="cpu"):
    device = Device(backend, f"{backend}:0", "x", kind=kind)
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


@pytest.mark.parametrize(("kind", "device"), [("gpu", "opencl:0"), ("cpu", "opencl:0 (this CPU)")])
def test_ratios_of_a_quiet_machine(capsys, kind, device):
    bench._compare([STEADY[0], contestant("opencl", [0.5, 0.51, 0.5, 0.49, 0.5], [0.25] * 5, kind)], Recorded())
    out = " ".join(capsys.readouterr().out.split())
    assert f"Host to host, sgemm_opencl on {device} is 2 times as fast as the cpu backend (1.98 to 2)." in out
    assert f"Resident, sgemm_opencl on {device} is 4 times as fast as the cpu backend (4 to 4)." in out
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


def called(monkeypatch, seconds):
    """A call that takes the next of `seconds` on a clock of its own, and the list of those that it took."""
    now, calls = [0.0], []

    def call():
        calls.append(next(seconds))
        now[0] += calls[-1]

    monkeypatch.setattr(contest.time, "perf_counter", lambda: now[0])
    return call, calls


def test_a_sample_waits_until_the_threads_are_on_cores_of_their_own(monkeypatch):
    """PyTorch took 8 ms for 64³ in most rounds on 16 cores, 9 µs in the others: two of its threads shared a core."""
    call, calls = called(monkeypatch, itertools.chain([0.008] * 20, itertools.repeat(1e-5)))
    assert contest.warm(call, 9e-6) == 9e-6
    assert (len(calls), calls[-1]) == (21, 1e-5)  # more than WAKING
    call, calls = called(monkeypatch, itertools.repeat(0.008))
    assert contest.warm(call, 9e-6) == 9e-6  # no longer than PLACING
    assert contest.PLACING <= sum(calls) < contest.PLACING + 0.009
    call, calls = called(monkeypatch, itertools.repeat(1e-3))
    assert contest.warm(call) == pytest.approx(1e-3)  # no call before: as long as WAKING
    assert contest.WAKING <= sum(calls) < contest.WAKING + 2e-3


def test_a_disturbed_warm_up_does_not_shorten_samples(monkeypatch):
    call, calls = called(monkeypatch, itertools.chain([0.01] * 5, itertools.repeat(1e-5)))
    monkeypatch.setattr(contest, "settle", lambda: None)
    one = contestant("numpy", [])
    one.call = call
    contest.compete([one], Pace(5, 0.0), 1, lambda name: None)
    assert one.host[-1] == pytest.approx(1e-5)
    assert one.fastest == pytest.approx(1e-5)
    assert len(calls) >= 5 + 4 * 50  # SAMPLE takes 50 calls


def test_clocks_settle():
    rising = itertools.chain([1.0] * 5, [0.8] * 5, [0.7] * 5, itertools.repeat(0.699))
    taken = []
    assert contest.steady(lambda: taken.append(next(rising)) or taken[-1], limit=100.0)
    assert len(taken) == 20
    halves = (2.0**-at for at in itertools.count())
    assert not contest.steady(lambda: next(halves) * 10, limit=15.0)


def test_resident_samples_of_a_gpu_wait_for_its_clocks(monkeypatch):
    settled = []
    monkeypatch.setattr(contest, "steady", lambda sample: bool(settled.append(sample())))
    for kind, times in (("gpu", 3), ("cpu", 0)):
        one = contestant("opencl", [], [])
        one.device, one.launch = Device("opencl", "opencl:0", "x", kind=kind), lambda: None
        contest.compete([one], Pace(3, 1.0), 1, lambda name: None)
        assert (len(one.host), len(one.resident), len(settled), one.unsettled) == (3, 3, times, times)
        assert len(contest.unsettled([one])) == bool(times)  # a note
        settled.clear()


@pytest.mark.parametrize(("seconds", "samples"), [(0.01, 10), (0.5, 3), (1.1, 1)])
def test_slow_calls_have_three_rounds_or_one(monkeypatch, seconds, samples):
    now = itertools.count()  # each look at the clock takes a millisecond, however busy the machine is
    monkeypatch.setattr(contest.time, "perf_counter", lambda: next(now) / 1000)
    monkeypatch.setattr(contest, "timed", lambda call, times=1: seconds)
    one = contestant("numpy", [], [])
    contest.compete([one], Pace(10, 1.0), 2, lambda name: None)
    assert one.host == [seconds] * samples


def test_no_round_starts_after_the_time_is_over(monkeypatch):
    now = itertools.count()  # each look at the clock takes a second
    monkeypatch.setattr(contest.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(contest, "timed", lambda call, times=1: 0.1)
    one = contestant("cpu", [], [])
    contest.compete([one], Pace(1 << 20, 7.0), 1, lambda name: None)
    assert contest.LEAST <= len(one.host) <= 20


def test_few_rounds_permit_no_ratio(capsys):
    assert verdicts.compared([2.0], "A", "B") == "no ratio between A and B: measured once"
    once = contestant("numpy", [2.0])
    bench._compare([STEADY[0], once], Recorded())
    out = " ".join(capsys.readouterr().out.split())
    assert "no ratio between NumPy and the cpu backend: measured once" in out
    assert verdicts.ADVICE not in out
    (row,) = bench._ratios(Shape(2, 2, 2), [STEADY[0], once])
    assert row["host_spread"] is None
    common = {"family": "f", "series": "s", "products": 1, "seconds": 1.0}
    rows = [
        {**common, "name": str(size), "size": size, "contestant": key, "mode": mode, "samples_s": samples}
        for size in (8, 16)
        for key, mode, samples in (
            ("cpu:0", "host", [1.0] * 5),
            ("gpu", "host", [0.5] * (5 if size == 8 else 1)),
            ("gpu", "resident", [0.1] * (5 if size == 8 else 1)),
        )
    ]
    assert verdicts.spreads(rows) == [0.0]
    assert [found["sizes"] for found in verdicts.thresholds(rows)] == [[8], [8]]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc/stat")
def test_children_are_no_other_processes(monkeypatch):
    spent = [0.0]
    monkeypatch.setattr(contest, "BEFORE", 0.0)
    monkeypatch.setattr(threads, "_ticks", lambda: (10 + spent[0], 0.01 * bool(spent[0])))
    monkeypatch.setattr(threads.os, "times", lambda: (0.0, 0.0, spent[0], 0.0, 0.0))
    watch = contest.Watch()
    spent[0] = 2.0
    facts = watch.facts([])
    assert facts["others_cores"] == facts["stolen"] == 0.0  # a single tick is below the clock's resolution


def test_the_limit_grows_with_the_machine(monkeypatch):
    monkeypatch.setattr(contest.os, "cpu_count", lambda: 200)
    assert contest.warnings(QUIET | {"others_cores": 0.9}) == []
    assert contest.warnings(QUIET | {"others_cores": 1.1})
    monkeypatch.setattr(contest.os, "cpu_count", lambda: 2)
    assert contest.warnings(QUIET | {"others_cores": 0.06})


@pytest.mark.parametrize(
    ("peer", "how", "able"),
    [
        ("clblast", Arithmetic("float64"), True),
        ("clblast", Arithmetic("float16"), False),
        ("clblast", Arithmetic("complex64"), False),
        ("cublas", Arithmetic("complex64"), True),
        ("cublas", Arithmetic("bfloat16"), False),
        ("cublas", Arithmetic("int32", ("int8", "int8")), False),
        ("cublas", Arithmetic("float32", ("float16", "float16")), False),
    ],
)
def test_device_peers_multiply_their_own_types_only(peer, how, able):
    types = {"clblast": devices._TYPES, "cublas": devices._CUBLAS}[peer]
    multiply = functools.partial(np.matmul, casting="unsafe")
    one = devices.DevicePeer(peer, "x", Device("opencl", "opencl:7", "x"), np.copy,
                             lambda a, b, out: multiply(a, b, out=out), lambda: None,
                             lambda array, out: np.copyto(out, array), tuple(types))  # fmt: skip
    a, b = np.ones((2, 2), np.float64), np.ones((2, 2), np.float64)
    if able:
        assert contestants.enter_device_peer(one, how, Shape(2, 2, 2), a, b).out[0, 0] == 2
    else:
        with pytest.raises(Unable, match="no function"):
            contestants.enter_device_peer(one, how, Shape(2, 2, 2), a, b)


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


@pytest.fixture
def opencl():
    found = [device for device in comparison.all_devices()[0] if device.backend == "opencl"]
    return found[0] if found else pytest.skip("there is no OpenCL device")


def test_links_and_peaks_of_opencl_devices(opencl):
    found = peaks.link(opencl)
    assert set(found) == set(peaks.LINKS)
    assert all(value > 0 for value in found.values())
    assert peaks._opencl(opencl, "float32").gflops > 0
    assert peaks._opencl(opencl, "int8") is None
    assert peaks.link(Device("cpu", "cpu:0", "x")) is None


def test_limits_that_a_driver_refuses_are_not_known(opencl, monkeypatch):
    import pyopencl as cl

    def refuse(*args, **kwargs):
        return cl.Buffer(opencl.handle.context, cl.mem_flags.READ_WRITE, 1 << 60)

    monkeypatch.setattr(cl, "enqueue_copy", refuse)
    assert peaks._memory(replace(opencl, kind="gpu", limits={})) == (None, "not known")
    monkeypatch.setattr(type(registry.backend("opencl")), "copies", lambda self, device, size: [refuse])
    assert peaks.link.__wrapped__(opencl) is None


def test_rooflines_count_the_bytes_of_narrow_inputs():
    assert charts._intensity({"m": 2, "n": 3, "k": 5}, (1, 1, 4)) == 60 / (10 + 15 + 24)


def test_no_kernel_offers_the_arithmetic():
    chosen, lead = comparison._choice(Problem(m=8, n=8, k=8, dtype="complex64", reproducible=True))
    assert (chosen, lead) == ("none", None)


def test_a_library_that_does_not_load_is_named_once():
    with pytest.raises(Absent, match=r"^libnone\.so\.7: (?!libnone)"):
        devices.CLBlast("libnone.so.7", None)
