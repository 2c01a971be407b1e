"""Checks of launches that overlap: launches in a row with separate outputs, and chains of dependent products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemm.catalog import Kernel, simplest
from gemm.core.backend import Backend
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, DeviceView, DType, Problem
from gemm.select.verify.regimes import name_of
from gemm.select.verify.single import (
    FAR,
    SPARSE,
    Mismatch,
    brief,
    few_ones,
    on_device,
    ones,
    poisoned,
    times,
    types_of,
    wide,
)

IN_A_ROW = 8
"""Number of launches in a row: nothing waits between them, and each has its own output."""


class Product:
    """The operands of one product, in the memory where the backend computes, and a check of the product's results.

    Each row of a has a few elements that are 1 or -1; its other elements are 0. The elements of b are 1 or -1. The
    elements of c are -8 … 8. Unsigned types have 0 instead of -1, and c of 0 … 8. Every sum of such products is exact.
    """

    def __init__(self, backend: Backend, kernel: Kernel, device: Device, problem: Problem,
                 dice: np.random.Generator) -> None:  # fmt: skip
        self.backend, self.device = backend, device
        self.dtype, types = types_of(kernel)
        lead = (problem.batch,) if problem.batch > 1 else ()
        a = few_ones(dice, types[0], (*lead, problem.m, problem.k))
        b = ones(dice, types[1], (*lead, problem.k, problem.n), problem.layout[1])
        least, shape = 0 if self.dtype.kind == "u" else -8, (*lead, problem.m, problem.n)
        c = dice.integers(least, 9, shape, np.int8).astype(self.dtype)
        # The check compares weighted sums of each row of the result; the weights are random. A wrong element changes
        # the weighted sums of its row. The weighted sums are exact, because all numbers have few bits.
        self.weights = dice.integers(1, 1 << 10, (problem.n, 2)).astype(np.float64)
        self.right = times(a, times(b, self.weights))
        self.right_c = self.right - 2 * times(c, self.weights)
        self.sent_a = on_device(backend, device, a, problem.layout[0])
        self.sent_b = on_device(backend, device, b, problem.layout[1])
        self.sent_c = on_device(backend, device, c)
        where = device.key if isinstance(self.sent_c, DeviceView) else "host"
        self.problem = replace(problem, device=where)

    def prepare(self, kernel: Kernel, count: int) -> None:
        """Make the outputs of `count` launches of `kernel`. Every fourth launch adds c to the product.

        Each output is a window of a larger array, the frame, which is filled with a poison value. Each row of the
        window begins 16 bytes after the beginning of a row of the frame.
        """
        side, (*lead, m, n) = self._side, self.sent_c.shape
        self.frame = poisoned(self.dtype, (*lead, m + 2, n + 2 * side))
        self.kernel, added = kernel, replace(self.problem, alpha="x", beta="x")
        self.outs = [(on_device(self.backend, self.device, self.frame), index % 4 == 3) for index in range(count)]
        self.launches = {adds: self.backend.launcher(kernel, self.device, added if adds else self.problem)
                         for _, adds in self.outs}  # fmt: skip

    @property
    def _side(self) -> int:
        return 16 // min(16, self.dtype.itemsize)

    def window(self, frame: Any) -> Any:
        """Return the part of a frame that the kernel must write."""
        if isinstance(frame, np.ndarray):
            return frame[..., 1:-1, self._side : -self._side]
        offset = frame.offset + frame.strides[-2] + self._side * frame.strides[-1]
        return replace(frame, offset=offset, shape=self.sent_c.shape)

    def enqueue(self, index: int) -> None:
        """Launch the product into output `index` without waiting."""
        out, adds = self.outs[index]
        c, beta = (self.sent_c, -2) if adds else (None, 0)
        self.launches[adds](self.sent_a, self.sent_b, c, self.window(out), 1, beta)

    def check(self, what: str) -> None:
        """Raise Mismatch unless every output is correct and nothing outside the outputs was written."""
        for index, (out, adds) in enumerate(self.outs):
            frame = self.backend.to_host(out) if isinstance(out, DeviceView) else out
            result = self.window(frame)
            name = f"{self.kernel.label} on {self.device.name}: {what}, {brief(self.problem)}, launch {index + 1}"
            with np.errstate(invalid="ignore", over="ignore"):
                sums = times(result, self.weights)
            if not np.array_equal(sums, self.right_c if adds else self.right):
                raise Mismatch(f"{name} of {len(self.outs)} in a row is wrong")
            result[...] = self.window(self.frame)
            if not np.array_equal(frame.view(np.uint8), self.frame.view(np.uint8)):
                raise Mismatch(f"{name} of {len(self.outs)} in a row wrote outside its output")


def in_a_row(backend: Backend, device: Device, jobs: Sequence[tuple[Kernel, Problem]], seed: Sequence[int], *,
             times: int = IN_A_ROW) -> None:  # fmt: skip
    """Launch each of `jobs` `times` times, then compare all results.

    The jobs take turns, nothing waits between launches, and each launch has its own output. Raises Mismatch,
    KernelFailed, MemoryError.
    """
    dice = np.random.default_rng(list(seed))
    sent = [Product(backend, kernel, device, problem, dice) for kernel, problem in jobs]
    for each, (kernel, _) in zip(sent, jobs, strict=True):
        each.prepare(kernel, times)
    backend.synchronize(device)
    for index in range(times):
        for each in sent:
            each.enqueue(index)
    for each in sent:
        each.check(name_of(each.kernel, device, each.problem))


_NARROW = 64
"""Number of columns of d and number of rows of f, the last results of a chain (see `chain`)."""


def _next(kernel: Kernel) -> Kernel | None:
    """Return a kernel that multiplies the results of `kernel`; None if there is none.

    If the operands of `kernel` have the type of its results, return `kernel` itself. Otherwise return the simplest
    kernel whose operands have the type of these results.
    """
    dtype, types = types_of(kernel)
    own = dtype == types[0] == types[1] and not kernel.inputs
    return kernel if own else simplest(kernel.backend, kernel.dtype)


def unlinked(kernel: Kernel, device: Device, second: Kernel | None = None) -> str:
    """Return why no `chain` of `kernel` and then `second` is possible; or "". `second` defaults to `_next(kernel)`."""
    second = second or _next(kernel)
    if second is None:
        return f"no kernel of {kernel.backend} multiplies its results, {kernel.dtype}"
    lacks = ", ".join(sorted(set(second.needs) - device.features))
    return f"{second.name}, which would multiply its results, needs {lacks}" if lacks else ""


def unable(kernel: Kernel, device: Device) -> bool:
    """Whether `device` lacks a feature that `kernel` needs."""
    return bool(set(kernel.needs) - device.features)


class _Chain:
    """The operands of a chain. `enqueue` launches the chain, and `check` compares its results."""

    def __init__(self, backend: Backend, device: Device, kernels: Sequence[Kernel], problem: Problem,
                 dice: np.random.Generator) -> None:  # fmt: skip
        self.backend, self.device, self.problem = backend, device, problem
        self.kernel, self.second = kernels
        self.dtype, self.types = types_of(self.kernel)
        # Verification before the first product compiles no second kernel if `kernel` can compute x, too.
        plain = self.kernel.lazy_verify or _next(self.kernel) is not self.kernel
        self.first = simplest(self.kernel.backend, self.types[0].name) if plain else self.kernel
        if self.first is not None and unable(self.first, device):
            self.first = None
        m, n, k = problem.m, problem.n, problem.k
        # At most SPARSE columns of v have an element other than 0. The other columns of x = u·v are 0. No sum of
        # c = x·b therefore has more than SPARSE terms other than 0.
        self.v = np.zeros((8, k), self.types[0])
        self.places = dice.permutation(k)[:SPARSE]
        self.v[dice.integers(0, 8, len(self.places)), self.places] = 1
        flat = ones if self.dtype.kind != "c" else few_ones
        self.us = [flat(dice, self.types[0], (m, 8)) for _ in range(2)]
        self.b = ones(dice, self.types[1], (k, n), problem.layout[1])
        self.e, self.g = few_ones(dice, self.dtype, (_NARROW, n), 1).T, few_ones(dice, self.dtype, (_NARROW, m), 1)
        self.xs = [matmul(wide(u), wide(self.v[:, self.places])) for u in self.us]

    def _send(self, x: np.ndarray, letter: str = "N") -> Any:
        return on_device(self.backend, self.device, x, letter)

    def _spread(self, x: np.ndarray) -> np.ndarray:
        """Return the full matrix: the columns of `x` at `self.places`, and 0 elsewhere."""
        m, k, transposed = self.problem.m, self.problem.k, self.problem.layout[0] == "T"
        whole = np.zeros((k, m), self.types[0]).T if transposed else np.zeros((m, k), self.types[0])
        whole[:, self.places] = x
        return whole

    def _multiply(self, row: Kernel, left: DeviceView, right: DeviceView, out: DeviceView) -> None:
        names = tuple(types_of(row)[1][at].name for at in (0, 1)) if row.inputs else ()
        shape = out.shape[-2], out.shape[-1], left.shape[-1]
        letters = "".join("N" if x.strides[-1] <= x.strides[-2] else "T" for x in (left, right, out))
        asked = Problem(row.dtype, *shape, layout=letters, precision=row.precision, inputs=names,
                        device=self.device.key)  # fmt: skip
        self.backend.launcher(row, self.device, asked)(left, right, None, out, 1, 0)

    def enqueue(self, *, far: bool) -> None:
        """Launch the whole chain twice without waiting."""
        m, n, letters = self.problem.m, self.problem.n, self.problem.layout
        us, v, b = [self._send(u) for u in self.us], self._send(self.v), self._send(self.b, letters[1])
        e, g = self._send(self.e), self._send(self.g)
        xs = [self._send(self._spread(x), letters[0]) for x in self.xs[: 1 + (self.first is None)]]
        c = _far(self.backend, self.device, self.dtype, m, n) if far else self._send(poisoned(self.dtype, (m, n)))
        self.ds = [self._send(poisoned(self.dtype, (m, _NARROW))) for _ in us]
        self.fs = [self._send(poisoned(self.dtype, (_NARROW, n))) for _ in us]
        self.backend.synchronize(self.device)
        for turn, (u, d, f) in enumerate(zip(us, self.ds, self.fs, strict=True)):
            x = xs[turn % len(xs)]
            if self.first is not None:
                self._multiply(self.first, u, v, x)
            self._multiply(self.kernel, x, b, c)
            self._multiply(self.second, c, e, d)
            self._multiply(self.second, g, c, f)

    def check(self, what: str) -> None:
        """Raise Mismatch unless d and f of both launches of the chain are correct."""
        rows, e, g = wide(self.b[self.places]), wide(self.e), wide(self.g)
        for turn, (x, d, f) in enumerate(zip(self.xs, self.ds, self.fs, strict=True)):
            right = {"d = c·e": (d, matmul(x, matmul(rows, e))), "f = g·c": (f, matmul(matmul(g, x), rows))}
            for name, (view, expected) in right.items():
                if not np.array_equal(wide(self.backend.to_host(view)), expected):
                    raise Mismatch(f"{what}: {name} is wrong in the {('first', 'second')[turn]} launch")


def chain(backend: Backend, device: Device, kernels: Sequence[Kernel | None], problem: Problem, seed: Sequence[int], *,
          far: bool = False) -> bool:  # fmt: skip
    """Launch a chain of dependent products twice without waiting, then compare all results.

        x = u·v, c = x·b, d = c·e, f = g·c

    The second chain has another u. It overwrites x and c while products of the first chain may still read them.

    - kernels[0] computes c.
    - kernels[1] computes d and f. If it is missing or None, `_next(kernels[0])` computes them.
    - kernels[0] computes x, too, if the operands of kernels[0] have the type of its results. Otherwise, or if
      kernels[0] has `lazy_verify`, the simplest kernel of the type of x computes x. If there is none, x is not
      computed: the host computes one x for each chain, and copies both to the device before the launches.

    Each column of e and each row of g has a single element other than 0. Each element of d and f therefore depends on
    exactly one element of c.

    Args:
        far: whether the rows of c are so far apart that the last row begins beyond 2**31 elements.

    Returns:
        True; or False, without a launch, if the batch is not 1 or no second kernel can run (see `unlinked`).

    Raises:
        Mismatch, KernelFailed, MemoryError.
    """
    kernel, second = kernels[0], (*kernels[1:], None)[0]
    assert kernel is not None
    second = second or _next(kernel)
    if second is None or unlinked(kernel, device, second) or problem.batch > 1:
        return False
    links = _Chain(backend, device, (kernel, second), problem, np.random.default_rng(list(seed)))
    links.enqueue(far=far)
    distance = " far apart" * far
    links.check(f"{kernel.label} on {device.name}: a chain with {second.label}, c of {brief(problem)}{distance}")
    return True


def _far(backend: Backend, device: Device, dtype: DType, m: int, n: int) -> DeviceView:
    """Return uninitialized device memory for an m × n matrix whose last row begins beyond 2**31 elements."""
    row = max(n, -(-FAR // (m - 1)) // 16 * 16 + 16)
    like = backend.to_device(np.zeros(16, np.uint8), device)
    memory = backend.empty((((m - 1) * row + n) * dtype.itemsize,), like)
    return replace(memory, shape=(m, n), strides=(row * dtype.itemsize, dtype.itemsize), dtype=dtype)
