"""backend="hybrid": one product on the CPU and a device at once, here an OpenCL CPU and the emulated GPU."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import cuda_machine
import numpy as np
import pytest
from test_dispatch import run_python

import gemm
from gemm import engine
from gemm.backends import cuda_api, cuda_compiler
from gemm.backends.base import Backend
from gemm.dispatch import balance, choice, correction, hybrid, late, probe, registry, together, trust
from gemm.dispatch.plan import Plan, Split
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device, Problem

M, N, K = 320, 200, 150
KERNELS = {"opencl": ("sgemm_generic_naive", "dgemm_generic_naive"), "cuda": ("sgemm_cuda_tile", "dgemm_cuda_tile")}


@pytest.fixture(params=["opencl", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device that the probe is said to have found to be right and about as fast as the CPU, with cores of its own."""
    backend: Backend
    if request.param == "cuda":
        try:
            settings = cuda_machine.environment(streams="late")
        except OSError as error:
            pytest.skip(f"the emulated machine is not built here: {error}")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        _forget_cuda()
        monkeypatch.setattr(registry, "backend", cache(registry.backend.__wrapped__))  # others keep theirs
    backend = registry.backend(request.param)
    try:
        found = backend.devices()[0]
    except BackendUnavailable as error:
        pytest.skip(str(error))
    lines: list[dict[str, Any]] = [{"step": "device", "device": found.key, "backend": found.backend,
                                    "name": found.name, "driver": found.driver, "kind": "gpu"}]  # fmt: skip
    lines += ({"step": "kernel", "kernel": name, "device": found.key, "ok": True, "error": "", "launch": 1e-6,
               "flops": 1e11, "upload": 1e12, "download": 1e12} for name in KERNELS[found.backend])  # fmt: skip
    monkeypatch.setattr(probe, "_memory", {probe.entry(): probe.Facts(lines)})
    found_right = {True: {"ok": True, "error": ""}, False: {"ok": False, "error": "for the test"}}
    monkeypatch.setattr(late, "record", lambda kernel, device: found_right[kernel.name in KERNELS["cuda"]])
    monkeypatch.setattr(trust, "_failed", {})
    monkeypatch.setattr(trust, "_lost", {})
    monkeypatch.setattr(hybrid, "shares_cores", lambda device: False)
    monkeypatch.setattr(balance, "START", 0.0)
    monkeypatch.setattr(hybrid, "GAIN", 2.0)  # whatever a cut gains
    monkeypatch.setenv("GEMM_ADAPT", "0")
    choice.forget()
    yield found
    choice.forget()
    _forget_cuda()


def _forget_cuda() -> None:
    for cached in (cuda_api.cuda, cuda_compiler.compilers, cuda_compiler.compiler):
        cached.cache_clear()


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def sides(*operands: np.ndarray, **options: Any) -> list[Plan]:
    """Those of a product, which must be cut; the device's is the first."""
    plan = gemm.plan(*operands, backend="hybrid", **options)
    chosen = choice.choose(plan._problem, "hybrid")
    assert isinstance(chosen, Split)
    assert len(chosen.sides) == 2
    assert plan.kernel == " + ".join(side.kernel.name for side in chosen.sides)
    assert plan.device == f"{chosen.sides[0].device.key} + cpu:0"
    return list(chosen.sides)


def the_same(*operands: Any, out: Any = None, **options: Any) -> None:
    """The bits of the CPU, cut as the plan says, with and without an out."""
    there, here = sides(*operands, out=out, **options)
    assert there.problem.m + here.problem.m == M or there.problem.batch + here.problem.batch > 2
    right = gemm.gemm(*operands, backend="cpu", **options)
    found = gemm.gemm(*operands, backend="hybrid", **options)
    np.testing.assert_array_equal(found, right)
    if out is not None:
        assert gemm.gemm(*operands, backend="hybrid", out=out, **options) is out
        np.testing.assert_array_equal(out, right)


CALLS: dict[str, Callable[[], None]] = {
    "plain": lambda: the_same(rand(M, K), rand(K, N), out=np.full((M, N), np.nan, "f"), reproducible=True),
    "float64": lambda: the_same(rand(M, K, dtype="d"), rand(K, N, dtype="d"), reproducible=True, alpha=1.5),
    "transposed": lambda: the_same(rand(K, M), rand(N, K), trans_a=True, trans_b=True, reproducible=True),
    "columns": lambda: the_same(rand(M, K), rand(K, N), out=np.empty((N, M), "f").T, reproducible=True),
    "strided": lambda: the_same(rand(2 * M, K)[::-2], rand(K, 2 * N)[:, ::2], reproducible=True),
    "beta": lambda: the_same(rand(M, K), rand(K, N), rand(M, N), beta=-0.5, reproducible=True),
    "broadcast c": lambda: the_same(rand(M, K), rand(K, N), rand(N), beta=2.0, reproducible=True),
    "batch": lambda: the_same(rand(90, 40, 50), rand(90, 50, 60), out=np.empty((90, 40, 60), "f"), reproducible=True),
    "two batch axes": lambda: the_same(
        rand(3, 30, 40, 50), rand(50, 60), rand(30, 40, 60), beta=1.0, bias=rand(40, 1), reproducible=True
    ),
    "a stack of large ones": lambda: the_same(rand(2, M, K), rand(K, N), reproducible=True),
    "row bias": lambda: the_same(rand(M, K), rand(K, N), bias=rand(N), activation="relu", reproducible=True),
    "column bias": lambda: the_same(rand(M, K), rand(K, N), bias=rand(M, 1), reproducible=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_bits_are_those_of_the_cpu(device: Device, name: str) -> None:
    if name == "float64" and "fp64" not in device.features:
        pytest.skip("the device has no float64")
    CALLS[name]()


def test_out_may_be_c_and_may_overlap(device: Device) -> None:
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    assert gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True, out=c) is c
    np.testing.assert_array_equal(c, right)
    square = rand(M, M)
    right = gemm.gemm(square, square.T, backend="cpu", reproducible=True)
    np.testing.assert_array_equal(gemm.gemm(square, square.T, backend="hybrid", reproducible=True, out=square), right)


def test_without_reproducible_it_is_as_accurate(device: Device) -> None:
    a, b = rand(M, K), rand(K, N)
    sides(a, b)
    for _ in range(3):
        np.testing.assert_allclose(gemm.gemm(a, b, backend="hybrid"), a.astype("d") @ b, rtol=1e-4, atol=1e-4)


def test_a_plan_runs_both_sides_and_explains_them(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = rand(M, K), rand(K, N)
    there, _ = sides(a, b)
    plan = gemm.plan(a, b, backend="hybrid", reproducible=True)
    for _ in range(2):
        np.testing.assert_array_equal(plan(a, b), gemm.gemm(a, b, backend="cpu", reproducible=True))
    gemm.explain(a, b, backend="hybrid")
    told = capsys.readouterr().out
    assert told.count("→") == 2
    assert f"rows 0 to {there.problem.m - 1} on {device.key} in about" in told
    assert f"rows {there.problem.m} to {M - 1} on cpu:0 in about" in told
    assert "alone would take about" in told


class Failing:
    """Replaces launches of one backend by ones that fail, `times` times, after they have written nonsense to out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: str, times: int = 99, **how: bool) -> None:
        self.times, real = times, type(registry.backend(backend)).launcher

        def launcher(own: Any, kernel: Any, device: Any, problem: Any) -> Any:
            launch = real(own, kernel, device, problem)

            def failing(*operands: Any) -> None:
                if not self.times:
                    return launch(*operands)
                self.times -= 1
                if operands[2] is None:
                    operands[3][...] = np.nan
                raise KernelFailed("it fails for the test", **how)

            return failing

        monkeypatch.setattr(type(registry.backend(backend)), "launcher", launcher)
        choice.forget()


@pytest.mark.parametrize("side", ["cpu", "device"])
@pytest.mark.parametrize("memory", [False, True])
def test_a_side_that_fails_is_made_up_for(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, side: str, memory: bool
) -> None:
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    plain = gemm.gemm(a, b, backend="cpu", reproducible=True)
    sides(a, b, c, beta=0.5, reproducible=True)
    failing = "cpu" if side == "cpu" else device.backend
    Failing(monkeypatch, failing, memory=memory)
    with caplog.at_level(logging.WARNING, "gemm"):
        assert gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True, out=c) is c
    np.testing.assert_array_equal(c, right)
    failed = {key for _, key in trust._failed}
    assert failed == (set() if memory else {"cpu:0" if side == "cpu" else device.key})
    assert len(caplog.records) == len(trust._failed)
    if not memory:  # the next product is the other side's
        assert side == "device" or gemm.plan(a, b, backend="hybrid", reproducible=True).device == device.key
        np.testing.assert_array_equal(gemm.gemm(a, b, backend="hybrid", reproducible=True), plain)


def test_both_sides_fail_and_numpy_delivers(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = rand(M, K), rand(K, N)
    for name in ("cpu", device.backend):
        Failing(monkeypatch, name)
    np.testing.assert_allclose(gemm.gemm(a, b, backend="hybrid"), a @ b, rtol=1e-4, atol=1e-4)
    chosen = choice.choose(Problem("float32", M, N, K), "hybrid", None, None, frozenset({("nothing", "nowhere")}))
    assert chosen.kernel.name == "gemm_numpy_reference"


def test_what_nobody_can_make_up_for_is_an_error(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    sides(a, b, c, beta=0.5, reproducible=True)
    Failing(monkeypatch, device.backend)
    Failing(monkeypatch, "cpu")
    before = c.copy()
    with pytest.raises(BackendUnavailable):  # NumPy offers no reproducible=True
        gemm.gemm(a, b, c, beta=0.5, backend="hybrid", reproducible=True)
    np.testing.assert_array_equal(c, before)


def test_an_out_that_is_c_and_was_partly_written_is_said_to_be(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    real = together._Part.run

    def run(part: Any, backend: str) -> None:
        if part.name != "cpu":
            raise BackendUnavailable(backend, "fails for the test")
        real(part, backend)

    monkeypatch.setattr(together._Part, "run", run)
    with pytest.raises(RuntimeError, match="out, which is c, is partly written"):
        gemm.gemm(a, b, c, beta=0.5, backend="hybrid", out=c)


def test_a_device_that_is_lost_leaves_all_to_the_cpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = rand(M, K), rand(K, N)
    Failing(monkeypatch, device.backend, lost=True)
    right = gemm.gemm(a, b, backend="cpu")
    np.testing.assert_array_equal(gemm.gemm(a, b, backend="hybrid"), right)
    plan = gemm.plan(a, b, backend="hybrid")
    assert (plan.device, plan.reason) == ("cpu:0", "the other side has no kernel for it")
    np.testing.assert_array_equal(plan(a, b), right)


def test_threads_cut_products_side_by_side(device: Device) -> None:
    from concurrent.futures import ThreadPoolExecutor

    a, b = rand(M, K), rand(K, N)
    right = gemm.gemm(a, b, backend="cpu", reproducible=True)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: gemm.gemm(a, b, backend="hybrid", reproducible=True), range(6)))
    assert all(np.array_equal(x, right) for x in found)


class Slow(together.Side):
    """A side that writes to out until it is let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), False

    def load(self) -> None:
        pass

    def run(self, backend: str) -> None:
        self.begun.set()
        assert self.go.wait(60)
        time.sleep(0.1)
        self.ended = True


class Interrupted(together.Side):
    """The CPU's side, in the calling thread, which `what` happens to."""

    def __init__(self, what: Callable[[], None]) -> None:
        super().__init__("cpu")
        self._what = what

    def load(self) -> None:
        pass

    def run(self, backend: str) -> None:
        self._what()


def _signals(slow: Sequence[Slow], times: int) -> threading.Thread:
    """Ctrl-C, so many times, while the others are at work; then they may end."""

    def send() -> None:
        for side in slow:
            side.begun.wait(60)
        for _ in range(times):
            time.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)
        for side in slow:
            side.go.set()

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="a signal is sent to the main thread")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("busy", [True, False])
def test_ctrl_c_waits_for_the_other_side(busy: bool, count: int, times: int) -> None:
    """While the own side computes, and while it waits for the others, however often: out is nobody's when it raises."""
    slow = [Slow(f"side {i}") for i in range(count)]
    own = Interrupted((lambda: time.sleep(0.12)) if busy else (lambda: None))
    sender = _signals(slow, times)
    found = None
    try:
        together.at_once([*slow, own])
        found = own.failure  # of an interrupt while the own side computed, which whoever asked raises
    except KeyboardInterrupt as error:
        found = error
    ended = [side.ended for side in slow]
    for _ in range(2):  # what is still on its way
        with suppress(KeyboardInterrupt):
            sender.join()
    assert isinstance(found, KeyboardInterrupt)
    assert all(ended)


def test_an_exception_of_a_debugger_or_timeout_waits_too() -> None:
    """Raised in a thread by PyThreadState_SetAsyncExc."""
    slow, ended, found = Slow("side"), [], []

    def work() -> None:
        try:
            together.at_once([slow, Interrupted(lambda: None)])
        except BaseException as error:
            found.append(error)
        ended.append(slow.ended)

    thread = threading.Thread(target=work)
    thread.start()
    slow.begun.wait(60)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(ZeroDivisionError))
    time.sleep(0.05)
    slow.go.set()
    thread.join()
    assert ended == [True]
    assert [type(error) for error in found] == [ZeroDivisionError]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_interrupt_while_sides_are_started(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """What was begun is waited for; what was not is not begun later."""
    slow = [Slow(f"side {i}") for i in range(3)]
    real, started = together._Beside.start, []

    def start(part: Any) -> None:
        if len(started) == which:
            for each in slow[:which]:
                each.begun.wait(60)
                each.go.set()
            raise KeyboardInterrupt
        started.append(part)
        real(part)

    monkeypatch.setattr(together._Beside, "start", start)
    with pytest.raises(KeyboardInterrupt):
        together.at_once([*slow, Interrupted(lambda: None)])
    assert [side.ended for side in slow] == [True] * which + [False] * (3 - which)
    for side in slow:
        side.go.set()
    time.sleep(0.05)
    assert [side.ended for side in slow] == [True] * which + [False] * (3 - which)


def test_a_part_that_was_given_up_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between its start and the moment that the other thread takes it."""
    given: list[Any] = []
    monkeypatch.setattr(together, "_idle", [SimpleNamespace(put=given.append)])
    slow = Slow("side")

    def interrupt(part: Any) -> None:
        raise KeyboardInterrupt

    own = Interrupted(lambda: None)
    monkeypatch.setattr(own, "compute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        together.at_once([slow, own])
    assert len(given) == 1
    assert not given[0].claimed("there")


def test_no_thread_can_be_had(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(together, "_idle", [])
    monkeypatch.setattr(together.threading.Thread, "start", refused)
    CALLS["plain"]()


def test_a_thread_is_kept_for_the_next_product(device: Device) -> None:
    CALLS["plain"]()
    kept, count = list(together._idle), threading.active_count()
    assert kept
    CALLS["plain"]()
    assert together._idle == kept
    assert threading.active_count() <= count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("device", ["opencl"], indirect=True)
def test_the_child_of_a_fork_has_threads_of_its_own(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = rand(M, K), rand(K, N)
    right = gemm.gemm(a, b, backend="hybrid", reproducible=True)
    assert together._idle
    real = together._Part.run
    monkeypatch.setattr(together._Part, "run", lambda part, name: real(part, "cpu"))  # drivers do not outlive a fork
    if (pid := os.fork()) == 0:
        try:
            os._exit(not np.array_equal(gemm.gemm(a, b, backend="hybrid", reproducible=True), right))
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def teach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let times count, and splitting only where it gains."""
    monkeypatch.setenv("GEMM_ADAPT", "1")
    monkeypatch.setattr(hybrid, "GAIN", 0.95)
    choice.forget()


TRIED = 3 * (1 + correction.TIMES)
"""Products of a class after which nothing is in doubt."""


def test_products_settle_on_what_takes_least_time(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch)
    a, b = rand(M, K), rand(K, N)
    right = gemm.gemm(a, b, backend="cpu", reproducible=True)
    taken = {(device.key,): 3e-4, ("cpu",): 2e-4, (device.key, "cpu"): 1.7e-4}
    done: list[tuple[str, ...]] = []
    real = together.at_once

    def at_once(parts: list[Any]) -> None:
        real(parts)
        done.append(tuple(part.name for part in parts))
        for part in parts:
            part.seconds = taken[done[-1]]

    monkeypatch.setattr(together, "at_once", at_once)
    plan = gemm.plan(a, b, backend="hybrid")
    for _ in range(TRIED):
        np.testing.assert_allclose(plan(a, b), right, rtol=1e-4, atol=1e-4)
    assert set(done) == set(taken)
    assert all(done.count(way) <= 1 + correction.TIMES for way in ((device.key,), ("cpu",)))
    done.clear()
    for _ in range(3):
        gemm.gemm(a, b, backend="hybrid")
    assert done == [(device.key, "cpu")] * 3
    choice.forget()
    taken[device.key, "cpu"] = 4e-4
    for _ in range(TRIED):
        plan(a, b)
    done.clear()
    for _ in range(3):
        np.testing.assert_allclose(gemm.gemm(a, b, backend="hybrid"), right, rtol=1e-4, atol=1e-4)
    chosen = choice.choose(plan._problem, "hybrid")
    assert (done, chosen.device.key, type(chosen)) == ([], "cpu:0", Plan)  # which needs no look any more


@pytest.mark.parametrize("how", ["GEMM_ADAPT=0", "reproducible"])
def test_nothing_is_learned(device: Device, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "reproducible":
        monkeypatch.setenv("GEMM_ADAPT", "1")
    a, b, reproducible = rand(M, K), rand(K, N), how == "reproducible"
    right = gemm.gemm(a, b, backend="cpu", reproducible=reproducible)
    before = [side.problem for side in sides(a, b, reproducible=reproducible)]
    for _ in range(4):
        found = gemm.gemm(a, b, backend="hybrid", reproducible=reproducible)
        if reproducible:
            np.testing.assert_array_equal(found, right)
        else:  # another order of sums on the other side
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    assert not correction._learned
    assert not correction._counts
    assert [side.problem for side in sides(a, b, reproducible=reproducible)] == before


def test_small_products_and_devices_of_shared_cores_are_not_cut(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hybrid, "GAIN", 0.95)
    choice.forget()
    tiny, a, b = rand(8, 8), rand(M, K), rand(K, N)
    assert "+" not in gemm.plan(tiny, tiny, backend="hybrid").kernel
    np.testing.assert_allclose(gemm.gemm(tiny, tiny, backend="hybrid"), tiny @ tiny, rtol=1e-4, atol=1e-4)
    sides(a, b)
    monkeypatch.setattr(hybrid, "shares_cores", lambda device: True)
    alone = gemm.plan(a, b, backend="hybrid")
    assert alone.device in ("cpu:0", device.key)
    assert alone.reason.endswith(f"{device.key} computes on the CPU's own cores")


@pytest.mark.parametrize("device", ["opencl"], indirect=True)
def test_memory_of_gemm_empty_is_one_sides_at_a_time(device: Device) -> None:
    a, b, out = rand(M, K), gemm.empty((K, N), np.float32, device.key), gemm.empty((M, N), np.float32, device.key)
    b[...] = rand(K, N)
    plan = gemm.plan(a, b, out=out, backend="hybrid")
    assert "+" not in plan.kernel
    assert plan.reason.endswith("operands in memory of gemm.empty are one side's at a time")
    gemm.gemm(a, b, out=out, backend="hybrid")
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_cpus_are_left_to_the_device_and_the_limit_stays(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, int] = {}
    real = together._Part.run

    def run(part: Any, backend: str) -> None:
        found[part.name] = gemm.get_num_threads()
        real(part, backend)

    monkeypatch.setattr(together._Part, "run", run)
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


def test_operands_on_a_device_are_multiplied_there(device: Device) -> None:
    backend = registry.backend(device.backend)
    a, b = rand(M, K), rand(K, N)
    x, y = (backend.to_device(array, device).owner for array in (a, b))
    chosen = gemm.plan(x, y, backend="hybrid")
    assert chosen.device == device.key
    found = backend.view(chosen(x, y), "result")
    assert found is not None
    np.testing.assert_allclose(backend.to_host(found), a @ b, rtol=1e-4, atol=1e-4)


def test_names_that_do_not_go_together(device: Device) -> None:
    a, b = rand(8, 8), rand(8, 8)
    with pytest.raises(ValueError, match="does not belong to backend='hybrid'"):
        gemm.gemm(a, b, backend="hybrid", kernel="sgemm_scalar_4x4")
    with pytest.raises(ValueError, match="packed for one device"):
        gemm.prepare(b, backend="hybrid")
    with pytest.raises(ValueError, match=r"one of auto, .*hybrid"):
        gemm.gemm(a, b, backend="hybrids")


def test_without_a_device_it_says_so() -> None:
    done = run_python(
        """
        import numpy as np, gemm
        a = np.ones((64, 64), np.float32)
        for call in (gemm.gemm, gemm.plan):
            try:
                call(a, a, backend="hybrid")
            except gemm.BackendUnavailable as error:
                assert error.backend == "hybrid" and "no device beside the CPU" in error.cause, error
                assert "Install a driver" in error.remedy
            else:
                raise AssertionError("nothing was raised")
        """,
        OCL_ICD_VENDORS=os.devnull, OCL_ICD_FILENAMES="", GEMM_LIBCUDA=os.devnull, GEMM_CACHE_DIR=os.devnull,
        CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


SQUARE = Problem("float32", 8192, 4096, 4096, layout="NNN")
Real = dict[tuple[str, bool], float]
"""{(side, whether beside the other one): what it takes ÷ what is predicted}."""


def taken(plan: Plan, real: Real) -> list[float]:
    """Seconds of the sides of `plan`."""
    sides = plan.sides if isinstance(plan, Split) else (plan,)
    return [real[hybrid.name_of(side), len(sides) > 1] * side.seconds / side.factor for side in sides]


def product(real: Real) -> Plan:
    """What is chosen for a product that then takes so long."""
    plan = choice.choose(SQUARE, "hybrid")
    if isinstance(plan, Split):
        hybrid.learn(plan, taken(plan, real))
    return plan


def test_a_cut_follows_what_sides_really_take(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch)
    real = {(device.key, True): 2.1, (device.key, False): 2.0, ("cpu", True): 0.85, ("cpu", False): 0.8}
    plans = [product(real) for _ in range(TRIED + 2)]
    cuts = [plan.sides for plan in plans if isinstance(plan, Split) and len(plan.sides) == 2]
    assert cuts[0][0].problem.m > cuts[-1][0].problem.m
    assert plans[-1] == plans[-2]
    assert plans[-1].reason.startswith("rows 0 to ")
    there, here = taken(plans[-1], real)
    assert there == pytest.approx(here, rel=0.2)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_no_worse_than_the_better_side(device: Device, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    teach(monkeypatch)
    dice = np.random.default_rng(seed)
    real = {(side, False): 2 ** dice.uniform(-1, 1) for side in (device.key, "cpu")}
    real |= {(side, True): real[side, False] * 2 ** dice.uniform(0, 1.5) for side in (device.key, "cpu")}
    plans = [product({at: x * dice.uniform(1, 1.02) for at, x in real.items()}) for _ in range(TRIED)]
    tried = [max(taken(plan, real)) for plan in plans]
    settled = choice.choose(SQUARE, "hybrid")
    assert product(real) == settled
    alone = [max(taken(plan, real)) for name in ("cpu", device.key) for plan in (choice.choose(SQUARE, name),)]
    assert max(taken(settled, real)) <= 1.03 * min(alone)
    assert max(taken(settled, real)) * hybrid.GAIN <= 1.03 * min(tried)


def test_one_disturbed_product_decides_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch)
    real = {(device.key, True): 1.2, (device.key, False): 1.0, ("cpu", True): 1.2, ("cpu", False): 1.0}
    last = [product({at: x * (9 if turn in (2, 9) else 1) for at, x in real.items()}) for turn in range(TRIED)][-1]
    assert isinstance(last, Split)
    assert len(last.sides) == 2
    there, here = taken(last, real)
    assert there == pytest.approx(here, rel=0.2)


def test_classes_are_learned_apart(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch)
    slow = {(side, together): 1.0 + together for side in (device.key, "cpu") for together in (True, False)}
    for _ in range(TRIED):
        product(slow)
    assert not isinstance(choice.choose(SQUARE, "hybrid"), Split)
    assert not isinstance(choice.choose(replace(SQUARE, m=8000, k=4100), "hybrid"), Split)
    for other in (replace(SQUARE, n=5800), replace(SQUARE, dtype="float64"), replace(SQUARE, precision="high")):
        if other.dtype == "float32" or "fp64" in device.features:
            assert isinstance(choice.choose(other, "hybrid"), Split)


def linear(launch: float, item: float) -> Callable[[int], float]:
    return lambda items: launch + item * items


@pytest.mark.parametrize(("grain", "total"), [(1, 1000), (64, 4096), (128, 1000), (100, 99), (1, 1)])
@pytest.mark.parametrize("ratio", [0.01, 0.2, 1.0, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("launch", [0.0, 0.05, 100.0])
def test_both_sides_end_as_soon_as_any_cut_lets_them(grain: int, total: int, ratio: float, launch: float) -> None:
    first, second = linear(launch, 1e-3 / ratio), linear(1e-3, 1e-3)

    def end(items: int) -> float:
        return max(first(items) if items else 0.0, second(total - items) if items < total else 0.0)

    items = balance.balanced(total, grain, first, second)
    assert items % grain == 0
    assert end(items) == min(end(at) for at in range(0, total + 1, grain))


def test_a_device_in_steps_is_given_whole_ones() -> None:
    def waves(items: int) -> float:
        return 1e-3 * -(-items // 256)

    items = balance.balanced(4096, 64, waves, linear(0.0, 1e-6))
    assert (
        max(waves(items), 1e-6 * (4096 - items))
        <= min(max(waves(x), 1e-6 * (4096 - x)) for x in range(0, 4097, 64)) * 1.3
    )
    assert items % 64 == 0
