"""What drivers raise, KernelFailed, is the package's own: by whatever way it comes, a user meets a public error."""

from types import SimpleNamespace

import numpy as np
import pytest

import gemm
from gemm.backends import registry
from gemm.backends.cuda import arrays
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device, DeviceView, Problem
from gemm.extras import zero_copy
from gemm.frontend import interop, plan_cache

A = np.ones((4, 4), np.float32)
FAILURES = {
    "fails": ({}, gemm.BackendUnavailable), "lost": ({"lost": True}, gemm.BackendUnavailable),
    "no room": ({"memory": True}, MemoryError), "spoilt": ({"spoilt": True}, RuntimeError),
}  # fmt: skip


@pytest.fixture(params=FAILURES)
def failing(request):
    """A function that raises a KernelFailed; the test must end in what becomes of it."""
    how, expected = FAILURES[request.param]

    def fail(*_, **__):
        raise KernelFailed("the driver says no", **how)

    fail.expected = expected
    return fail


def meets(failing, call):
    with pytest.raises(failing.expected, match="the driver says no") as caught:
        call()
    assert not isinstance(caught.value, KernelFailed)


class There:
    """An array that some device holds."""

    shape, ndim, dtype, on_a_device = (4, 4), 2, np.dtype(np.float32), True


WAYS = {
    "gemm": lambda x: gemm.gemm(x, x), "out": lambda x: gemm.gemm(A, A, out=x), "c": lambda x: gemm.gemm(A, A, x),
    "bias": lambda x: gemm.gemm(A, A, bias=x), "matmul": lambda x: gemm.matmul(A, x), "plan": lambda x: gemm.plan(x, A),
    "prepare": gemm.prepare, "by a prepared one": lambda x: gemm.gemm(x, gemm.prepare(A)),
    "by a plan": lambda x: gemm.plan(A, A)(x, A), "gemm_many": lambda x: gemm.gemm_many([x], [A]),
    "batching": lambda x: batched(x), "hybrid": lambda x: gemm.gemm(x, A, backend="hybrid"),
    "einsum": lambda x: gemm.einsum("ij,jk", x, A), "tensordot": lambda x: gemm.tensordot(x, A, 1),
    "array": gemm.array, "explain": lambda x: gemm.explain(x, A),
}  # fmt: skip


def batched(x):
    with gemm.batching():
        gemm.gemm(x, A)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_operand_that_cannot_be_looked_at(failing, monkeypatch, way):
    monkeypatch.setattr(interop, "HOLDING", {"cuda": ((), ("on_a_device",))})
    monkeypatch.setattr(interop, "registry", SimpleNamespace(backend=lambda _: SimpleNamespace(view=failing)))
    meets(failing, lambda: way(There()))


def stand():
    device = Device("cuda", "cuda:0", "a device")
    return DeviceView(None, 0, 0, (4, 4), (16, 4), np.dtype(np.float32), device)


@pytest.mark.parametrize(
    ("name", "call"),
    [("returned", lambda: interop.like(stand(), None)), ("conjugated", lambda: interop.conjugated(stand()))],
    ids=["returned", "conjugated"],
)  # fmt: skip
def test_what_is_done_with_a_device_array(failing, monkeypatch, name, call):
    backend = SimpleNamespace(**{name: failing})
    monkeypatch.setattr(registry, "backend", lambda _: backend)
    meets(failing, call)


def test_copies_of_our_own_arrays(failing, monkeypatch):
    array = object.__new__(arrays.DeviceArray)
    array.device = Device("cuda", "cuda:0", "a device")
    monkeypatch.setattr(arrays, "to_host", failing)
    monkeypatch.setattr(arrays.DeviceArray, "view", lambda _: None)
    monkeypatch.setattr(arrays.DeviceArray, "fill", failing)
    meets(failing, array.copy_to_host)
    meets(failing, lambda: array.copy_from_host(A))


def test_memory_that_devices_share(failing, monkeypatch):
    monkeypatch.setattr(zero_copy, "registry", SimpleNamespace(backend=lambda _: SimpleNamespace(shared=failing)))
    meets(failing, lambda: zero_copy.empty((3, 3), np.float32))


def test_a_chain_in_pieces(failing, monkeypatch):
    """As products of dask's arrays are."""
    tasks = pytest.importorskip("gemm.dask.tasks", reason="dask is not installed (the extra `dask`)")
    monkeypatch.setattr(tasks.CpuLaunch, "__call__", failing)
    meets(failing, lambda: tasks.go_on(np.zeros((4, 4), np.float32), A, A))


def test_a_repeated_product_goes_the_long_way(failing):
    """Where the failure is met again, demotes its kernel, and another one delivers; not if an operand is spoilt."""
    plans = plan_cache.DevicePlans()
    known = plan_cache.Known(failing, A.dtype, 1.0, Problem("float32", 4, 4, 4), Device("cuda", "cuda:0", "a device"))
    plans.begin(plan_cache.since())
    plans.signatures = {np.ndarray: lambda *_: "key"}
    plans._known = {("key", False, True): known}
    if failing.expected is RuntimeError:
        meets(failing, lambda: plans.run((A, A, None, None, None, 1.0, 0.0)))
    else:
        assert plans.run((A, A, None, None, None, 1.0, 0.0)) is None
