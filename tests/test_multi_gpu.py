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
from gemm.backends import cuda_api, cuda_compiler
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
