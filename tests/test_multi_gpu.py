"""backend="cuda:all" and gemm.Sharded, on several emulated GPUs."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_machine
import numpy as np
import pytest

import gemm
from gemm import operands
from gemm.backends import cuda_api, cuda_compiler, cuda_peers, cuda_summa
from gemm.dispatch import choice, late, probe, registry, split, trust
from gemm.dispatch.plan import Split
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device, Problem

M, N, K = 97, 74, 41
ALL = "cuda:all"


Emulate = Callable[..., tuple[Device, ...]]


@pytest.fixture
def emulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulate]:
    """emulate(count, ...) is so many emulated GPUs, of which the probe is said to have found that `tile` is right."""

    def machine(count: int, **settings: object) -> tuple[Device, ...]:
        try:
            found = cuda_machine.environment("5.3", devices=count, pools=1, sms=2, **{"streams": "late", **settings})
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"the emulated machine is not built here: {error}")
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        _forget()
        monkeypatch.setattr(registry, "backend", cache(registry.backend.__wrapped__))
        devices = registry.backend("cuda").devices()
        lines: list[dict[str, Any]] = [
            {"step": "device", "device": x.key, "backend": "cuda", "name": x.name, "driver": x.driver, "kind": "gpu"}
            for x in devices
        ]
        monkeypatch.setattr(probe, "_memory", {probe.entry(): probe.Facts(lines)})
        verdict = {True: {"ok": True, "error": ""}, False: {"ok": False, "error": "for the test"}}
        monkeypatch.setattr(late, "record", lambda kernel, device: verdict[kernel.name.endswith("cuda_tile")])
        monkeypatch.setattr(trust, "_failed", {})
        monkeypatch.setattr(trust, "_lost", {})
        monkeypatch.setattr(split, "START", 0.0)
        monkeypatch.setattr(split, "GAIN", 9.0)  # whatever a split gains
        choice.forget()
        return devices

    yield machine
    choice.forget()
    gc.collect()  # arrays give their memory back to this machine
    _forget()


def _forget() -> None:
    for cached in (cuda_api.cuda, cuda_compiler.compilers, cuda_compiler.compiler):
        cached.cache_clear()


@pytest.fixture(params=[2, 3, 4])
def gpus(request: pytest.FixtureRequest, emulate: Emulate) -> tuple[Device, ...]:
    """What is enqueued happens when it is waited for with three of them, else at any time."""
    return emulate(request.param, streams="late" if request.param == 3 else "mixed")


@pytest.fixture(params=["late", "mixed"])
def two(request: pytest.FixtureRequest, emulate: Emulate) -> tuple[Device, ...]:
    """What is enqueued happens when it is waited for, or at any time."""
    return emulate(2, streams=request.param)


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_summa, "DEEP", 16)
    monkeypatch.setattr(cuda_summa, "NARROWEST", 8)


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def divided(*operands: Any, **options: Any) -> Split:
    """The plan of a product, which must be split."""
    plan = choice.choose(gemm.plan(*operands, backend=ALL, **options)._problem, ALL)
    assert isinstance(plan, Split)
    return plan


# Operands on the host.


def the_same(*operands: Any, out: Any = None, **options: Any) -> None:
    """The bits of the CPU, on several GPUs, with and without an out."""
    assert len({side.device.key for side in divided(*operands, out=out, **options).sides}) > 1
    right = gemm.gemm(*operands, backend="cpu", **options)
    np.testing.assert_array_equal(gemm.gemm(*operands, backend=ALL, **options), right)
    if out is not None:
        assert gemm.gemm(*operands, backend=ALL, out=out, **options) is out
        np.testing.assert_array_equal(out, right)


HOST: dict[str, Callable[[], None]] = {
    "plain": lambda: the_same(rand(M, K), rand(K, N), out=np.full((M, N), np.nan, "f"), reproducible=True),
    "transposed": lambda: the_same(rand(K, M), rand(N, K), trans_a=True, trans_b=True, reproducible=True),
    "columns": lambda: the_same(rand(M, K), rand(K, N), out=np.empty((N, M), "f").T, reproducible=True),
    "beta": lambda: the_same(rand(M, K), rand(K, N), rand(M, N), beta=-0.5, alpha=2.0, reproducible=True),
    "batch": lambda: the_same(rand(90, 4, 5), rand(90, 5, 6), out=np.empty((90, 4, 6), "f"), reproducible=True),
    "row bias": lambda: the_same(rand(M, K), rand(K, N), bias=rand(N), activation="relu", reproducible=True),
    "column bias": lambda: the_same(rand(M, K), rand(K, N), bias=rand(M, 1), reproducible=True),
    "wide": lambda: the_same(rand(3, K), rand(K, 200), reproducible=True),
    "float64": lambda: the_same(rand(M, K, dtype="d"), rand(K, N, dtype="d"), reproducible=True),
}


@pytest.mark.parametrize("name", HOST)
def test_host_operands(gpus: tuple[Device, ...], name: str) -> None:
    HOST[name]()


# Operands on one GPU.


def resident(*operands: np.ndarray | None, on: int = 0) -> list[Any]:
    """Copies on a GPU."""
    backend = registry.backend("cuda")
    device = backend.devices()[on]
    return [None if x is None else backend.to_device(x, device).owner for x in operands]


def multiplied_there(a: Any, b: Any, c: Any = None, **options: Any) -> None:
    """The bits of the CPU, of operands on the second GPU, which computes them."""
    right = gemm.gemm(a, b, c, backend="cpu", reproducible=True, **options)
    x, y, z = resident(a, b, c, on=1)
    assert gemm.plan(x, y, z, backend=ALL, reproducible=True, **options).device == "cuda:1"
    found = gemm.gemm(x, y, z, backend=ALL, reproducible=True, **options)
    np.testing.assert_array_equal(found.copy_to_host(), right)
    assert found.device.key == "cuda:1"


RESIDENT: dict[str, Callable[[], None]] = {
    "plain": lambda: multiplied_there(rand(M, K), rand(K, N)),
    "transposed": lambda: multiplied_there(rand(K, M), rand(N, K), trans_a=True, trans_b=True),
    "beta": lambda: multiplied_there(rand(M, K), rand(K, N), rand(M, N), alpha=-1.5, beta=0.5),
    "batch": lambda: multiplied_there(rand(90, 4, 5), rand(90, 5, 6)),
    "a stack of large ones": lambda: multiplied_there(rand(3, M, K), rand(K, N)),
    "float64": lambda: multiplied_there(rand(M, K, dtype="d"), rand(K, N, dtype="d")),
    "int64": lambda: multiplied_there(*(np.trunc(9 * rand(*shape)).astype("i8") for shape in ((M, K), (K, N)))),
}


@pytest.mark.parametrize("name", RESIDENT)
def test_operands_on_one_gpu(gpus: tuple[Device, ...], small_panels: None, name: str) -> None:
    RESIDENT[name]()


# Sharded operands.


def grids(gpus: tuple[Device, ...]) -> list[tuple[int, int]]:
    return list(split.grids(len(gpus)))


def test_shard_and_back(gpus: tuple[Device, ...]) -> None:
    a = rand(M, N)
    for grid in grids(gpus):
        found = gemm.shard(a, grid)
        assert (found.grid, found.shape, found.dtype) == (grid, a.shape, a.dtype)
        assert sum(found.devices, ()) == tuple(device.key for device in gpus)
        assert [block.shape[0] for block, *_ in found.blocks] == list(np.diff(found.rows))
        np.testing.assert_array_equal(found.copy_to_host(), a)
        np.testing.assert_array_equal(gemm.shard(found, grid[::-1]).copy_to_host(), a)
    (one,) = resident(a, on=1)
    np.testing.assert_array_equal(gemm.shard(one).copy_to_host(), a)
    np.testing.assert_array_equal(gemm.shard(a[::-2, 1::3]).copy_to_host(), a[::-2, 1::3])
    np.testing.assert_array_equal(gemm.shard(rand(1, 7)).copy_to_host(), rand(1, 7))


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_sharded(
    gpus: tuple[Device, ...], small_panels: None, reproducible: bool, trans: tuple[bool, bool]
) -> None:
    a, b, c = rand(*(M, K)[:: -1 if trans[0] else 1]), rand(*(K, N)[:: -1 if trans[1] else 1]), rand(M, N)
    options: dict[str, Any] = {"trans_a": trans[0], "trans_b": trans[1], "reproducible": reproducible}
    check = np.testing.assert_array_equal if reproducible else close
    right = gemm.gemm(a, b, backend="cpu", **options)
    added = gemm.gemm(a, b, c, alpha=2.0, beta=-0.5, backend="cpu", **options)
    for grid in grids(gpus):
        x, y, z = gemm.shard(a, grid), gemm.shard(b, grid), gemm.shard(c, grid)
        found = gemm.gemm(x, y, **options)
        assert isinstance(found, gemm.Sharded)
        assert found.grid == grid
        check(found.copy_to_host(), right)
        check(gemm.gemm(x, y, z, alpha=2.0, beta=-0.5, **options).copy_to_host(), added)
        assert gemm.gemm(x, y, z, alpha=2.0, beta=-0.5, out=z, **options) is z
        check(z.copy_to_host(), added)


def close(found: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-4)


def test_narrow_and_integer_products(gpus: tuple[Device, ...], small_panels: None) -> None:
    for name in ("float16", "bfloat16", "int32", "complex64"):
        dtype = operands.named(name, "test")
        a, b = (np.trunc(4 * rand(*shape)).astype(dtype) for shape in ((M, K), (K, N)))
        wide = np.dtype("f4" if name.endswith("16") else dtype)
        right = (a.astype(wide) @ b.astype(wide)).astype(dtype)
        found = gemm.gemm(gemm.shard(a), gemm.shard(b)).copy_to_host()
        np.testing.assert_array_equal(found.astype(wide), right.astype(wide), err_msg=name)  # these are exact


def test_operands_of_other_grids_and_on_one_gpu(gpus: tuple[Device, ...], small_panels: None) -> None:
    a, b = rand(M, K), rand(K, N)
    right = gemm.gemm(a, b, backend="cpu", reproducible=True)
    (x, y), count = resident(a, b, on=1), len(gpus)
    tall, wide = gemm.shard(a, (count, 1)), gemm.shard(b, (1, count))
    for first, second, grid in (
        (tall, wide, (count, 1)), (tall, y, (count, 1)), (x, wide, (1, count)),
        (gemm.shard(a, devices=["cuda:1"]), wide, (1, 1)), (tall, gemm.shard(b, devices=["cuda:0"]), (count, 1)),
    ):  # fmt: skip
        found = gemm.gemm(first, second, reproducible=True)
        assert found.grid == grid
        np.testing.assert_array_equal(found.copy_to_host(), right)
    (out,) = resident(np.full((M, N), np.nan, "f"))
    assert gemm.gemm(tall, wide, reproducible=True, out=out) is out
    np.testing.assert_array_equal(out.copy_to_host(), right)


def test_products_of_no_terms(gpus: tuple[Device, ...]) -> None:
    c = rand(M, N)
    x, y, z = gemm.shard(rand(M, K)), gemm.shard(rand(K, N)), gemm.shard(c)
    np.testing.assert_array_equal(gemm.gemm(x, y, alpha=0).copy_to_host(), np.zeros((M, N)))
    np.testing.assert_array_equal(gemm.gemm(x, y, z, alpha=0, beta=2.0).copy_to_host(), 2 * c)
    none = gemm.gemm(gemm.shard(rand(M, 0)), gemm.shard(rand(0, N)), z, beta=1.0)
    np.testing.assert_array_equal(none.copy_to_host(), c)
    assert gemm.gemm(gemm.shard(rand(0, K)), y).shape == (0, N)


def test_out_may_be_an_operand(gpus: tuple[Device, ...], small_panels: None) -> None:
    a, b = rand(M, M), rand(M, M).T
    right = gemm.gemm(a, b, backend="cpu", reproducible=True)
    x, y = gemm.shard(a), gemm.shard(b)
    assert gemm.matmul(x, y, out=x, reproducible=True) is x
    np.testing.assert_array_equal(x.copy_to_host(), right)
    here, there = resident(a, b, on=1)
    assert gemm.gemm(here, there, here, beta=0.5, out=here, backend=ALL, reproducible=True) is here
    right = gemm.gemm(a, b, a, beta=0.5, backend="cpu", reproducible=True)
    np.testing.assert_array_equal(here.copy_to_host(), right)


@pytest.mark.parametrize("bias", [(N,), (M, 1)])
def test_bias_and_activation_of_operands_on_one_gpu(
    gpus: tuple[Device, ...], small_panels: None, bias: tuple[int, ...]
) -> None:
    a, b, added = rand(M, K), rand(K, N), rand(*bias)
    options: dict[str, Any] = {"activation": "relu", "reproducible": True}
    right = gemm.gemm(a, b, bias=added, backend="cpu", **options)
    x, y, z = resident(a, b, added, on=1)
    np.testing.assert_array_equal(gemm.gemm(x, y, bias=z, backend=ALL, **options).copy_to_host(), right)


def test_reversed_operands(gpus: tuple[Device, ...], small_panels: None) -> None:
    a, b = rand(M, K), rand(K, N)
    x, y = resident(a, b, on=1)
    flipped = {**x.__cuda_array_interface__, "strides": (-4 * K, 4)}
    flipped["data"] = (flipped["data"][0] + 4 * K * (M - 1), False)
    found = gemm.gemm(SimpleNamespace(__cuda_array_interface__=flipped, kept=x), y, backend=ALL, reproducible=True)
    right = gemm.gemm(a[::-1], b, backend="cpu", reproducible=True)
    np.testing.assert_array_equal(found.copy_to_host(), right)


# Panels, streams, and what fails.


def calls(log: Path, name: str) -> int:
    return sum(line.startswith(name) for line in log.read_text().splitlines())


def test_panels_run_along_k_unless_sums_must_not_be_cut(
    two: tuple[Device, ...], small_panels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = gemm.shard(rand(M, K), (2, 1)), gemm.shard(rand(K, N), (2, 1))
    launches = {}
    for reproducible in (False, True):
        log = tmp_path / str(reproducible)
        monkeypatch.setenv("CUDA_MACHINE_LOG", str(log))
        gemm.gemm(x, y, reproducible=reproducible)
        launches[reproducible] = calls(log, "cuLaunchKernel")
        assert calls(log, "cuMemcpyPeerAsync") + calls(log, "cuMemcpy3DPeerAsync") >= 4
        assert calls(log, "cuStreamSynchronize") + calls(log, "cuCtxSynchronize") == 0, "nothing is waited for"
    # b's blocks of 21 and 20 rows in panels of 16; its columns in 4 panels, of which each GPU fetches half
    assert launches == {False: 2 * 4, True: 2 * 4}


class Failing:
    """The driver, one of whose functions fails from its `call`-th call on, and what is neither given back."""

    def __init__(self, name: str, call: int) -> None:
        self._name, self._left = name, call
        self.held: dict[str, set[int]] = {"cuMemAlloc": set(), "cuStreamCreate": set(), "cuEventCreate": set()}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            if name == self._name:
                self._left -= 1
                if self._left < 0:
                    raise KernelFailed(f"{name} failed for the test")
            result = getattr(cuda_api.cuda(), name)(*arguments)
            made = {"cuMemFree": "cuMemAlloc", "cuStreamDestroy": "cuStreamCreate", "cuEventDestroy": "cuEventCreate"}
            if name in self.held:
                self.held[name].add(int(result))
            elif name in made:
                self.held[made[name]].remove(int(arguments[0]))
            return result

        return function


@pytest.mark.parametrize(
    ("name", "call"),
    [("cuMemAlloc", 0), ("cuMemAlloc", 1), ("cuStreamCreate", 0), ("cuEventCreate", 0), ("cuEventCreate", 1),
     ("cuMemcpyPeerAsync", 2), ("cuEventRecord", 1), ("cuEventSynchronize", 0), ("cuEventElapsedTime", 0)],
)  # fmt: skip
def test_a_link_that_cannot_be_timed_leaves_nothing_behind(
    emulate: Emulate, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    here, there = (device.handle for device in emulate(2))
    cuda_peers.connect(here, there)
    driver = Failing(name, call)
    monkeypatch.setattr(cuda_peers, "cuda", lambda: driver)
    assert cuda_peers.rate.__wrapped__(here, there) == cuda_peers.SLOW
    assert not any(driver.held.values()), driver.held


def test_memory_is_given_back(gpus: tuple[Device, ...], small_panels: None) -> None:
    def left() -> list[int]:
        found = []
        for device in gpus:
            registry.backend("cuda").synchronize(device)
            with device.handle:
                found.append(cuda_api.cuda().cuMemGetInfo()[0])
        return found

    x, y = gemm.shard(rand(M, K)), gemm.shard(rand(K, N))
    here, there = resident(rand(M, K), rand(K, N))
    before = left()
    gemm.gemm(x, y)
    gemm.gemm(x, y, reproducible=True)
    gemm.gemm(here, there, backend=ALL)
    assert left() == before


def test_streams_of_the_operands_are_kept(two: tuple[Device, ...], small_panels: None) -> None:
    """Work that is enqueued before is seen, and what comes after waits for the product."""
    (x, y, out), driver = (
        resident(np.ones((M, K), "f"), np.ones((K, N), "f"), np.empty((M, N), "f"), on=1),
        cuda_api.cuda(),
    )
    with two[1].handle:
        stream = driver.cuStreamCreate(1)
        own = [
            SimpleNamespace(__cuda_array_interface__={**each.__cuda_array_interface__, "stream": stream}, kept=each)
            for each in (x, y, out)
        ]
        address = x.view().data
        gemm.gemm(*own[:2], backend=ALL, out=own[2])  # so that nothing is loaded or timed any more
        for value in range(2, 10):
            driver.cuStreamSynchronize(stream)
            for each in (0.0, 1.0, 0.5, float(value)):
                driver.cuMemsetD32Async(address, int(np.float32(each).view("u4")), M * K, stream)
            gemm.gemm(*own[:2], backend=ALL, out=own[2])
            driver.cuMemsetD32Async(address, 0, M * K, stream)
            driver.cuStreamSynchronize(stream)
            np.testing.assert_array_equal(out.copy_to_host(), np.full((M, N), value * K))
            np.testing.assert_array_equal(x.copy_to_host(), np.zeros((M, K)))


@pytest.mark.parametrize("where", ["host", "sharded"])
@pytest.mark.parametrize(("function", "status"), [("cuMemAllocFromPoolAsync", 2), ("cuLaunchKernel", 1)])
def test_a_gpu_that_fails_is_made_up_for(
    gpus: tuple[Device, ...],
    small_panels: None,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    function: str,
    status: int,
) -> None:
    a, b, c = rand(M, K), rand(K, N), rand(M, N)
    right = gemm.gemm(a, b, c, beta=0.5, backend="cpu", reproducible=True)
    operands: list[Any] = [a, b, c]
    if where == "sharded":
        operands = [gemm.shard(x, (len(gpus), 1)) for x in (a, b, c)]
    out = operands[2]
    monkeypatch.setenv("CUDA_MACHINE_FAIL", f"{function}@1:1:{status}:sticky")
    assert gemm.gemm(*operands, beta=0.5, backend=ALL, out=out, reproducible=True) is out
    monkeypatch.delenv("CUDA_MACHINE_FAIL")
    np.testing.assert_array_equal(out if where == "host" else out.copy_to_host(), right)
    assert {key for _, key in trust._failed} == ({"cuda:1"} if status == 1 else set())
    assert gemm.gemm(a, b, backend=ALL).shape == (M, N)


def test_where_every_gpu_fails_it_is_told(two: tuple[Device, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = gemm.shard(rand(M, K)), gemm.shard(rand(K, N))
    out = gemm.gemm(x, y)
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuMemAllocFromPoolAsync:1:2:sticky")
    with pytest.raises(MemoryError, match="OUT_OF_MEMORY"):
        gemm.gemm(x, y, out=out)
    with pytest.raises(MemoryError, match="OUT_OF_MEMORY"):
        gemm.shard(rand(M, K))
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuLaunchKernel:1:1:sticky")
    with pytest.raises(BackendUnavailable, match="INVALID_VALUE"):
        gemm.gemm(x, y, out=out)


def test_without_access_to_peers_copies_do_all(emulate: Emulate) -> None:
    two = emulate(2, peers=0)
    assert not cuda_peers.connect(two[0].handle, two[1].handle)
    multiplied_there(rand(M, K), rand(K, N))


def test_one_gpu_is_told(emulate: Emulate) -> None:
    emulate(1)
    (x,) = resident(rand(8, 8))
    for call in (
        lambda: gemm.gemm(rand(8, 8), rand(8, 8), backend=ALL), lambda: gemm.gemm(x, x, backend=ALL),
        lambda: gemm.shard(rand(8, 8)),
    ):  # fmt: skip
        with pytest.raises(BackendUnavailable, match="there is one GPU only"):
            call()
    twice = gemm.shard(rand(8, 8), devices=["cuda:0", "cuda:0"])  # as many blocks on one
    np.testing.assert_array_equal(gemm.gemm(twice, twice, reproducible=True).copy_to_host(),
                                  gemm.gemm(rand(8, 8), rand(8, 8), backend="cpu", reproducible=True))  # fmt: skip


def test_mistakes_are_refused(two: tuple[Device, ...]) -> None:
    x, y = gemm.shard(rand(M, K)), gemm.shard(rand(K, N))
    for call, error, told in (
        (lambda: gemm.gemm(x, rand(K, N)), TypeError, r"pass gemm.shard\(b\)"),
        (lambda: gemm.gemm(rand(M, K), rand(K, N), out=gemm.shard(rand(M, N))), TypeError, "several GPUs"),
        (lambda: gemm.gemm(x, x), ValueError, "must agree"),
        (lambda: gemm.gemm(x, y, backend="cpu"), ValueError, "cannot reach"),
        (lambda: gemm.gemm(x, y, bias=rand(N)), TypeError, "bias"),
        (lambda: gemm.gemm(x, gemm.shard(rand(K, N, dtype="d"))), TypeError, "dtype"),
        (lambda: gemm.gemm(x, y, out=gemm.shard(rand(N, M))), ValueError, "out has shape"),
        (lambda: gemm.gemm(x, y, gemm.shard(rand(1, N)), beta=1.0), ValueError, "c has shape"),
        (lambda: gemm.shard(rand(M, K), (3, 1)), BackendUnavailable, "wants 3 GPUs"),
        (lambda: gemm.shard(rand(M, K), (2, 1), devices=["cuda:0"]), ValueError, "names 1 GPU"),
        (lambda: gemm.shard(rand(M, K), devices=["cuda:7"]), BackendUnavailable, "no such GPU"),
        (lambda: gemm.shard(rand(M, K), (0, 2)), ValueError, "grid"),
        (lambda: gemm.shard(rand(K)), ValueError, "axes"),
        (lambda: gemm.prepare(rand(K, N), backend=ALL), ValueError, "one device"),
        (lambda: np.asarray(x), TypeError, "copy_to_host"),
        (lambda: gemm.plan(x, y), TypeError, "several GPUs"),
    ):  # fmt: skip
        with pytest.raises(error, match=told):
            call()


# How products are cut.


def test_bounds_follow_the_rates() -> None:
    assert split.bounds(100, [1, 1, 2], 10) == (0, 20, 50, 100)  # 25 rounds to even tens
    assert split.bounds(3, [1] * 4) == (0, 1, 2, 2, 3)
    assert split.bounds(0, [1, 1]) == (0, 0, 0)


def test_large_squares_are_cut_in_a_grid_and_tall_ones_by_rows(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[Device, ...]
) -> None:
    square, tall = (choice.choose(Problem("float32", m, 512, 512), ALL) for m in (512, 4096))
    assert isinstance(square, Split)
    assert isinstance(tall, Split)
    assert [len(cut) for cut in square.cuts] == [2 if len(gpus) == 4 else 1] * len(gpus)
    assert [axis for cut in tall.cuts for axis, _, _ in cut] == ["m"] * len(gpus)
    assert "alone would take" in square.reason


def test_small_products_are_one_gpus(two: tuple[Device, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "GAIN", 0.95)
    monkeypatch.setattr(split, "START", 2e-4)
    choice.forget()
    plan = choice.choose(Problem("float32", 8, 8, 8), ALL)
    assert not isinstance(plan, Split)
    assert "more devices would not gain enough" in plan.reason
    x, y = resident(rand(8, 8), rand(8, 8), on=1)
    assert gemm.plan(x, y, backend=ALL).device == "cuda:1"
    np.testing.assert_array_equal(
        gemm.gemm(x, y, backend=ALL, reproducible=True).copy_to_host(),
        gemm.gemm(rand(8, 8), rand(8, 8), backend="cpu", reproducible=True),
    )  # fmt: skip


def test_the_benchmark_tells_speed_ups(tmp_path: Path) -> None:
    try:
        settings = cuda_machine.environment("5.3", devices=2, sms=2)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the emulated machine is not built here: {error}")
    file, root = tmp_path / "multi.json", Path(__file__).resolve().parents[1]
    command = [sys.executable, str(root / "benchmarks/multi_gpu.py"), "--size", "48", "--counts", "1,2,4"]
    command += ["--rounds", "2", "--dtypes", "float32", "--json", str(file)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "gemm-multi-gpu/1"
    assert len(document["devices"]) == len(document["links"]) == 2
    assert document["absent"].keys() <= {"torch", "cublasmp"}
    rows = [row for row in document["results"] if row["contestant"] == "gemm"]
    assert {(row["way"], row["gpus"]) for row in rows} == {
        (way, gpus) for way in ("sharded", "weak", "host") for gpus in (1, 2)
    }
    alone = {row["way"]: row for row in rows if row["gpus"] == 1}
    for row in rows:
        first = alone[row["way"]]
        if row["way"] == "weak":
            assert row["efficiency"] == pytest.approx(row["tflops"] / row["gpus"] / first["tflops"])
        else:
            assert row["speedup"] == pytest.approx(first["median"] / row["median"])
    assert f"{'sharded':8} {48:>6}" in done.stdout
