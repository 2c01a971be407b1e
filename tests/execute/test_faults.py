"""However a backend fails and however a product is asked for: the next kernel delivers it, and the log says so once.

A backend with two kernels is planted where dispatch asks for backends; the sooner kernel fails as it is told. What
PoCL's driver can be made to do is injected at pyopencl's border. Drivers that end, hang or lose a process:
tests/select/test_late.py, tests/select/test_dispatch.py and tests/backends/opencl/test_opencl_faults.py.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers import at_once, machine, probed, python
from numpy.testing import assert_array_equal

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.backends.opencl import launch
from gemm.backends.opencl.backend import OpenCLBackend
from gemm.catalog import BACKENDS, BY_NAME, HOST_BACKENDS, KERNELS, Kernel
from gemm.core import disk_cache
from gemm.core.backend import Backend, Kept
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, DeviceView, Problem
from gemm.select import candidates, cost, probe, verification, worker

FAULTY, SPARE = "sgemm_faulty_1x1", "sgemm_faulty_2x2"
DEVICE = Device("faulty", "faulty:0", "a device", driver="1", kind="gpu")


@dataclass(frozen=True)
class Fault:
    """What FAULTY does.

    Attributes:
        at: "keep", "build", "launch", or "verify", which is of its first choice in mid-run.
        error: makes what is raised; of "verify" it is the last line of a child's answer.
        words: what the log and `explain` say of it; "" for a want of memory, which demotes nothing.
    """

    at: str
    error: Callable[[], Any]
    words: str = ""


FAULTS = {
    "raises": Fault("launch", lambda: KernelFailed("invalid arguments"), "invalid arguments"),
    "lost": Fault("launch", lambda: KernelFailed("the bus is silent", lost=True), "the bus is silent"),
    "lost, as all its memory": Fault("launch", lambda: KernelFailed("gone", lost=True, memory=True), "gone"),
    "does not build": Fault("build", lambda: KernelFailed("unknown type half"), "unknown type half"),
    "lost at build": Fault("build", lambda: KernelFailed("the bus is silent", lost=True), "the bus is silent"),
    "no room at launch": Fault("launch", lambda: KernelFailed("no room for a", memory=True)),
    "no room at build": Fault("build", lambda: KernelFailed("no room for code", memory=True)),
    "no room on the host": Fault("launch", lambda: MemoryError("no room for a copy")),
    "no room on the host at build": Fault("build", MemoryError),
    "wrong numbers": Fault("verify", lambda: {"step": "kernel", "ok": False, "error": "exceeds the bound"}, "exceeds"),
    "kills the verifier": Fault("verify", lambda: {"step": "died", "cause": "ended with status -6"}, "status -6"),
    "hangs the verifier": Fault("verify", lambda: {"step": "died", "cause": "hung"}, "hung"),
    "no verifier": Fault("verify", lambda: {"step": "refused", "cause": "did not start: no memory"}, "did not start"),
}


class Faulty(Backend):
    """Two kernels that compute by NumPy, until FAULTY does as `fault` says from its launch number `when` on."""

    name = "faulty"

    def __init__(self, fault, when):
        self.fault, self.when = fault, when
        self.launches = Counter()
        self.spoils = False
        self.together = None

    def devices(self):
        return (DEVICE,)

    def keep(self, kernel, device, b, *, reproducible):
        self._fail("keep", kernel)
        owner = Kept(b.copy())
        return DeviceView(owner, owner.memory, 0, b.shape, b.strides, b.dtype, device, readonly=True)

    def launcher(self, kernel, device, problem):
        self._fail("build", kernel)

        def launch(a, b, c, out, alpha, beta):
            self.launches[kernel.name] += 1
            in_place = c is not None and np.may_share_memory(c, out)
            if not in_place or self.spoils:
                out[...] = np.nan  # as it may be after a failure
            if self.launches[kernel.name] >= self.when:
                self._fail("launch", kernel)
            b = b.owner.memory if isinstance(b, DeviceView) else b
            out[...] = alpha * (a @ b) + (0 if c is None else beta * c)

        return launch

    def _fail(self, at, kernel):
        if at == self.fault.at and kernel.name == FAULTY:
            if self.together is not None:
                self.together.wait(10)
            raise self.fault.error()


@pytest.fixture
def plant(monkeypatch):
    """Puts a Faulty where it is the soonest of all: plant(fault, when=1)."""
    monkeypatch.setattr(verification, "_failed", {})
    monkeypatch.setattr(verification, "_lost", {})
    monkeypatch.setattr(cost, "a_device_could_win", lambda *_: True)
    monkeypatch.setattr(disk_cache, "update", lambda *_: None)
    real = registry.backend

    def planted(fault, when=1):
        backend = Faulty(fault, when)
        source, is_late = BY_NAME[NAIVE].source, fault.at == "verify"  # text that wheels carry, too
        rows = [Kernel(FAULTY, "faulty", "faulty", "float32", source, lazy_verify=is_late),
                Kernel(SPARE, "faulty", "faulty", "float32", source)]  # fmt: skip
        host = [row for row in KERNELS if row.backend in HOST_BACKENDS]
        monkeypatch.setattr(candidates, "KERNELS", (*host, *rows))
        monkeypatch.setitem(BACKENDS, "faulty", "")
        for row in rows:
            monkeypatch.setitem(BY_NAME, row.name, row)
        monkeypatch.setattr(registry, "backend", lambda name: backend if name == "faulty" else real(name))
        monkeypatch.setattr(worker, "Child", lambda _: Verifier(fault))
        monkeypatch.setattr(
            probe, "recalled", {probe.entry(): facts(DEVICE, FAULTY, SPARE), probe.entry("verified"): None}
        )
        execute.forget()
        return backend

    with worker.waiting():  # for the verification of what would be chosen
        yield planted
    execute.forget()


def facts(device, *kernels):
    """As if a probe had found the device to be without equal, and these kernels to be right, the first the soonest."""
    rates = {"launch": 1e-12, "upload": 1e18, "download": 1e18}
    return probed((device, {name: {**rates, "flops": 1e18 / 10**at} for at, name in enumerate(kernels)}))


class Verifier:
    """A gemm.select.worker.Child that answers at once."""

    usable = False

    def __init__(self, fault):
        self._fault = fault

    def close(self, patience=0.0):
        pass

    def ask(self, request, limit):
        assert (request["kernel"], request["device"]) == (FAULTY, DEVICE.key)
        yield self._fault.error()


def random_of(*shape):
    """Small whole numbers: every kernel's product of them is exact."""
    return np.random.default_rng(shape).integers(-9, 10, shape).astype(np.float32)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


A, B, C = random_of(6, 8), random_of(8, 10), random_of(6, 10)


def by_plan(a, b):
    made = gemm.plan(a, b)
    return lambda: made(a, b)


def by_use(a, b):
    def call():
        with gemm.use():
            return np.matmul(a, b)

    return call


CALLS = {
    "gemm": lambda a, b: lambda: gemm.gemm(a, b),
    "matmul": lambda a, b: lambda: gemm.matmul(a, b, out=np.empty((6, 10), np.float32)),
    "plan": by_plan,
    "array @": lambda a, b: lambda: np.asarray(gemm.array(a) @ b),
    "use, np.matmul": by_use,
    "einsum": lambda a, b: lambda: gemm.einsum("ij,jk->ik", a, b),
    "tensordot": lambda a, b: lambda: gemm.tensordot(a, b, 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("fault", "when"),
    [(fault, when) for fault in FAULTS.values() for when in ((1, 2, 3) if fault.at == "launch" else (1,))],
    ids=[f"{name}-{when}" for name, x in FAULTS.items() for when in ((1, 2, 3) if x.at == "launch" else (1,))],
)
def test_whoever_calls_the_next_one_delivers(
    plant, caplog, capsys, fault, when,
    call,
):  # fmt: skip
    """Also where it fails at the second or third product of a kind only."""
    backend = plant(fault, when)
    multiply = call(A, B)
    for _ in range(5):
        assert_array_equal(multiply(), A @ B)
    gemm.explain(A, B)
    told = capsys.readouterr().out
    if fault.words:
        (line,) = warnings_of(caplog)
        assert fault.words in line
        assert backend.launches[FAULTY] == (when if fault.at == "launch" else 0)
        assert [row for row in told.splitlines() if " on faulty:0: " in row and fault.words in row]
        chosen = gemm.plan(A, B)
        assert (chosen.device == "cpu:0") == ("lost" in str(verification._lost))
        assert chosen.kernel != FAULTY
    else:
        assert not warnings_of(caplog)
        assert backend.launches[FAULTY] == (5 if fault.at == "launch" else 0)  # each product tries anew
        assert backend.launches[SPARE] == 5 - (when - 1 if fault.at == "launch" else 0)


@pytest.mark.parametrize("searching", [True, False])
def test_the_probe_starts_after_what_was_chosen_without_it(monkeypatch, searching):
    """A kernel that replaces another one until that is verified is no reason for it."""
    done = []
    problem = Problem("float32", 6, 10, 8)
    plan = replace(execute.choose(problem, "cpu"), meanwhile=True, searching=searching)
    monkeypatch.setattr(execute.choice, "choose", lambda *_: plan)
    monkeypatch.setattr(probe, "_begin", lambda: done.append("probe"))
    monkeypatch.setattr(probe, "recalled", {probe.entry(): None})
    assert execute.deliver(problem, "auto", None, None, lambda _: done.append("product")) is plan
    assert done == ["product", "probe"][: 1 + searching]


def product(name):
    """A product by gemm.gemm, and what it should be."""
    batch, many = random_of(3, 6, 8), random_of(3, 8, 10)
    wide, tall, bias = random_of(12, 24), random_of(8, 6), random_of(10)
    c, narrow = C.copy(), (A.astype(np.float16), B.astype(np.float16))
    overlapped = random_of(8, 8)
    return {
        "batched": (lambda: gemm.gemm(batch, many), batch @ many),
        "one b for a batch": (lambda: gemm.gemm(batch, B), batch @ B),
        "strided": (lambda: gemm.gemm(wide[::2, ::3], B), wide[::2, ::3] @ B),
        "transposed": (lambda: gemm.gemm(tall, B, trans_a=True), tall.T @ B),
        "a vector": (lambda: gemm.gemm(A, B[:, 0]), A @ B[:, 0]),
        "bias and relu": (lambda: gemm.gemm(A, B, bias=bias, activation="relu"), np.maximum(A @ B + bias, 0)),
        "to float32": (lambda: gemm.gemm(*narrow, dtype="float32"), A @ B),
        "no terms": (lambda: gemm.gemm(A, B, C, alpha=0, beta=3.0), 3 * C),
        "c apart": (lambda: gemm.gemm(A, B, C, alpha=2.0, beta=-1.0), 2 * (A @ B) - C),
        "out is c": (lambda: gemm.gemm(A, B, c, alpha=2.0, beta=3.0, out=c), 2 * (A @ B) + 3 * C),
        "out is a": (lambda: gemm.gemm(overlapped, overlapped, out=overlapped), overlapped @ overlapped),
    }[name]


PRODUCTS = ("batched", "one b for a batch", "strided", "transposed", "a vector", "bias and relu", "to float32",
            "no terms", "c apart", "out is c", "out is a")  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_is_multiplied_the_next_one_delivers(plant, caplog, fault, name):
    plant(fault)
    multiply, expected = product(name)
    assert_array_equal(multiply(), expected)
    assert len(warnings_of(caplog)) == bool(fault.words)


@pytest.mark.parametrize("memory", [False, True])
def test_a_spoilt_c_is_an_error_that_says_so(plant, caplog, memory):
    """Nobody else could compute with what is left of it."""
    words = "out is the same array as c, and is partly written"
    backend = plant(Fault("launch", lambda: KernelFailed(words, spoilt=True, memory=memory)))
    backend.spoils = True
    for multiply in (gemm.gemm, gemm.plan(A, B, C, beta=2.0, out=C)):
        backend.launches.clear()
        verification._failed.clear()
        verification.forget_choices()
        c, options = C.copy(), {"beta": 2.0} if multiply is gemm.gemm else {}
        with pytest.raises(RuntimeError, match=words) as caught:
            multiply(A, B, c, out=c, **options)
        assert not isinstance(caught.value, (BackendUnavailable, KernelFailed))
        assert backend.launches == {FAULTY: 1}
    assert_array_equal(gemm.gemm(A, B, C, beta=2.0, out=C.copy(), kernel=SPARE), A @ B + 2 * C)


def test_threads_that_fail_at_once_are_one_line(plant, caplog):
    backend = plant(FAULTS["raises"])
    backend.together = threading.Barrier(4)
    for result in at_once(lambda _: gemm.gemm(A, B), range(4)):
        assert_array_equal(result, A @ B)
    assert backend.launches[FAULTY] == 4
    assert len(warnings_of(caplog)) == 1


def everyone_fails(backend, monkeypatch, memory):
    """Let each backend's launches raise an error of its own; of those in `memory`, a want of it."""

    def failing(name):
        def launcher(self, kernel, device, problem):
            def launch(*_):
                raise KernelFailed(f"{name} is out of order", memory=name in memory)

            return launch

        return launcher

    for name in ("cpu", "numpy", "faulty"):
        monkeypatch.setattr(type(registry.backend(name)), "launcher", failing(name))


@pytest.mark.parametrize("memory", [(), ("numpy",), ("faulty",), ("cpu", "numpy", "faulty")])
def test_when_nobody_is_left_the_error_names_every_cause(plant, monkeypatch, memory):
    """It is a MemoryError where somebody would have room for a smaller product."""
    everyone_fails(plant(FAULTS["raises"]), monkeypatch, memory)
    c = C.copy()
    with pytest.raises(MemoryError if memory else BackendUnavailable) as caught:
        gemm.gemm(A, B, c, beta=2.0, out=c)
    for name in ("cpu", "numpy", "faulty"):
        assert f"{name} is out of order" in str(caught.value)
    assert_array_equal(c, C)


def test_an_exception_of_a_signal_handler_is_no_failure(plant, caplog):
    """It reaches the caller, and the kernel goes on being used."""
    backend = plant(Fault("launch", lambda: TimeoutError("the caller's alarm")), when=2)
    gemm.gemm(A, B)
    with pytest.raises(TimeoutError, match="alarm"):
        gemm.gemm(A, B)
    backend.when = 9
    assert_array_equal(gemm.gemm(A, B), A @ B)
    assert backend.launches == {FAULTY: 3}
    assert not warnings_of(caplog)


def test_a_plan_that_cannot_tell_how_operands_are_read_is_for_the_next_kernel(plant, caplog, monkeypatch):
    backend = plant(FAULTS["raises"], when=9)
    build = Faulty.launcher

    def launcher(self, kernel, device, problem):
        launch = build(self, kernel, device, problem)

        def access(*_):
            if kernel.name == FAULTY:
                raise KernelFailed("it does not map its memory")
            return {"a": "copied"}

        launch.access = access
        return launch

    monkeypatch.setattr(Faulty, "launcher", launcher)
    made = gemm.plan(A, B)
    assert (made.kernel, made.operands) == (SPARE, {"a": "copied"})
    assert_array_equal(made(A, B), A @ B)
    assert backend.launches == {SPARE: 1}
    assert len(warnings_of(caplog)) == 1


# Prepared matrices: only the kernel that they were packed for can read them.


@pytest.mark.parametrize("at", ["keep", "build", "launch"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [(KernelFailed("invalid arguments"), BackendUnavailable), (KernelFailed("gone", lost=True), BackendUnavailable),
     (KernelFailed("no room", memory=True), MemoryError), (MemoryError("no room"), MemoryError)],
    ids=["raises", "lost", "memory", "host memory"],
)  # fmt: skip
def test_a_prepared_matrix(plant, caplog, at, fault, error):
    """It is packed for the next kernel, if one can be; once it is packed, a failure is the caller's, and c is whole."""
    backend = plant(Fault(at, lambda: fault))
    lost, memory = str(fault) == "gone", error is MemoryError
    if at == "keep" and lost:
        with pytest.raises(error, match="gone"):
            gemm.prepare(B, backend="faulty")
    elif at == "keep":
        made = gemm.prepare(B, backend="faulty")
        assert made.kernel == SPARE
        assert_array_equal(gemm.gemm(A, made), A @ B)
    else:
        made = gemm.prepare(B, backend="faulty")
        assert made.kernel == FAULTY
        for _ in range(3):
            c = C.copy()
            with pytest.raises(error, match=str(fault)):
                gemm.gemm(A, made, c, beta=2.0, out=c)
            assert_array_equal(c, C)
        assert backend.launches[FAULTY] == (0 if at == "build" else 3 if memory else 1)
    assert_array_equal(gemm.gemm(A, B), A @ B)
    assert len(warnings_of(caplog)) == (not memory)


def test_a_matrix_prepared_for_the_cpu_that_has_no_room_left(monkeypatch):
    def launch(*_):
        raise KernelFailed("no memory for packing", memory=True)

    made = gemm.prepare(B)
    monkeypatch.setattr(execute, "launcher", lambda _: launch)
    with pytest.raises(MemoryError, match="no memory for packing"):
        gemm.gemm(A, made)


# What pyopencl raises.

try:
    OPENCL = OpenCLBackend().devices()[0]
    WHY = ""
except BackendUnavailable as error:
    WHY = str(error)
NAIVE, LOCAL = "sgemm_generic_naive", "sgemm_generic_local_16x16"
BIG_A, BIG_B, BIG_C = random_of(60, 50), random_of(50, 70), random_of(60, 70)


@pytest.fixture
def pocl(plant, monkeypatch):
    """A device, with nothing built yet, of which two kernels are known to be right and sooner than any other."""
    if WHY:
        pytest.skip(WHY)
    plant(FAULTS["raises"])
    device = registry.backend("opencl").devices()[0]
    host = [row for row in KERNELS if row.backend in HOST_BACKENDS]
    monkeypatch.setattr(candidates, "KERNELS", (*host, BY_NAME[NAIVE], BY_NAME[LOCAL]))
    monkeypatch.setattr(probe, "recalled", probe.Recalled({probe.entry(): facts(device, NAIVE, LOCAL)}))
    monkeypatch.setattr(disk_cache, "load", lambda _: None)
    monkeypatch.setattr(disk_cache, "store", lambda *_: None)
    monkeypatch.setattr(device.handle, "_programs", {})
    monkeypatch.setattr(device.handle, "_own", threading.local())
    monkeypatch.setattr(device.handle, "_spare", [])
    execute.forget()
    assert gemm.plan(BIG_A, BIG_B).kernel == NAIVE
    return device


def opencl_error(kind, code):
    import pyopencl as cl

    return getattr(cl, kind)(cl._cl._ErrorRecord(msg="injected", code=code, routine="clInjected"))


def injected(monkeypatch, name, error, times=1):
    """Let pyopencl's `name` raise `error` the next `times`."""
    import pyopencl as cl

    owner, _, attribute = name.rpartition(".")
    place = getattr(cl, owner) if owner else cl
    real, left = getattr(place, attribute), [times]

    def faulty(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(place, attribute, faulty)


@pytest.mark.parametrize("call", ["gemm", "plan", "use, np.matmul", "einsum", "out is c"])
@pytest.mark.parametrize(
    ("name", "kind", "code", "words"),
    [
        ("enqueue_nd_range_kernel", "LogicError", -52, "INVALID_KERNEL_ARGS"),
        ("Kernel", "LogicError", -46, "INVALID_KERNEL_NAME"),
        ("enqueue_map_buffer", "RuntimeError", -12, "MAP_FAILURE"),
        ("Program.build", "RuntimeError", -11, "BUILD_PROGRAM_FAILURE"),
        ("Program.build", "", 0, "invalid start byte"),
        ("Buffer", "MemoryError", -4, ""),
        ("enqueue_nd_range_kernel", "RuntimeError", -5, ""),
        ("enqueue_map_buffer", "MemoryError", -6, ""),
    ],
)
def test_errors_of_pyopencl(
    pocl, caplog, monkeypatch, name, kind, code,
    words, call,
):  # fmt: skip
    """A build log may be in an encoding that pyopencl cannot read."""
    error = opencl_error(kind, code) if kind else UnicodeDecodeError("utf-8", b"\xe9", 0, 1, words)
    multiply = None if call == "out is c" else CALLS[call](BIG_A, BIG_B)  # plans are made before
    if name in ("Kernel", "Program.build"):
        execute.launcher.cache_clear()
        pocl.handle._programs.clear()
        pocl.handle._own = threading.local()
    injected(monkeypatch, name, error)
    for _ in range(2):
        if multiply is None:
            c = BIG_C.copy()
            result, expected = gemm.gemm(BIG_A, BIG_B, c, beta=2.0, out=c), BIG_A @ BIG_B + 2 * BIG_C
        else:
            result, expected = multiply(), BIG_A @ BIG_B
        assert_array_equal(result, expected)
    assert len(warnings_of(caplog)) == bool(words), caplog.text
    assert words in caplog.text
    assert gemm.plan(BIG_A, BIG_B).kernel == (LOCAL if words else NAIVE)


def test_a_product_that_cannot_be_kept_for_repetition_is_delivered(pocl, caplog, monkeypatch):
    backend = registry.backend("opencl")
    a, b = (backend.to_device(x, pocl).owner for x in (BIG_A, BIG_B))

    def full(*_):
        raise opencl_error("MemoryError", -4)

    monkeypatch.setattr(launch, "Replay", full)
    for multiply in (gemm.gemm, gemm.plan(a, b)):
        assert_array_equal(multiply(a, b).get(), BIG_A @ BIG_B)
    assert not warnings_of(caplog)


# The emulated CUDA machine, whose kernels are verified in a child process when they are first chosen.

VERIFYING = """
import logging, os, sys
import numpy as np
import gemm
from gemm.select import probe, worker
logging.basicConfig(stream=sys.stdout)
fault, started = os.environ["FAULT"], []

class First(worker.Child):
    def _start(self):
        started.append(fault)
        first = len(started) == 1
        if first and fault == "faults":
            os.environ["CUDA_MACHINE_FAIL"] = "cuLaunchKernel:3:700:sticky,cuLaunchKernelEx:3:700:sticky"
        process = super()._start()
        os.environ.pop("CUDA_MACHINE_FAIL", None)
        if first and fault == "is killed":
            process.kill()
        return process

worker.Child = First
worker.PATIENCE = 90.0
probe.recalled[probe.entry()] = probe.Facts([])
a = np.random.default_rng(0).integers(-9, 10, (40, 40)).astype(np.float32)
c = a.copy()
for _ in range(2):
    assert (gemm.gemm(a, a, c, beta=2.0, out=c.copy(), backend="cuda") == a @ a + 2 * c).all()
(kernel, why), = ((row.name, why) for row in gemm.kernels() for why in row.untrusted.values())
assert gemm.plan(a, a, c, beta=2.0, backend="cuda").kernel != kernel and len(started) == 2
print(kernel, why)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "words"), [("faults", "ILLEGAL_ADDRESS"), ("is killed", "ended with status -9")])
def test_a_cuda_kernel_that_fails_verification_in_mid_run(tmp_path, fault, words):
    *log, told = python(VERIFYING, **machine(), FAULT=fault, GEMM_CACHE_DIR=tmp_path / "cache").splitlines()
    (line,) = (each for each in log if each.startswith("WARNING:gemm:"))
    assert words in line
    assert words in told
