"""Products of CUDA arrays within `gemm.batching`: at once, on the device. On a GPU, or by --cuda-machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemm
from gemm.backends.base import Backend
from gemm.dispatch import registry

RNG = np.random.default_rng(23)
COUNT = 12


@pytest.fixture
def cuda() -> Backend:
    if gemm.backends()["cuda"]:
        pytest.skip(gemm.backends()["cuda"])
    return registry.backend("cuda")


def stacks(backend: Backend, count: int) -> tuple[list[np.ndarray], list[list[Any]]]:
    """Matrices of the host, and copies of them on the GPU."""
    hosts = [RNG.standard_normal((COUNT, 8, 8)).astype(np.float32) for _ in range(count)]
    device = backend.devices()[0]
    return hosts, [[backend.to_device(x, device).owner for x in host] for host in hosts]


def back(backend: Backend, arrays: list[Any]) -> np.ndarray:
    return np.stack([backend.to_host(x.view()) for x in arrays])


@pytest.mark.parametrize("how", ["batching", "submit", "gemm_many"])
def test_they_do_not_wait(cuda: Backend, how: str) -> None:
    (p, q, _), (a, b, out) = stacks(cuda, 3)
    if how == "batching":
        with gemm.batching() as batch:
            for x, y, z in zip(a, b, out, strict=True):
                assert gemm.gemm(x, y, out=z, reproducible=True) is z
                assert len(batch) == 0
    elif how == "submit":
        futures = [gemm.submit(x, y, out=z, reproducible=True) for x, y, z in zip(a, b, out, strict=True)]
        assert all(future.done() for future in futures)
    else:
        assert gemm.gemm_many(a, b, out=out, reproducible=True) == out
    expected = np.stack([gemm.gemm(x, y, reproducible=True, backend="cpu") for x, y in zip(p, q, strict=True)])
    np.testing.assert_array_equal(back(cuda, out), expected)


def test_those_of_the_host_that_wait_beside_them(cuda: Backend) -> None:
    (p, q), (a, b) = stacks(cuda, 2)
    host = np.zeros((COUNT, 8, 8), np.float32)
    gemm.gemm(p[0], q[0], out=host[0], backend="cpu")
    with gemm.batching():
        found = []
        for i in range(COUNT):
            gemm.gemm(p[i], q[i], out=host[i], backend="cpu")
            found.append(gemm.gemm(a[i], b[i], reproducible=True))
    np.testing.assert_array_equal(back(cuda, found), host)
