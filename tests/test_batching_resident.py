"""Products of CUDA arrays that wait: in runs at a constant distance, on the device. On a GPU, or by --cuda-machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gemm
from gemm import repeat
from gemm.backends.cuda_arrays import DeviceArray
from gemm.dispatch import registry
from gemm.resident import Resident

RNG = np.random.default_rng(23)
COUNT = 24


class Slices:
    """The matrices of one array on the GPU, as arrays of their own."""

    def __init__(self, host: np.ndarray) -> None:
        backend = registry.backend("cuda")
        self.host, self._device = host, backend.devices()[0]
        self._whole = backend.to_device(host, self._device).owner
        self.items = [self._slice(i) for i in range(len(host))]

    def _slice(self, i: int) -> Any:
        array: Any = object.__new__(DeviceArray)
        array.shape, array.dtype, array.device = self.host.shape[1:], self.host.dtype, self._device
        array.nbytes, array._lent = self.host[0].nbytes, False
        array._address = self._whole._address + i * array.nbytes
        _, _, _, strides, dtype, device, stream = self._whole._view
        array._view = array._address, 0, array.shape, strides[1:], dtype, device, stream
        return array

    def back(self) -> np.ndarray:
        found: np.ndarray = registry.backend("cuda").to_host(self._whole.view())
        return found

    def close(self) -> None:
        for array in self.items:
            array._address = 0  # they own nothing


@pytest.fixture
def slices() -> Iterator[Any]:
    if repeat.new(1) is None:
        pytest.skip("gemm._memo is not built")
    if gemm.backends()["cuda"]:
        pytest.skip(gemm.backends()["cuda"])
    made: list[Slices] = []

    def make(*shape: int) -> Slices:
        made.append(Slices(RNG.standard_normal((COUNT, *shape)).astype(np.float32)))
        return made[-1]

    repeat.forget()
    yield make
    for each in made:
        each.close()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many products each run had."""
    counts: list[int] = []
    real = Resident._launch

    def launch(self: Resident, run: Any, *rest: Any) -> None:
        counts.append(len(run))
        real(self, run, *rest)

    monkeypatch.setattr(Resident, "_launch", launch)
    return counts


def ask(a: Any, b: Any, **options: Any) -> Any:
    return gemm.gemm(a, b, reproducible=True, **options)


def right(a: Any, b: Any, **options: Any) -> np.ndarray:
    return np.stack([gemm.gemm(x, y, reproducible=True, backend="cpu", **options) for x, y in zip(a, b, strict=True)])


def learn(*operands: Any, **options: Any) -> None:
    for _ in range(2):
        ask(*operands, **options)


def test_slices_are_one_launch(slices, launched):
    a, b, out = slices(8, 8), slices(8, 8), slices(8, 8)
    learn(a.items[0], b.items[0], out=out.items[0])
    with gemm.batching() as batch:
        for x, y, z in zip(a.items, b.items, out.items, strict=True):
            assert ask(x, y, out=z) is z
        assert len(batch) == COUNT
    assert launched == [COUNT]
    np.testing.assert_array_equal(out.back(), right(a.host, b.host))


def test_one_operand_for_all_and_new_results(slices, launched):
    a, b = slices(8, 8), slices(8, 8)
    learn(a.items[0], b.items[0])
    found = gemm.gemm_many(a.items, b.items[3], reproducible=True)
    host = registry.backend("cuda").to_host
    np.testing.assert_array_equal(np.stack([host(x.view()) for x in found]), right(a.host, [b.host[3]] * COUNT))
    assert sum(launched) == COUNT


def test_an_addend_that_is_out(slices, launched):
    a, b, out = slices(8, 8), slices(8, 8), slices(8, 8)
    expected = np.stack([
        gemm.gemm(x, y, z, alpha=0.5, beta=1, reproducible=True, backend="cpu")
        for x, y, z in zip(a.host, b.host, out.host, strict=True)
    ])  # fmt: skip
    twice = gemm.gemm(a.host[0], b.host[0], expected[0], alpha=0.5, beta=1, reproducible=True, backend="cpu")
    expected[0] = twice
    ask(a.items[0], b.items[0], c=out.items[0], alpha=0.5, beta=1, out=out.items[0])
    with gemm.batching():
        for x, y, z in zip(a.items, b.items, out.items, strict=True):
            ask(x, y, c=z, alpha=0.5, beta=1, out=z)
    assert launched == [COUNT]
    np.testing.assert_array_equal(out.back(), expected)


def test_any_distances_are_right(slices, launched):
    a, b, out = slices(8, 8), slices(8, 8), slices(8, 8)
    learn(a.items[0], b.items[0], out=out.items[0])
    order = RNG.permutation(COUNT)
    with gemm.batching():
        for i in order:
            ask(a.items[i], b.items[i], out=out.items[i])
    assert sum(launched) == COUNT
    np.testing.assert_array_equal(out.back(), right(a.host, b.host))


def test_dependent_products_keep_their_order(slices, launched):
    h, w = slices(8, 8), slices(8, 8)
    learn(w.items[0], w.items[1], out=w.items[2])
    expected = h.host.copy()
    for i in range(1, COUNT):
        expected[i] = right([expected[i - 1]], w.host[3:4], alpha=1)[0]
    with gemm.batching():
        for i in range(1, COUNT):
            ask(h.items[i - 1], w.items[3], out=h.items[i])
    assert launched == [1] * (COUNT - 1)
    np.testing.assert_array_equal(h.back(), expected)


def test_futures_and_errors_of_a_launch(slices, monkeypatch):
    a, b, out = slices(8, 8), slices(8, 8), slices(8, 8)
    learn(a.items[0], b.items[0], out=out.items[0])
    import gemm.resident as module

    real = module.at_once

    def failing(x: Any, *rest: Any, **options: Any) -> Any:
        if x.ndim > 2 if hasattr(x, "ndim") else x is a.items[4]:
            raise MemoryError("none left")
        return real(x, *rest, **options)

    monkeypatch.setattr(module, "at_once", failing)
    futures = [gemm.submit(x, y, out=z, reproducible=True) for x, y, z in zip(a.items, b.items, out.items, strict=True)]
    assert not futures[4].done()
    assert isinstance(futures[4].exception(), MemoryError)
    assert futures[5].result() is out.items[5]
    np.testing.assert_array_equal(np.delete(out.back(), 4, 0), np.delete(right(a.host, b.host), 4, 0))
