"""backend="cuda:all" and gemm.Sharded, on several emulated GPUs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import cuda_machine
import numpy as np
import pytest

import gemm
from gemm.backends import cuda_api, cuda_compiler, cuda_summa
from gemm.dispatch import balance, choice, late, probe, registry, several, trust
from gemm.dispatch.plan import Split
from gemm.problem import Device

M, N, K = 97, 74, 41
ALL = "cuda:all"


def machine(monkeypatch: pytest.MonkeyPatch, count: int, **settings: object) -> tuple[Device, ...]:
    """So many emulated GPUs, of which the probe is said to have found that `tile` is right there."""
    try:
        found = cuda_machine.environment("5.3", devices=count, pools=1, sms=2, **settings)
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
    monkeypatch.setattr(balance, "START", 0.0)
    monkeypatch.setattr(several, "GAIN", 9.0)  # whatever a split gains
    choice.forget()
    return devices


def _forget() -> None:
    for cached in (cuda_api.cuda, cuda_compiler.compilers, cuda_compiler.compiler):
        cached.cache_clear()


@pytest.fixture(params=[2, 3, 4])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Device, ...]]:
    yield machine(monkeypatch, request.param, streams="late")
    choice.forget()
    _forget()


def rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def split(*operands: Any, **options: Any) -> Split:
    """The plan of a product, which must be split."""
    plan = choice.choose(gemm.plan(*operands, backend=ALL, **options)._problem, ALL)
    assert isinstance(plan, Split)
    return plan


# Operands on the host.


def the_same(*operands: Any, out: Any = None, **options: Any) -> None:
    """The bits of the CPU, on several GPUs, with and without an out."""
    assert len({side.device.key for side in split(*operands, out=out, **options).sides}) > 1
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


def fetched(a: Any, b: Any, c: Any = None, **options: Any) -> None:
    """The bits of the CPU, of operands on the second GPU."""
    right = gemm.gemm(a, b, c, backend="cpu", reproducible=True, **options)
    x, y, z = resident(a, b, c, on=1)
    assert len(split(x, y, z, reproducible=True, **options).sides) > 1
    found = gemm.gemm(x, y, z, backend=ALL, reproducible=True, **options)
    np.testing.assert_array_equal(found.copy_to_host(), right)
    assert found.device.key == "cuda:1"


RESIDENT: dict[str, Callable[[], None]] = {
    "plain": lambda: fetched(rand(M, K), rand(K, N)),
    "transposed": lambda: fetched(rand(K, M), rand(N, K), trans_a=True, trans_b=True),
    "beta": lambda: fetched(rand(M, K), rand(K, N), rand(M, N), alpha=-1.5, beta=0.5),
    "batch": lambda: fetched(rand(90, 4, 5), rand(90, 5, 6)),
    "a stack of large ones": lambda: fetched(rand(3, M, K), rand(K, N)),
    "float64": lambda: fetched(rand(M, K, dtype="d"), rand(K, N, dtype="d")),
    "int64": lambda: fetched(*(np.trunc(9 * rand(*shape)).astype("i8") for shape in ((M, K), (K, N)))),
}


@pytest.mark.parametrize("name", RESIDENT)
def test_operands_on_one_gpu(gpus: tuple[Device, ...], small_panels: None, name: str) -> None:
    RESIDENT[name]()


# Sharded operands.


def grids(gpus: tuple[Device, ...]) -> list[tuple[int, int]]:
    return list(several.grids(len(gpus)))


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


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_summa, "DEEP", 16)
    monkeypatch.setattr(cuda_summa, "NARROWEST", 8)
