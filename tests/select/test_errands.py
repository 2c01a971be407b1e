"""A search for devices goes on beside products: none of them waits for it, nor a fork's child; who names a device does.

The search is held up by a backend that waits in the child until a file is there, so that nothing depends on luck.
"""

import os
import threading
from functools import partial
from types import SimpleNamespace

import helpers
import pytest

from gemm.catalog import BACKENDS, BY_NAME
from gemm.core.problem import Candidate, Device
from gemm.select import choice, probe, verification, worker

SLOW = """
import os, time
import numpy as np
from gemm.core.backend import Backend
from gemm.core.problem import Device

class Slow(Backend):
    name = "slow"
    def devices(self):
        open(os.environ["GATE"] + ".reached", "w").close()
        while not os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)
        return (Device("slow", "slow:0", "a device", kind="gpu"),)
    def launcher(self, kernel, device, problem):
        def launch(a, b, c, out, alpha, beta):
            out[...] = alpha * (a @ b) + (0 if c is None else beta * c)
        return launch
"""
CUSTOMIZE = """
import os, sys
if os.environ.get("UNBUILT"):
    sys.modules["gemm._cpu"] = None  # as in a checkout where nothing was built
import gemm.catalog as catalog
for name in ("opencl", "cuda"):
    del catalog.BACKENDS[name]
catalog.BACKENDS["slow"] = "slow:Slow"
rows = (*[row for row in catalog.KERNELS if row.name in ("sgemm_scalar_4x4", "gemm_numpy_reference")],
        catalog.Kernel("sgemm_slow_1x1", "slow", "slow", "float32", catalog.BY_NAME["sgemm_generic_naive"].source,
                       ordered=False, gflops=1e9))
names = {"KERNELS": rows, "BY_NAME": {row.name: row for row in rows}, "TARGETS": {row.target for row in rows}}
for module in [module for name, module in sys.modules.items() if name.startswith("gemm") and module]:
    vars(module).update({name: value for name, value in names.items() if hasattr(module, name)})
"""
START = """
import logging, os, signal, sys, threading, time
import numpy as np
signal.alarm(100)  # what hangs is a failure
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import gemm
from gemm.select import probe, worker
gate, worker.PATIENCE = os.environ["GATE"], 0.1
small, large = np.ones((9, 9), np.float32), np.ones((700, 700), np.float32)
def reached():
    while not os.path.exists(gate + ".reached"): time.sleep(0.01)
def opened():
    open(gate, "w").close()
def searched():
    while probe.recalled[probe.entry()] is None or worker._running: time.sleep(0.01)
"""


@pytest.fixture
def python(tmp_path):
    """Runs START and some code beside a backend whose search ends no sooner than the code says; returns the output."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)

    return partial(
        helpers.python, prelude=START, path=tmp_path, GATE=tmp_path / "gate", GEMM_NUM_THREADS="1",
        GEMM_CACHE_DIR=tmp_path / "cache", GEMM_PROBE_TIMEOUT="90", GEMM_ADAPT="0",
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
def test_while_a_thread_waits_for_devices_small_products_and_forks_go_on(python):
    python(
        """
        waits = threading.Thread(target=probe.facts)
        waits.start()
        reached()
        assert (gemm.gemm(small, small) == 9).all() and waits.is_alive()
        if (pid := os.fork()) == 0:
            signal.alarm(50)
            fine = (gemm.gemm(small, small) == 9).all() and (gemm.gemm(large, large) == 700).all()
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert waits.is_alive()
        opened()
        waits.join()
        assert probe.recalled[probe.entry()].devices
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
def test_a_child_of_a_fork_in_the_midst_of_a_search_makes_its_own(python):
    """The parent's goes on in no thread of the child's."""
    python(
        """
        waits = threading.Thread(target=probe.facts)
        waits.start()
        reached()
        if (pid := os.fork()) == 0:
            signal.alarm(50)
            opened()
            os._exit(0 if probe.facts().devices and (gemm.gemm(large, large) == 700).all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        waits.join()
        assert probe.recalled[probe.entry()].devices
        """
    )


def test_a_large_product_is_computed_by_what_is_known_while_devices_are_looked_for(python):
    told = python(
        """
        assert (gemm.gemm(large, large) == 700).all()
        reached()
        plan = gemm.plan(large, large)
        assert plan.device == "cpu:0" and "until devices have been looked for" in plan.reason
        for _ in range(3):
            assert (gemm.gemm(large, large) == 700).all() and (plan(large, large) == 700).all()
        assert probe.recalled[probe.entry()] is None
        opened()
        searched()
        assert (plan(large, large) == 700).all()
        assert "until" not in plan.reason and "until" not in gemm.plan(large, large).reason
        """
    )
    assert "gemm waits" not in told


ONCE_TOLD = """
class Told(logging.Handler):
    def emit(self, record):
        opened()
logging.getLogger("gemm").addHandler(Told())
"""


@pytest.mark.parametrize("code", [
    "gemm.explain(large, large)", "gemm.explain(large, large, backend='slow')",
    "import gemm.cli; assert gemm.cli.main(['explain', '-M', '700', '-N', '700', '-K', '700']) == 0",
])  # fmt: skip
def test_who_asks_for_the_choice_waits_and_is_told(python, code):
    told = python(
        f"""{ONCE_TOLD}
{code}
assert probe.recalled[probe.entry()].devices
"""
    )
    assert "gemm waits: it looks for devices and verifies their kernels" in told


def test_who_names_a_device_waits_for_one_kernel_of_it(python):
    """A child process loads the driver first, because a driver may kill its process. The other kernels are verified
    after the product; until then, the same kernel repeats it.
    """
    told = python(
        f"""{ONCE_TOLD}
begun, begin = [], worker.begin
worker.begin = lambda key, what, work, **more: begun.append(what) or begin(key, what, work, **more)
assert (gemm.gemm(large, large, backend="slow") == 700).all()
assert begun == ["looks for devices", "verifies sgemm_slow_1x1 on a device",
                 "looks for devices and verifies their kernels"], begun
searched()
assert (gemm.gemm(large, large, backend="slow") == 700).all()
assert len(begun) == 3, begun
plan = gemm.plan(large, large, backend="slow")
assert plan.device == "slow:0" and "until" not in plan.reason, plan.reason
"""
    )
    assert "gemm waits: it looks for devices, once" in told


@pytest.mark.parametrize(("setting", "words"), [
    ({"GEMM_CPU_ISA": "avx9000"}, "GEMM_CPU_ISA=avx9000 names no target. Set it to one of"),
    ({"UNBUILT": "1"}, "gemm._cpu is not built. Install the package and run outside of its checkout, or build it"),
], ids=["mistyped", "not built"])  # fmt: skip
def test_without_the_cpu_engine_it_is_said_once_and_devices_are_looked_for(python, setting, words):
    told = python(
        """
        for _ in range(3):
            assert (gemm.gemm(small, small) == 9).all() and (small.astype(int) @ small.astype(int) == 9).all()
            assert (gemm.gemm(large, large) == 700).all() and (gemm.matmul(large, large[:, :500]) == 700).all()
        reached()
        opened()
        searched()
        assert (gemm.gemm(large, large) == 700).all()
        assert gemm.plan(large, large).device == "slow:0"  # the reference is the last resort
        """,
        **setting,
    )
    assert told.count(words) == 1


def test_several_threads_make_one_search(python, tmp_path):
    python(
        """
        started = []
        from gemm.select.worker import Child
        start = Child._start
        Child._start = lambda self: started.append(self) or start(self)
        waits = [threading.Thread(target=probe.facts) for _ in range(4)]
        for thread in waits: thread.start()
        gemm.gemm(large, large)
        reached(), opened()
        for thread in waits: thread.join()
        assert len(started) == 1
        """
    )


def test_a_process_that_ends_leaves_what_it_has_found_to_the_next_one(python, tmp_path):
    """Nor does it wait for the rest."""
    python("gemm.gemm(large, large); reached()")
    (entry,) = (tmp_path / "cache").glob("begun-*")
    assert b"sgemm_scalar_4x4" in entry.read_bytes()
    python(
        """
        from gemm.select.worker import Child
        asked, ask = [], Child.ask
        Child.ask = lambda self, request, limit: asked.append(request) or ask(self, request, limit)
        opened()
        facts = probe.facts()
        assert "sgemm_scalar_4x4 on cpu:0" in asked[0]["skip"]
        assert facts.kernels["sgemm_scalar_4x4", "cpu:0"]["ok"] and facts.kernels["sgemm_slow_1x1", "slow:0"]["ok"]
        """
    )
    assert not list((tmp_path / "cache").glob("begun-*"))


def test_the_probe_starts_after_the_product(python):
    """It would take the cores and the memory that the product needs."""
    python(
        """
        from gemm.backends import registry
        opened()
        begun, begin, at = [], worker.begin, []
        worker.begin = lambda key, what, work, **more: begun.append(what) or begin(key, what, work, **more)
        backend = registry.backend("slow")
        make = backend.launcher
        def launcher(*args):
            launch = make(*args)
            return lambda *given: (at.append(list(begun)), launch(*given))
        backend.launcher = launcher
        assert (gemm.gemm(large, large, backend="slow") == 700).all()
        assert at == [["looks for devices", "verifies sgemm_slow_1x1 on a device"]], at
        assert begun[2:] == ["looks for devices and verifies their kernels"]
        searched()
        """
    )


def test_a_wrong_time_limit_of_the_probe_is_an_error_before_the_product(python):
    """Otherwise out, which is c, would be lost."""
    python(
        """
        from gemm.catalog import BY_NAME
        from gemm.select import verification
        opened()
        assert verification.verified(BY_NAME["sgemm_slow_1x1"], probe.devices("slow")[0], ordered=False)
        os.environ["GEMM_PROBE_TIMEOUT"] = "soon"
        c = large.copy()
        try:
            gemm.gemm(large, large, c, beta=1.0, out=c, backend="slow")
        except ValueError as error:
            assert "GEMM_PROBE_TIMEOUT must be a positive number of seconds" in str(error), error
        else:
            sys.exit("it was not refused")
        assert (c == 1).all()
        os.environ["GEMM_PROBE_TIMEOUT"] = "90"
        assert (gemm.gemm(large, large, c, beta=1.0, out=c, backend="slow") == 701).all()
        searched()
        """
    )


def test_who_waits_is_not_given_the_choice_of_who_did_not_wait(python):
    told = python(
        """
        opened()
        begin = probe._begin
        probe._begin = lambda *kind: begin(*kind) if kind else None  # the probe starts late
        assert (gemm.gemm(large, large, backend="slow") == 700).all()
        assert probe.recalled[probe.entry()] is None
        probe._begin = begin
        gemm.explain(large, large, backend="slow")
        assert probe.recalled[probe.entry()].devices
        """
    )
    assert "chosen: sgemm_slow_1x1 on slow:0" in told
    assert "until" not in told


def test_who_looked_for_the_device_verifies_its_kernel(python):
    """The worker has loaded Python, the package and the driver. The probe looks for devices again, in a new one."""
    python(
        """
        started, start, worker.LINGER = [], worker.Child._start, 0.0
        worker.Child._start = lambda self: started.append(self) or start(self)
        opened()
        worker.LINGER = 100.0
        assert (gemm.gemm(large, large, backend="slow") == 700).all()
        worker.LINGER = 0.0
        searched()
        assert len({*map(id, started)}) == len(started) == 2
        while started[1]._process: time.sleep(0.01)
        assert worker._spare == started[:1] and started[0].usable
        """
    )


@pytest.fixture
def spared(monkeypatch):
    """Makes a worker whose task has ended. It has loaded no driver.

    A test calls this function itself, because pytest changes an environment variable between a fixture and its test.
    """
    child = worker.Child("gemm.select.probe")

    def make():
        assert not list(child.ask({"skip": list(BACKENDS), "verify": False}, 60))
        monkeypatch.setattr(worker, "_spare", [child])
        return child

    yield make
    child.close()


def test_a_worker_is_used_again_by_one_task_only(spared):
    spare = spared()
    process = spare._process
    assert worker._spare_or_new() is spare
    assert worker._spare_or_new() is not spare
    worker._discard(spare)  # by the task that has ended
    assert spare._process is process
    worker._spare.append(spare)
    worker._discard(spare)
    assert spare._process is None
    assert process.wait(60) != 0


@pytest.mark.parametrize("why", ["it has ended", "another environment"])
def test_a_worker_is_not_used_again(why, spared, monkeypatch):
    """The task that has ended ends it: whoever begins a task holds a lock, and does not wait for the end."""
    spare = spared()
    process = spare._process
    if why == "it has ended":
        process.kill()
        process.wait(60)
    else:
        monkeypatch.setenv("OCL_ICD_VENDORS", "/another/folder")
    assert worker._spare_or_new() is not spare
    assert spare._process is process
    worker._discard(spare)
    assert process.wait(60) != 0
    assert not worker._spare


def test_a_child_of_a_fork_leaves_its_parents_worker_alone(spared):
    spare = spared()
    worker._forked()
    assert not worker._spare
    assert spare.usable


@pytest.mark.parametrize("ok", [True, False])
def test_a_worker_in_which_a_kernel_failed_is_not_used_again(monkeypatch, ok):
    """The driver may be in a bad state since."""
    line = {"step": "kernel", "kernel": "sgemm_slow_1x1", "device": "slow:0", "ok": ok, "error": ""}
    closed = []
    child = SimpleNamespace(ask=lambda *_: iter([line]), close=lambda: closed.append(ok))
    monkeypatch.setattr(probe.disk_cache, "load", lambda _: None)
    monkeypatch.setattr(probe.disk_cache, "remove", lambda _: None)
    assert probe._probe(SimpleNamespace(child=child, stopped=False), verify=True).lines == [line]
    assert closed == ([] if ok else [False])


def test_an_error_of_the_work_is_that_of_who_waits():
    def work(_):
        raise ZeroDivisionError("the work's")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="the work's"):
            worker.begin("faulty", "fails", work).wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_after_the_work_leaves_no_worker(monkeypatch):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "LINGER", 0.0)
    monkeypatch.setattr(worker, "finished", [fail])
    task = worker.begin("early", "works", lambda _: None)
    task.wait()
    for thread in threading.enumerate():
        if thread.name == "gemm-task":
            thread.join(60)
    assert task.child not in worker._spare


def test_workers_are_killed_before_the_end_of_one_is_awaited(monkeypatch):
    seen = []
    workers = [SimpleNamespace(kill=lambda: seen.append("kill"), close=lambda patience: seen.append("close"))] * 2
    monkeypatch.setattr(worker, "_spare", workers)
    worker._stop()
    assert seen == ["kill", "kill", "close", "close"]


def test_where_no_thread_can_be_had_who_waits_does_the_work(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    task = worker.begin("alone", "works", done.append)
    assert not done
    task.wait()
    assert done == [task]


# Rows that are verified when they are first to be chosen.

FAST, OTHER, TILE = map(BY_NAME.get, ("sgemm_cuda_ffma_tma_128x128", "sgemm_cuda_ffma_64x64", "sgemm_cuda_tile"))
GPU = Device("cuda", "cuda:0", "a GPU", kind="gpu")


class Field:
    """A queue of candidates, all of late rows."""

    facts = None

    def __init__(self, *seconds):
        rows = (FAST, OTHER, TILE)
        self.left = [Candidate(row, GPU, time) for row, time in zip(rows, seconds, strict=True)]

    def pop(self, without):
        return self.left.pop(0) if self.left else None


@pytest.mark.parametrize(("known", "seconds", "patient", "expected", "log"), [
    ({FAST: True}, (1, 2, 3), False, (FAST, False), []),
    ({OTHER: True}, (1, 1.5, 1.6), False, (OTHER, True), ["begin", FAST]),
    ({OTHER: True}, (1, 1.5, 1.6), True, (FAST, False), ["wait", FAST]),
    ({OTHER: True}, (1, 60, 70), False, (FAST, False), ["begin", FAST, "wait", FAST]),
    ({}, (1, 1.1, 1.2), False, (TILE, True), ["begin", FAST, "wait", TILE]),
    ({}, (1, 1.1, 1.2), True, (FAST, False), ["wait", FAST]),
    ({}, (1, 1.1, 60), False, (FAST, False), ["begin", FAST, "wait", FAST]),  # for the simplest takes too long
    ({FAST: False}, (1, 1.1, 1.2), False, (TILE, True), ["begin", OTHER, "wait", TILE]),
    ({FAST: False, OTHER: False}, (1, 1.1, 1.2), False, (TILE, False), ["begin", TILE, "wait", TILE]),
    ({FAST: False, OTHER: True}, (1, 2, 3), False, (OTHER, False), []),
    ({FAST: False, OTHER: False, TILE: False}, (1, 2, 3), False, (None, False), []),
], ids=str)  # fmt: skip
def test_what_is_verified_stands_in_for_what_is_not_yet(monkeypatch, known, seconds, patient, expected, log):
    done = []
    records = {kernel: {"ok": ok} for kernel, ok in known.items()}
    monkeypatch.setattr(verification, "record", lambda kernel, _, **__: records.get(kernel))
    monkeypatch.setattr(verification, "verified", lambda kernel, _, **__: done.extend(("wait", kernel)) or True)
    monkeypatch.setattr(verification, "begin", lambda kernel, _, **__: done.extend(("begin", kernel)))
    queue = Field(*seconds)
    found, meanwhile = choice._standing_in(queue.pop(()), queue, (), patient=patient, ordered=False)
    assert ((found and found.kernel), meanwhile) == expected
    assert done == log


def test_a_simplest_kernel_that_fails_is_followed_by_the_soonest_that_is_right(monkeypatch):
    monkeypatch.setattr(verification, "record", lambda *_, **__: None)
    monkeypatch.setattr(verification, "begin", lambda *_, **__: None)
    monkeypatch.setattr(verification, "verified", lambda kernel, _, **__: kernel is OTHER)
    queue = Field(1, 1.1, 1.2)
    found, meanwhile = choice._standing_in(queue.pop(()), queue, (), patient=False, ordered=False)
    assert (found.kernel, meanwhile) == (OTHER, False)


@pytest.mark.parametrize(("name", "known", "expected"), [
    ("sgemm_generic_naive", None, True), ("sgemm_generic_naive", probe.Facts([]), False),
    ("sgemm_cuda_tile", probe.Facts([]), True), ("sgemm_scalar_4x4", None, False),
])  # fmt: skip
def test_before_the_probe_has_ended_each_row_of_a_device_is_verified_when_first_chosen(name, known, expected):
    """As products of arrays on a device need that row alone, and do not wait for all."""
    assert verification.unproven(BY_NAME[name], known) == expected
