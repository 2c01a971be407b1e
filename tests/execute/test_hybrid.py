"""backend="hybrid": one product on the CPU and a device at once, here an OpenCL CPU and the emulated GPU."""

import ctypes
import logging
import os
import signal
import threading
import time
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from helpers import at_once, emulate, forget_drivers, probed, products, python, rand
from numpy.testing import assert_allclose, assert_array_equal

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.core import engine
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Problem, Split
from gemm.execute import split
from gemm.select import probe, verification

M, N, K = 320, 200, 150
KERNELS = {"opencl": ("sgemm_generic_naive", "dgemm_generic_naive"), "cuda": ("sgemm_cuda_tile", "dgemm_cuda_tile")}


@pytest.fixture(params=["opencl", "cuda"])
def device(request, monkeypatch):
    """A device that the probe is said to have found to be right and about as fast as the CPU, with cores of its own."""
    if request.param == "cuda":
        emulate(monkeypatch, streams="late")
        monkeypatch.setattr(registry, "backend", cache(registry.backend.__wrapped__))  # others keep theirs
    backend = registry.backend(request.param)
    try:
        found = backend.devices()[0]
    except BackendUnavailable as error:
        pytest.skip(str(error))
    rates = {"launch": 1e-6, "flops": 1e11, "upload": 1e12, "download": 1e12}
    facts = probed((replace(found, kind="gpu"), dict.fromkeys(KERNELS[found.backend], rates)))
    monkeypatch.setattr(probe, "recalled", probe.Recalled({probe.entry(): facts}))
    found_right = {True: {"ok": True, "error": ""}, False: {"ok": False, "error": "for the test"}}
    monkeypatch.setattr(verification, "record", lambda kernel, device, **_: found_right[kernel.name in KERNELS["cuda"]])
    monkeypatch.setattr(verification, "_failed", {})
    monkeypatch.setattr(verification, "_lost", {})
    monkeypatch.setattr(split, "_shares_cores", lambda device: False)
    monkeypatch.setattr(split, "START", 0.0)
    monkeypatch.setattr(split, "GAIN", 2.0)  # whatever a cut gains
    execute.forget()
    yield found
    execute.forget()
    forget_drivers()


def abc():
    """Operands of a product that is cut."""
    return rand(M, K), rand(K, N), rand(M, N)


def sides(*operands, **options):
    """Those of a product, which must be cut; the device's is the first."""
    plan = gemm.plan(*operands, backend="hybrid", **options)
    chosen = execute.choose(plan._problem, "hybrid")
    assert isinstance(chosen, Split)
    assert len(chosen.sides) == 2
    assert plan.kernel == " + ".join(side.kernel.name for side in chosen.sides)
    assert plan.device == f"{chosen.sides[0].device.key} + cpu:0"
    return list(chosen.sides)


def the_same(*operands, out=None, **options):
    """The bits of the CPU, cut as the plan says, with and without an out."""
    options["reproducible"] = True
    there, here = sides(*operands, out=out, **options)
    assert there.problem.m + here.problem.m == M or there.problem.batch + here.problem.batch > 2
    right = gemm.gemm(*operands, backend="cpu", **options)
    found = gemm.gemm(*operands, backend="hybrid", **options)
    assert_array_equal(found, right)
    if out is not None:
        assert gemm.gemm(*operands, backend="hybrid", out=out, **options) is out
        assert_array_equal(out, right)


PRODUCTS = products(M, N, K)


@pytest.mark.parametrize("name", PRODUCTS)
def test_bits_are_those_of_the_cpu(device, name):
    if name == "float64" and "fp64" not in device.features:
        pytest.skip("the device has no float64")
    operands, options = PRODUCTS[name]
    the_same(*operands, **options)


def test_out_may_be_c_and_may_overlap(device):
    a, b, c = abc()
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    assert gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True, out=c) is c
    assert_array_equal(c, right)
    square = rand(M, M)
    right = gemm.gemm(square, square.T, backend="cpu", reproducible=True)
    assert_array_equal(gemm.gemm(square, square.T, backend="hybrid", reproducible=True, out=square), right)


def test_without_reproducible_it_is_as_accurate(device):
    a, b, _ = abc()
    sides(a, b)
    for _ in range(3):
        assert_allclose(gemm.gemm(a, b, backend="hybrid"), a.astype("d") @ b, rtol=1e-4, atol=1e-4)


def test_a_plan_runs_both_sides_and_explains_them(device, capsys):
    a, b, _ = abc()
    there, _ = sides(a, b)
    plan = gemm.plan(a, b, backend="hybrid", reproducible=True)
    for _ in range(2):
        assert_array_equal(plan(a, b), gemm.gemm(a, b, backend="cpu", reproducible=True))
    gemm.explain(a, b, backend="hybrid")
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("→") == 2
    assert f"rows 0 to {there.problem.m - 1} on {device.key} in about" in told
    assert f"rows {there.problem.m} to {M - 1} on cpu:0 in about" in told
    assert "alone would take about" in told


class Failing:
    """Replaces launches of one backend by ones that fail, `times` times, after they have written nonsense to out."""

    def __init__(self, monkeypatch, backend, times=99, **how):
        self.times, real = times, type(registry.backend(backend)).launcher

        def launcher(own, kernel, device, problem):
            launch = real(own, kernel, device, problem)

            def failing(*operands):
                if not self.times:
                    return launch(*operands)
                self.times -= 1
                if operands[2] is None:
                    operands[3][...] = np.nan
                raise KernelFailed("it fails for the test", **how)

            return failing

        monkeypatch.setattr(type(registry.backend(backend)), "launcher", launcher)
        execute.forget()


@pytest.mark.parametrize("side", ["cpu", "device"])
@pytest.mark.parametrize("memory", [False, True])
def test_a_side_that_fails_is_made_up_for(device, monkeypatch, caplog, side, memory):
    a, b, c = abc()
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    plain = gemm.gemm(a, b, backend="cpu", reproducible=True)
    sides(a, b, c, beta=0.5, reproducible=True)
    failing = "cpu" if side == "cpu" else device.backend
    Failing(monkeypatch, failing, memory=memory)
    with caplog.at_level(logging.WARNING, "gemm"):
        assert gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True, out=c) is c
    assert_array_equal(c, right)
    failed = {key for _, key in verification._failed}
    assert failed == (set() if memory else {"cpu:0" if side == "cpu" else device.key})
    assert len(caplog.records) == len(verification._failed)
    if not memory:  # the next product is the other side's
        assert side == "device" or gemm.plan(a, b, backend="hybrid", reproducible=True).device == device.key
        assert_array_equal(gemm.gemm(a, b, backend="hybrid", reproducible=True), plain)


def test_both_sides_fail_and_numpy_delivers(device, monkeypatch):
    a, b, _ = abc()
    for name in ("cpu", device.backend):
        Failing(monkeypatch, name)
    assert_allclose(gemm.gemm(a, b, backend="hybrid"), a @ b, rtol=1e-4, atol=1e-4)
    chosen = execute.choose(Problem("float32", M, N, K), "hybrid", None, None, frozenset({("nothing", "nowhere")}))
    assert chosen.kernel.name == "gemm_numpy_reference"


def test_what_nobody_can_make_up_for_is_an_error(device, monkeypatch):
    a, b, c = abc()
    sides(a, b, c, beta=0.5, reproducible=True)
    Failing(monkeypatch, device.backend)
    Failing(monkeypatch, "cpu")
    before = c.copy()
    with pytest.raises(BackendUnavailable):  # NumPy offers no reproducible=True
        gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True)
    assert_array_equal(c, before)


def parts_by(monkeypatch, run):
    """Have `run` compute the parts of products."""
    real = split.SplitLaunch.__init__
    monkeypatch.setattr(split.SplitLaunch, "__init__", lambda self, plan, _: real(self, plan, run))
    execute.launcher.cache_clear()  # which made launches that have the real one


def test_an_out_that_is_c_and_was_partly_written_is_said_to_be(device, monkeypatch):
    a, b, c = abc()
    real, rows = execute.run, sides(a, b, c, beta=0.5, out=c)[0].problem.m

    def run(problem, backend, *rest):
        if problem.m == rows:
            raise BackendUnavailable(backend, "fails for the test")
        return real(problem, backend, *rest)

    parts_by(monkeypatch, run)
    with pytest.raises(RuntimeError, match="out is the same array as c, and is partly written"):
        gemm.gemm(a, b, c, beta=0.5, backend="hybrid", out=c)


def test_a_device_that_is_lost_leaves_all_to_the_cpu(device, monkeypatch):
    a, b, _ = abc()
    Failing(monkeypatch, device.backend, lost=True)
    right = gemm.gemm(a, b, backend="cpu")
    assert_array_equal(gemm.gemm(a, b, backend="hybrid"), right)
    plan = gemm.plan(a, b, backend="hybrid")
    assert (plan.device, plan.reason) == ("cpu:0", "least predicted time; no other device has a kernel for it")
    assert_array_equal(plan(a, b), right)


def test_threads_cut_products_side_by_side(device):
    a, b, _ = abc()
    right = gemm.gemm(a, b, backend="cpu", reproducible=True)
    for found in at_once(lambda _: gemm.gemm(a, b, backend="hybrid", reproducible=True), range(3)):
        assert_array_equal(found, right)


class Slow(split.Side):
    """A side that writes to out until it is let go. `waits` has an entry for each time that a thread waits for it."""

    def __init__(self, name, wait=lambda get: get()):
        super().__init__(name, self._write)
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), False
        self.waits, self._wait, self._queue, self._finished = SimpleQueue(), wait, self._finished, self

    def put(self, item):
        self._queue.put(item)

    def get(self):
        self.waits.put(None)
        self._wait(self._queue.get)

    def _write(self, backend):
        self.begun.set()
        assert self.go.wait(60)
        time.sleep(0.02)  # for a thread that does not wait to go on
        self.ended = True


def own(what):
    """The CPU's side, in the calling thread, which does `what` there."""
    return split.Side("cpu", lambda _: what())


def begun(slow):
    for side in slow:
        assert side.begun.wait(60)


class Interrupts:
    """Raises KeyboardInterrupt in the main thread `left` times, in mid-run of what `during` runs.

    A signal that comes just before a wait begins does not end the wait. Therefore there is one every few milliseconds.
    """

    def __init__(self, times):
        self.left, self._open, self._stop = times, False, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self):
        self._before = signal.signal(signal.SIGINT, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)

    def _send(self):
        while not self._stop.wait(0.005):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def _handle(self, *_):
        if self._open and self.left:
            self.left -= 1
            raise KeyboardInterrupt

    def during(self, work):
        self._open = True
        try:
            work()
        finally:
            self._open = False


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="a signal is sent to the main thread")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("busy", [True, False])
def test_ctrl_c_waits_for_the_other_side(busy, count, times):
    """While the own side computes, and while it waits for the others, however often: out is nobody's when it raises."""

    def work():
        begun(slow)
        if busy:
            interrupts.during(lambda: time.sleep(60))

    def wait(get):
        if not interrupts.left:
            for side in slow:
                side.go.set()
        interrupts.during(get)

    slow = [Slow(f"side {i}", wait) for i in range(count)]
    with Interrupts(times) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            split.at_once([*slow, own(work)])
        ended = [side.ended for side in slow]
        for side in slow:
            side.go.set()
    assert all(ended)
    assert not interrupts.left


def test_an_exception_of_a_debugger_or_timeout_waits_too():
    """Raised in a thread by PyThreadState_SetAsyncExc."""
    slow, ended, found = Slow("side"), [], []

    def work():
        try:
            split.at_once([slow, own(lambda: begun([slow]))])
        except BaseException as error:
            found.append(error)
        ended.append(slow.ended)

    thread = threading.Thread(target=work)
    thread.start()
    slow.waits.get(timeout=60)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(ZeroDivisionError))
    slow.go.set()
    thread.join()
    assert ended == [True]
    assert [type(error) for error in found] == [ZeroDivisionError]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_interrupt_while_sides_are_started(monkeypatch, which):
    """What was begun is waited for; what was not is not begun later."""
    slow = [Slow(f"side {i}") for i in range(3)]
    real, started = split.start_new_thread, list[Any]()

    def start(work, given):
        if len(started) == which:
            begun(slow[:which])
            for each in slow[:which]:
                each.go.set()
            raise KeyboardInterrupt
        started.append(work)
        real(work, given)

    monkeypatch.setattr(split, "start_new_thread", start)
    with pytest.raises(KeyboardInterrupt):
        split.at_once([*slow, own(lambda: None)])
    assert [side.ended for side in slow] == [True] * which + [False] * (3 - which)
    assert len(started) == which
    assert [side.begun.is_set() for side in slow] == [True] * which + [False] * (3 - which)


def not_started(monkeypatch):
    """What threads would do that are never started."""
    given = []
    monkeypatch.setattr(split, "start_new_thread", lambda work, by: given.append(lambda: work(*by)))
    return given


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_part_that_was_given_up_is_not_begun(monkeypatch, error):
    """Ctrl-C, or a mistake, between its start and the moment that the other thread takes it."""
    given, slow = not_started(monkeypatch), Slow("side")

    def fail():
        raise error

    with pytest.raises(error):
        split.at_once([slow, own(fail)])
    (begin,) = given
    begin()
    assert not slow.begun.is_set()


def test_a_part_that_no_thread_has_begun_is_computed_here(monkeypatch):
    """It is computed once: the thread finds that nothing is left."""
    given, done = not_started(monkeypatch), []
    split.at_once([own(lambda: done.append("other")), own(lambda: done.append("own"))])
    given[0]()
    assert done == ["own", "other"]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_no_thread_can_be_had(device, monkeypatch, error):
    def refused(*_):
        raise error("can't start new thread")

    monkeypatch.setattr(split, "start_new_thread", refused)
    the_same(*abc()[:2])


def test_a_failure_of_the_split_itself_does_not_compute_with_an_overwritten_c(device, monkeypatch):
    """c is out, and one side has written its part when the other cannot begin."""
    a, b, c = abc()
    gemm.gemm(a, b, c, beta=0.5, out=c.copy(), backend="hybrid")

    def refused(*_):
        raise MemoryError("of the split")

    def at_once(sides):
        sides[0].work("there")
        refused()

    monkeypatch.setattr(split, "at_once", at_once)
    out = c.copy()
    with pytest.raises(RuntimeError, match="of the split; out is the same array as c, and is partly written"):
        gemm.gemm(a, b, out, beta=0.5, out=out, backend="hybrid")
    monkeypatch.setattr(split, "at_once", refused)
    out = c.copy()
    gemm.gemm(a, b, out, beta=0.5, out=out, backend="hybrid")  # nothing was written: the next best computes it
    assert_allclose(out, a @ b + 0.5 * c, rtol=1e-3, atol=1e-3)


def test_a_wait_that_is_interrupted_goes_on():
    """The wait is one step in C, which takes no lock that an interrupt could leave held: an Event's is Python's."""
    side, interrupts = Slow("side"), iter((KeyboardInterrupt, KeyboardInterrupt))
    real = side._queue

    class Interrupted:
        put = real.put

        def get(self):
            if (error := next(interrupts, None)) is not None:
                raise error
            side.go.set()
            real.get()

    side._queue = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        split.at_once([side, own(lambda: begun([side]))])
    assert side.ended
    assert next(interrupts, None) is None


@pytest.mark.parametrize("kernel", ["nope", "sgemm_scalar_4x4"])
def test_a_wrong_name_is_refused_before_devices_are_looked_for(monkeypatch, kernel):
    def looked(**_):
        raise AssertionError("looked for devices")

    monkeypatch.setattr(split.probe, "facts", looked)
    with pytest.raises(ValueError, match="kernel"):
        gemm.gemm(rand(3, 4), rand(4, 5), backend="hybrid", kernel=kernel)


def test_both_sides_compute_at_once(device, monkeypatch):
    """Each waits until the other is at it."""
    a, b, _ = abc()
    sides(a, b, reproducible=True)
    right, real, both = gemm.gemm(a, b, backend="cpu", reproducible=True), execute.run, threading.Barrier(2)

    def run(*given):
        both.wait(60)
        return real(*given)

    parts_by(monkeypatch, run)
    assert_array_equal(gemm.gemm(a, b, backend="hybrid", reproducible=True), right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("device", ["opencl"], indirect=True)
def test_the_child_of_a_fork_has_threads_of_its_own(device, monkeypatch):
    a, b, _ = abc()
    right = gemm.gemm(a, b, backend="hybrid", reproducible=True)
    real = execute.run
    parts_by(monkeypatch, lambda x, _, *rest: real(x, "cpu", *rest))  # drivers do not outlive a fork
    if (pid := os.fork()) == 0:
        try:
            os._exit(not np.array_equal(gemm.gemm(a, b, backend="hybrid", reproducible=True), right))
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("reproducible", [False, True])
def test_nothing_is_learned_from_what_was_computed(device, reproducible):
    a, b, _ = abc()
    plan = execute.choose(gemm.plan(a, b, backend="hybrid", reproducible=reproducible)._problem, "hybrid")
    for _ in range(5):
        gemm.gemm(a, b, backend="hybrid", reproducible=reproducible)
    assert execute.choose(plan.problem, "hybrid") == plan


def rated(monkeypatch, seed):
    """The probe is said to have found other rates, by chance."""
    dice = np.random.default_rng(seed)
    facts = probe.recalled[probe.entry()]
    assert facts is not None
    lines = [
        {**line, "launch": 10 ** dice.uniform(-6, -3), "flops": 10 ** dice.uniform(10, 12),
         "upload": 10 ** dice.uniform(9, 11), "download": 10 ** dice.uniform(9, 11)}
        if line["step"] == "kernel" else line for line in facts.lines
    ]  # fmt: skip
    monkeypatch.setattr(probe, "recalled", probe.Recalled({probe.entry(): probe.Facts(lines)}))
    execute.forget()


@pytest.mark.parametrize("seed", range(8))
def test_sides_end_nearly_as_soon_as_any_cut_lets_them(device, monkeypatch, seed):
    """By predicted times. A side that is too slow for a share is left out."""
    rated(monkeypatch, seed)
    monkeypatch.setattr(split, "GAIN", 0.95)
    execute.forget()
    square = Problem("float32", 8192, 4096, 4096)
    found = execute.choose(square, "hybrid")

    def end(rows):
        shares = ((rows, device.key), (8192 - rows, "cpu"))
        return max(execute.choose(replace(square, m=m), name).seconds for m, name in shares if m)

    best = min(end(rows) for rows in range(0, 8193, 64))
    assert found.seconds == pytest.approx(max(side.seconds for side in getattr(found, "sides", (found,))))
    assert found.seconds <= 1.06 * best  # a second side that gains less is left out: GAIN


def test_small_products_and_devices_of_shared_cores_are_not_cut(device, monkeypatch):
    monkeypatch.setattr(split, "GAIN", 0.95)
    execute.forget()
    tiny, a, b = rand(8, 8), rand(M, K), rand(K, N)
    assert "+" not in gemm.plan(tiny, tiny, backend="hybrid").kernel
    assert_allclose(gemm.gemm(tiny, tiny, backend="hybrid"), tiny @ tiny, rtol=1e-4, atol=1e-4)
    sides(a, b)
    monkeypatch.setattr(split, "_shares_cores", lambda device: True)
    execute.forget()
    alone = gemm.plan(a, b, backend="hybrid")
    assert alone.device in ("cpu:0", device.key)
    assert alone.reason.endswith(f"{device.key} computes on the CPU's own cores")


@pytest.mark.parametrize("device", ["opencl"], indirect=True)
def test_memory_of_gemm_empty_is_one_sides_at_a_time(device):
    a, b, out = rand(M, K), gemm.empty((K, N), np.float32, device.key), gemm.empty((M, N), np.float32, device.key)
    b[...] = rand(K, N)
    plan = gemm.plan(a, b, out=out, backend="hybrid")
    assert "+" not in plan.kernel
    assert plan.reason.endswith("operands in memory of gemm.empty are used by one device at a time")
    gemm.gemm(a, b, out=out, backend="hybrid")
    assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_cpus_are_left_to_the_device_and_the_limit_stays(device, monkeypatch):
    found = {}
    real = execute.run

    def run(problem, backend, *rest):
        found[backend] = gemm.get_num_threads()
        return real(problem, backend, *rest)

    parts_by(monkeypatch, run)
    before = gemm.get_num_threads()
    try:
        for limit, left in ((16, 4), (8, 2), (4, 1), (3, 0), (1, 0)):
            gemm.set_num_threads(limit)
            gemm.gemm(rand(M, K), rand(K, N), backend="hybrid")
            assert found == {device.key: limit, "cpu": limit - left}
            assert gemm.get_num_threads() == limit
    finally:
        gemm.set_num_threads(None)
    with engine.leaving(before + 1):
        assert gemm.get_num_threads() == 1
    assert gemm.get_num_threads() == before


def test_operands_on_a_device_are_multiplied_there(device):
    backend = registry.backend(device.backend)
    a, b, _ = abc()
    x, y = (backend.to_device(array, device).owner for array in (a, b))
    chosen = gemm.plan(x, y, backend="hybrid")
    assert chosen.device == device.key
    found = backend.view(chosen(x, y), "result")
    assert found is not None
    assert_allclose(backend.to_host(found), a @ b, rtol=1e-4, atol=1e-4)


def test_names_that_do_not_go_together(device):
    a, b = rand(8, 8), rand(8, 8)
    with pytest.raises(ValueError, match="does not belong to backend='hybrid'"):
        gemm.gemm(a, b, backend="hybrid", kernel="sgemm_scalar_4x4")
    with pytest.raises(ValueError, match="packed for one device"):
        gemm.prepare(b, backend="hybrid")
    with pytest.raises(ValueError, match="did you mean hybrid"):
        gemm.gemm(a, b, backend="hybrids")


def test_without_a_device_it_says_so():
    python(
        """
        import numpy as np, gemm
        a = np.ones((64, 64), np.float32)
        for call in (gemm.gemm, gemm.plan):
            try:
                call(a, a, backend="hybrid")
            except gemm.BackendUnavailable as error:
                assert error.backend == "hybrid" and "no device other than the CPU" in error.cause, error
                assert "Install a driver" in error.remedy
            else:
                raise AssertionError("nothing was raised")
        """,
        OCL_ICD_VENDORS=os.devnull, OCL_ICD_FILENAMES="", GEMM_LIBCUDA=os.devnull, GEMM_CACHE_DIR=os.devnull,
        CUDA_VISIBLE_DEVICES="", GEMM_CPU_ISA="scalar",
    )  # fmt: skip
