"""Launches in a row that nothing waits between, each into an output of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gemm.backends.base import Backend
from gemm.catalog import Kernel
from gemm.problem import Device, DeviceView, Problem
from gemm.regimes import name_of
from gemm.verify.samples import brief, few_ones, lying, ones, times, types_of
from gemm.verify.single import Mismatch

IN_A_ROW = 8
"""Launches that nothing waits between, each into an output of its own."""


class _Sent:
    """Operands of one product in device memory: a of few ones to a row, b of ones, c of -8 … 8; every sum is exact."""

    def __init__(self, backend: Backend, kernel: Kernel, device: Device, problem: Problem,
                 dice: np.random.Generator) -> None:  # fmt: skip
        self.backend, self.kernel, self.device, self.problem = backend, kernel, device, problem
        self.dtype, self.types = types_of(kernel)
        self.lead = (problem.batch,) if problem.batch > 1 else ()
        shape = (*self.lead, problem.m, problem.n)
        a = few_ones(dice, self.types[0], (*self.lead, problem.m, problem.k))
        b = ones(dice, self.types[1], (*self.lead, problem.k, problem.n), problem.layout[1])
        c = dice.integers(0 if self.dtype.kind == "u" else -8, 9, shape, np.int8).astype(self.dtype)
        # A sum of each row by random weights tells of any element that is wrong: numbers of so few bits add up exactly.
        self.weights = dice.integers(1, 1 << 10, (problem.n, 2)).astype(np.float64)
        self.right = times(a, times(b, self.weights))
        self.right_c = self.right - 2 * times(c, self.weights)
        self.sent_a = lying(backend, device, a, problem.layout[0])
        self.sent_b = lying(backend, device, b, problem.layout[1])
        self.sent_c = backend.to_device(c, device)
        self.outs: list[tuple[DeviceView, bool]] = []

    def prepare(self, count: int) -> None:
        """Make so many outputs: windows of poisoned frames, where rows begin at multiples of 16 bytes."""
        poison = np.uint8(0xA5 if self.dtype.kind in "iu" else 0xFF)  # no number where there is such a thing
        side, (*lead, m, n) = self._side, self.sent_c.shape
        self.frame = np.full((*lead, m + 2, (n + 2 * side) * self.dtype.itemsize), poison).view(self.dtype)
        self.outs = [(self.backend.to_device(self.frame, self.device), index % 4 == 3) for index in range(count)]
        plain = replace(self.problem, device=self.device.key)
        self.launches = [self.backend.launcher(self.kernel, self.device, x)
                         for x in (plain, replace(plain, alpha="x", beta="x"))]  # fmt: skip

    @property
    def _side(self) -> int:
        return 16 // min(16, self.dtype.itemsize)

    def window(self, frame: DeviceView) -> DeviceView:
        """What is to be written of a frame."""
        offset = frame.offset + frame.strides[-2] + self._side * frame.strides[-1]
        return replace(frame, offset=offset, shape=self.sent_c.shape)

    def enqueue(self, index: int) -> None:
        """Launch for output number `index`, waiting for nothing; every fourth adds a c."""
        out, adds = self.outs[index]
        c, beta = (self.sent_c, -2) if adds else (None, 0)
        self.launches[adds](self.sent_a, self.sent_b, c, self.window(out), 1, beta)

    def check(self, what: str) -> None:
        """Raise Mismatch unless every output is right, and nothing but them was written."""
        where = np.s_[..., 1:-1, self._side : -self._side]
        for index, (out, adds) in enumerate(self.outs):
            frame = self.backend.to_host(out)
            result = frame[where]
            told = f"{self.kernel.label} on {self.device.name}: {what}, {brief(self.problem)}, launch {index + 1}"
            with np.errstate(invalid="ignore", over="ignore"):
                sums = times(result, self.weights)
            if not np.array_equal(sums, self.right_c if adds else self.right):
                raise Mismatch(f"{told} of {len(self.outs)} in a row is wrong")
            result[...] = self.frame[where]
            if not np.array_equal(frame.view(np.uint8), self.frame.view(np.uint8)):
                raise Mismatch(f"{told} of {len(self.outs)} in a row wrote outside its output")


def in_a_row(backend: Backend, device: Device, jobs: Sequence[tuple[Kernel, Problem]], seed: Sequence[int], *,
             times: int = IN_A_ROW) -> None:  # fmt: skip
    """Launch each of `jobs` so many times, in turns and without a wait, each time into an output of its own; then
    compare all. Raises Mismatch, KernelFailed, MemoryError."""
    dice = np.random.default_rng(list(seed))
    sent = [_Sent(backend, kernel, device, problem, dice) for kernel, problem in jobs]
    for each in sent:
        each.prepare(times)
    backend.synchronize(device)
    for index in range(times):
        for each in sent:
            each.enqueue(index)
    for each in sent:
        each.check(name_of(each.kernel, device, each.problem))
