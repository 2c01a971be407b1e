"""Does a kernel compute the right thing on this device and driver? For the probe, the tuner and `gemm verify`.

This is the short check that a kernel must pass before `auto` may choose it; tests/conformance is the long one.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gemm import operands
from gemm.backends.base import Backend
from gemm.catalog import HOST_BACKENDS, KERNELS, Kernel
from gemm.plain import matmul
from gemm.problem import FP8, NARROW, Device, DeviceView, Problem
from gemm.regimes import BATCHED, name_of, regimes, units_of


class Mismatch(ArithmeticError):
    """A kernel's result is not what the numerical contract says."""


@dataclass(frozen=True)
class Case:
    """One product to check: sizes, scalars and how the operands lie; apart: see Problem."""

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1
    apart: bool = False

    def __str__(self) -> str:
        trans = "NT"[self.trans_a] + "NT"[self.trans_b]
        batch = f"{self.batch}x {'apart ' * self.apart}" if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {trans} alpha={self.alpha:g} beta={self.beta:g}"


QUICK = (
    Case(1, 1, 1),
    Case(37, 41, 43, 0.5, -2.0),
    Case(33, 65, 17, -1.0, 1.0, trans_a=True, trans_b=True),
    Case(5, 7, 0, -1.0, 3.0),
    Case(64, 96, 300, batch=2),
)
FULL = (
    *QUICK,
    *(Case(m, n, k) for m in (1, 2, 3, 8, 31, 33) for n in (1, 4, 7, 16, 33) for k in (1, 5, 8, 33)),
    *(Case(29, 35, 71, alpha, beta, trans_a, trans_b)
      for alpha in (1.0, 0.75) for beta in (0.0, 1.0, -0.5) for trans_a in (False, True) for trans_b in (False, True)),
    Case(130, 70, 1030), Case(3, 200, 11), Case(200, 3, 11), Case(16, 16, 5000), Case(9, 9, 9, batch=33),
)  # fmt: skip
APART = (Case(17, 19, 45, 0.5, -2.0, batch=9, apart=True), Case(16, 32, 33, batch=9, trans_b=True, apart=True))
"""For kernels that also take products each of which lies by itself."""


def quick(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Raise Mismatch (or KernelFailed) unless `kernel` passes the short cases and its ordered bits are right."""
    for _ in checks(backend, kernel, device, full=False):
        pass


def beyond(kernel: Kernel) -> tuple[Case, ...]:
    """What the short cases may not reach in a GPU's kernel: a product of more than one tile each way; one of so long a
    k that its tiles are shared, and products each of which lies by itself, where the kernel has such forms."""
    p = kernel.params
    if not kernel.late or "BM" not in p:
        return ()
    lengths = (2 * p.get("BK", 8) + 16, *([2064] if p.get("shares") else []))
    tiles = tuple(Case(p["BM"] * p.get("MULTICAST", 1) + 8, p["BN"] + 16, k, 0.5, -2.0) for k in lengths)
    return tiles + (APART if kernel.apart else ())


def checks(backend: Backend, kernel: Kernel, device: Device, *, full: bool = True) -> Iterator[str]:
    """Check case after case, yielding each one's name when it has passed; raises Mismatch at the first that has not."""
    for name, check in planned(backend, kernel, device, full=full):
        check()
        yield name


def planned(
    backend: Backend, kernel: Kernel, device: Device, *, full: bool = True
) -> list[tuple[str, Callable[[], object]]]:
    """What `checks` does, in order: names, and what raises Mismatch.

    Where a device tells of its units: single products, which the error bound judges; a product of each regime of the
    kernel's launches (gemm.regimes), several times in a row; a chain of products, which the next launch may overlap.
    Unless it is to be quick, regimes of batches, too, chains of the costliest regime and across kernels, and one whose
    c reaches beyond 2**31 elements, if there is four times the memory for it. Kernels that compute in host memory are
    given rows and columns that lie so far apart, in memory of which a few pages are used. `left_out` has the rest.
    """
    cases = (FULL if full else QUICK) + beyond(kernel)
    found: list[tuple[str, Callable[[], object]]] = [
        (str(case), partial(_check, backend, kernel, device, case)) for case in cases
    ]
    ways = regimes(kernel, device)
    times = IN_A_ROW if full or kernel.late else 2
    for name, problem in ways.items():
        if not full and name.endswith(BATCHED):
            continue
        found.append((name, partial(in_a_row, backend, device, [(kernel, problem)], (1,), times=times)))
    single = _links(ways)
    if single and not unlinked(kernel, device):
        several = [problem for name, problem in single.items() if "one wave" not in name] or [*single.values()]
        easiest, *_, hardest = sorted((several[0], *several), key=lambda problem: problem.flops)
        found.append(("a chain", partial(chain, backend, device, kernel, hardest if full else easiest, (2,))))
        if full:
            plain = plain_row(kernel.backend, kernel.dtype)
            across = partial(chain, backend, device, kernel, hardest, (3,), second=plain)
            found.append(("a chain with the simplest kernel", across))
        if full and far_bytes(kernel, device):
            found.append((BEYOND, partial(chain, backend, device, kernel, hardest, (4,), far=True)))
    if full and kernel.backend in HOST_BACKENDS and _promised(kernel) is not None:
        found.append((BEYOND, partial(_check_far, backend, kernel, device)))
    if has_bits(kernel, device):
        found.append(("ordered bits", partial(_check_bits, backend, kernel, device)))
    return found


def _links(ways: dict[str, Problem]) -> dict[str, Problem]:
    """Those regimes of which chains are made."""
    return {name: problem for name, problem in ways.items() if problem.batch == 1 and not problem.reproducible}


def left_out(kernel: Kernel, device: Device, *, full: bool = True) -> dict[str, str]:
    """What `planned` would cover, but cannot for this kernel on this device: {what: why}."""
    if kernel.backend in HOST_BACKENDS:
        there = not full or _promised(kernel) is not None
        return {} if there else {BEYOND: "the system promises no more memory than it has"}
    ways, found = regimes(kernel, device), {}
    if not ways:
        why = "its launches are not cut into tiles" if units_of(device) else "the device does not tell of its units"
        found["regimes of launches, launches in a row, chains"] = why
    elif why := unlinked(kernel, device) or ("" if _links(ways) else "it computes products of a batch alone"):
        found["chains"] = why
    if full and (why := _too_far(kernel, device) or ("it is a chain" if found else "")):
        found[BEYOND] = why
    return found


def _check_bits(backend: Backend, kernel: Kernel, device: Device) -> None:
    if ordered_hash(backend, kernel, device) != ORDERED[kernel.dtype]:
        raise Mismatch(f"{kernel.name} on {device.name}: its ordered bits differ from the contract's")


def has_bits(kernel: Kernel, device: Device) -> bool:
    """Whether ORDERED has what `kernel` makes of `ordered_case` on `device`."""
    return kernel.ordered and not kernel.inputs and not set(kernel.ordered_needs) - device.features


def _check(backend: Backend, kernel: Kernel, device: Device, case: Case) -> None:
    dtype, types = types_of(kernel)
    random = np.random.default_rng(list(case.__dict__.values())[:3])
    lead = (case.batch,) if case.batch > 1 else ()

    def matrix(own: np.dtype[Any], rows: int, columns: int, flip: bool = False) -> np.ndarray:
        shape = (*lead, columns, rows) if flip else (*lead, rows, columns)
        values = random_matrix(random, own, shape)
        return np.swapaxes(values, -1, -2) if flip else values

    a, b = matrix(types[0], case.m, case.k, case.trans_a), matrix(types[1], case.k, case.n, case.trans_b)
    c = matrix(dtype, case.m, case.n) if case.beta else None
    whole = dtype.kind == "i"
    alpha, beta = (int(x if x == 1 else 4 * x) if whole else x for x in (case.alpha, case.beta))
    frame = np.full((*lead, case.m + 2, (case.n + 2) * dtype.itemsize), 0xA5, np.uint8)
    out = frame.view(dtype)[..., 1:-1, 1:-1]
    problem = Problem(dtype.name, case.m, case.n, case.k, case.batch, _letters(a, b) + "N",
                      "1" if alpha == 1 else "x", "0" if c is None else "x", inputs=kernel.inputs,
                      apart=case.apart)  # fmt: skip
    backend.launcher(kernel, device, problem)(a, b, c, out, alpha, beta)

    if whole:
        right = np.array_equal(out, _wrapped(a, b, c, int(alpha), int(beta), dtype))
    else:
        right = _within(out, a, b, c, case, kernel)
    if not right:
        raise Mismatch(f"{kernel.name} on {device.name}: {case} {'is wrong' if whole else 'exceeds the error bound'}")
    out.view(np.uint8)[...] = 0xA5
    if not np.all(frame == 0xA5):
        raise Mismatch(f"{kernel.name} on {device.name}: {case} wrote outside its output")


IN_A_ROW = 8
"""Launches that nothing waits between, each into an output of its own."""
_SPARSE = 96
"""Numbers other than 0 in a row of a: what fits into int8, and every sum of so many ones is exact in every type."""
_FAR = 1 << 31
BEYOND = "beyond 2**31 elements"
"""The check of offsets that do not fit into 32 bits."""
_NARROW = 64
"""Columns, or rows, of what a chain's second products give."""


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
        self.right = _times(a, _times(b, self.weights))
        self.right_c = self.right - 2 * _times(c, self.weights)
        self.sent_a = _lying(backend, device, a, problem.layout[0])
        self.sent_b = _lying(backend, device, b, problem.layout[1])
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
            told = f"{self.kernel.label} on {self.device.name}: {what}, {_brief(self.problem)}, launch {index + 1}"
            with np.errstate(invalid="ignore", over="ignore"):
                sums = _times(result, self.weights)
            if not np.array_equal(sums, self.right_c if adds else self.right):
                raise Mismatch(f"{told} of {len(self.outs)} in a row is wrong")
            result[...] = self.frame[where]
            if not np.array_equal(frame.view(np.uint8), self.frame.view(np.uint8)):
                raise Mismatch(f"{told} of {len(self.outs)} in a row wrote outside its output")


def _brief(problem: Problem) -> str:
    batch = f"{problem.batch}x " if problem.batch > 1 else ""
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {problem.layout[:2]}"


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _lying(backend: Backend, device: Device, x: np.ndarray, letter: str) -> DeviceView:
    """`x` in device memory, contiguous along its last axis; along the other one for the letter T."""
    return backend.to_device(np.swapaxes(x, -1, -2), device).mT if letter == "T" else backend.to_device(x, device)


def _times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x·y, summed in float64, or in complex128; some rows of x at a time, so that few of them are widened at once."""
    some = max(1, (1 << 18) // max(1, x.shape[-1]))
    parts = [matmul(_wide(x[..., row : row + some, :]), y) for row in range(0, max(1, x.shape[-2]), some)]
    return np.concatenate(parts, -2)


def ones(dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], letter: str = "N") -> np.ndarray:
    """1 and -1, or 0 where there is no such number; both parts of complex ones.

    Args:
        letter: of a layout: "T" is contiguous along its last axis but one.
    """
    if letter == "T":
        return np.swapaxes(ones(dice, dtype, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.stack([ones(dice, part, shape) for _ in range(2)], -1).view(dtype)[..., 0]
    count = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(dice.bytes(-(-count // 8)), np.uint8), count=count)
    # The bits of the first number plus, where a bit is drawn, the difference to the other's: faster than conversions.
    number = np.dtype(f"u{dtype.itemsize}")
    pair = np.array([0 if dtype.kind == "u" else -1, 1], np.int8).astype(dtype).view(number)
    drawn = bits.astype(number)
    drawn *= pair[1:] - pair[:1]
    drawn += pair[:1]
    return drawn.view(dtype).reshape(shape)


def few_ones(
    dice: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], most: int = _SPARSE
) -> np.ndarray:
    """The same in at most so many places of a row, and 0 elsewhere."""
    found = np.zeros(shape, dtype)
    some = (*shape[:-1], min(most, shape[-1]))
    np.put_along_axis(found, dice.integers(0, shape[-1], some), ones(dice, dtype, some), -1)
    return found


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


def plain_row(backend: str, dtype: str) -> Kernel | None:
    """The simplest kernel of a type, the last one; None where there is none."""
    rows = [row for row in KERNELS if (row.backend, row.dtype, row.inputs) == (backend, dtype, ())]
    return rows[-1] if rows else None


def _next(kernel: Kernel) -> Kernel | None:
    """What multiplies the results of `kernel`: itself if it can, or the simplest kernel of their type."""
    dtype, types = types_of(kernel)
    own = dtype == types[0] == types[1] and not kernel.inputs
    return kernel if own else plain_row(kernel.backend, kernel.dtype)


def unlinked(kernel: Kernel, device: Device, second: Kernel | None = None) -> str:
    """Why no `chain` can begin with `kernel` and go on with `second`, or what would be that; or ""."""
    second = second or _next(kernel)
    if second is None:
        return f"no kernel of {kernel.backend} multiplies its results, {kernel.dtype}"
    lacks = ", ".join(sorted(set(second.needs) - device.features))
    return f"{second.name}, which would multiply its results, needs {lacks}" if lacks else ""


def chain(backend: Backend, device: Device, kernel: Kernel, problem: Problem, seed: Sequence[int], *,
          second: Kernel | None = None, far: bool = False) -> bool:  # fmt: skip
    """Enqueue products that depend on each other, twice over and without a wait; then compare all.

        x = u·v, c = x·b, d = c·e, f = g·c

    The second time u is another one, and x and c are overwritten, which the first time's products may still read.
    `kernel` computes c; d and f are computed by `second`, or by `kernel` if it takes its own results, or else by the
    simplest kernel of their type; x by the simplest of its own (if there is none, it lies there twice). Each column of
    e, and row of g, has a single one, so that c's elements are seen as they are.

    Args:
        far: the rows of c are so far apart that its last one begins beyond 2**31 elements.

    Returns:
        Whether there was a kernel for each (`unlinked`). Raises Mismatch, KernelFailed, MemoryError.
    """
    if unlinked(kernel, device, second) or problem.batch > 1:
        return False
    dice = np.random.default_rng(list(seed))
    dtype, types = types_of(kernel)
    m, n, k = problem.m, problem.n, problem.k
    second = second or _next(kernel)
    assert second is not None
    first = plain_row(kernel.backend, types[0].name)
    if first is not None and unable(first, device):
        first = None
    flat = ones if dtype.kind != "c" else few_ones

    def sent(x: np.ndarray, letter: str = "N") -> DeviceView:
        return _lying(backend, device, x, letter)

    def multiplied(row: Kernel, left: DeviceView, right: DeviceView, out: DeviceView) -> None:
        names = tuple(types_of(row)[1][at].name for at in (0, 1)) if row.inputs else ()
        shape = out.shape[-2], out.shape[-1], left.shape[-1]
        letters = "".join("N" if x.strides[-1] <= x.strides[-2] else "T" for x in (left, right, out))
        asked = Problem(row.dtype, *shape, layout=letters, precision=row.precision, inputs=names, device=device.key)
        backend.launcher(row, device, asked)(left, right, None, out, 1, 0)

    # v has at most _SPARSE columns with a one, so that no sum of c is larger, and only those of x are not 0.
    v = np.zeros((8, k), types[0])
    places = dice.permutation(k)[:_SPARSE]
    v[dice.integers(0, 8, len(places)), places] = 1
    us = [flat(dice, types[0], (m, 8)) for _ in range(2)]
    b = ones(dice, types[1], (k, n), problem.layout[1])
    e, g = few_ones(dice, dtype, (_NARROW, n), 1).T, few_ones(dice, dtype, (_NARROW, m), 1)
    xs = [matmul(_wide(u), _wide(v[:, places])) for u in us]
    poison = np.uint8(0xA5 if dtype.kind in "iu" else 0xFF)

    def empty(rows: int, columns: int) -> DeviceView:
        return backend.to_device(np.full((rows, columns * dtype.itemsize), poison).view(dtype), device)

    def spread(x: np.ndarray) -> np.ndarray:
        whole = np.zeros((k, m), types[0]).T if problem.layout[0] == "T" else np.zeros((m, k), types[0])
        whole[:, places] = x
        return whole

    there = [sent(u) for u in us], sent(v), sent(b, problem.layout[1]), sent(e), sent(g)
    u_there, v_there, b_there, e_there, g_there = there
    x_there = [sent(spread(x), problem.layout[0]) for x in xs[: 1 + (first is None)]]
    c = _far(backend, device, dtype, m, n) if far else empty(m, n)
    ds, fs = [empty(m, _NARROW) for _ in us], [empty(_NARROW, n) for _ in us]
    backend.synchronize(device)
    for turn, (u, d, f) in enumerate(zip(u_there, ds, fs, strict=True)):
        x = x_there[turn % len(x_there)]
        if first is not None:
            multiplied(first, u, v_there, x)
        multiplied(kernel, x, b_there, c)
        multiplied(second, c, e_there, d)
        multiplied(second, g_there, c, f)
    rows, wide_e, wide_g = _wide(b[places]), _wide(e), _wide(g)
    for turn, (d, f) in enumerate(zip(ds, fs, strict=True)):
        right_d, right_f = matmul(xs[turn], matmul(rows, wide_e)), matmul(matmul(wide_g, xs[turn]), rows)
        for name, view, right in (("d = c·e", d, right_d), ("f = g·c", f, right_f)):
            if not np.array_equal(_wide(backend.to_host(view)), right):
                raise Mismatch(
                    f"{kernel.label} on {device.name}: a chain with {second.label}, c of {_brief(problem)}"
                    f"{' far apart' * far}: {name} is wrong the {('first', 'second')[turn]} time"
                )
    return True


def _far(backend: Backend, device: Device, dtype: np.dtype[Any], m: int, n: int) -> DeviceView:
    """Room for an m by n matrix whose last row begins beyond 2**31 elements."""
    row = max(n, -(-_FAR // (m - 1)) // 16 * 16 + 16)
    like = backend.to_device(np.zeros(16, np.uint8), device)
    memory = backend.empty((((m - 1) * row + n) * dtype.itemsize,), like)
    return replace(memory, shape=(m, n), strides=(row * dtype.itemsize, dtype.itemsize), dtype=dtype)


def far_bytes(kernel: Kernel, device: Device) -> int:
    """Memory that a chain takes whose c lies far apart; 0 where it does not fit a device (`_too_far`)."""
    return 0 if _too_far(kernel, device) else _far_size(kernel)


def _too_far(kernel: Kernel, device: Device) -> str:
    """Why c cannot reach beyond 2**31 elements on `device`, or "". It is to have four times the memory."""
    needed, limits = _far_size(kernel), device.limits
    there = limits.get("memory_bytes") or limits.get("global_memory", 0)
    if needed > limits.get("max_alloc", needed):
        return f"it takes {needed / 1e9:.1f} GB at once, and the device gives {limits['max_alloc'] / 1e9:.1f} GB"
    if 4 * needed > there:
        has = f"has {there / 1e9:.1f} GB" if there else "does not say what it has"
        return f"it takes {needed / 1e9:.1f} GB, and a device is to have four times that; this one {has}"
    return ""


def _far_size(kernel: Kernel) -> int:
    return int(1.1 * _FAR) * types_of(kernel)[0].itemsize


def _promised(kernel: Kernel) -> np.ndarray | None:
    """Bytes for an operand that reaches beyond 2**31 elements. They take no memory until they are touched; None where
    the system does not promise so many."""
    size = int(1.1 * _FAR) * max(x.itemsize for x in (types_of(kernel)[0], *types_of(kernel)[1]))
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8)
    except (AttributeError, OSError, OverflowError):  # Windows; little memory; 32-bit addresses
        return None


def _check_far(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Raise Mismatch unless `kernel` is right where rows, or columns, of a, b or out span 2**31 elements."""
    dtype, types = types_of(kernel)
    dice, sizes = np.random.default_rng(6), {"a": (9, 13), "b": (13, 21), "out": (9, 21)}
    memory = _promised(kernel)
    assert memory is not None
    for place, axis in product(sizes, (0, 1)):
        given = {"a": ones(dice, types[0], sizes["a"]), "b": ones(dice, types[1], sizes["b"]),
                 "out": np.zeros(sizes["out"], dtype)}  # fmt: skip
        near = given[place]
        strides = [near.itemsize * near.shape[1], near.itemsize]
        strides[axis] = near.itemsize * (_FAR // (near.shape[axis] - 1) + 3)
        far = as_strided(memory[: strides[axis] * near.shape[axis]].view(near.dtype), near.shape, strides)
        far[...] = near
        given[place] = far
        a, b, out = given.values()
        problem = Problem(dtype.name, 9, 21, 13, 1, "".join(map(operands.layout, (a, b, out))), inputs=kernel.inputs)
        backend.launcher(kernel, device, problem)(a, b, None, out, 1, 0)
        if not np.array_equal(_wide(out), matmul(_wide(a), _wide(b))):
            axes = ("rows", "columns")[axis]
            raise Mismatch(f"{kernel.label} on {device.name}: {axes} of {place} {BEYOND}: the product is wrong")


def unable(kernel: Kernel, device: Device) -> bool:
    """Whether `device` lacks a feature that `kernel` needs."""
    return bool(set(kernel.needs) - device.features)


def stress(backend: Backend, device: Device, kernels: Sequence[Kernel], seconds: float, seed: int) -> Iterator[str]:
    """Random regimes of random kernels for so long, several in turns, in a row and in chains; yields what has passed.

    What number `i` does follows from `seed` and i alone. Raises Mismatch, KernelFailed.
    """
    able = [kernel for kernel in kernels if not unable(kernel, device) and regimes(kernel, device)]
    until, number = time.monotonic() + seconds, 0
    while able and time.monotonic() < until:
        dice = np.random.default_rng([seed, number])
        some = [able[dice.integers(len(able))] for _ in range(dice.integers(1, 4))]
        jobs = [(kernel, _varied(kernel, device, dice)) for kernel in some]
        if dice.integers(3):
            in_a_row(backend, device, jobs, (seed, number), times=IN_A_ROW)
            told = "in a row: " + ", ".join(f"{kernel.label} {_brief(problem)}" for kernel, problem in jobs)
        else:
            kernel, problem = jobs[0]
            seconds_of = [x for x in able if (x.dtype, x.inputs) == (kernel.dtype, ())]
            second = seconds_of[dice.integers(len(seconds_of))] if seconds_of else None
            if not chain(backend, device, kernel, problem, (seed, number), second=second):
                number += 1
                continue
            told = f"chain: {kernel.label} {_brief(problem)}" + (f", {second.label}" if second else "")
        yield told
        number += 1


def _varied(kernel: Kernel, device: Device, dice: np.random.Generator) -> Problem:
    """A product of one of the regimes, or one near to it."""
    found = list(regimes(kernel, device).values())
    problem = found[dice.integers(len(found))]
    if dice.integers(2):
        return problem
    m, n, k = (max(8, int(size * dice.uniform(0.5, 1.5)) // 8 * 8) if size > 8 else size
               for size in (problem.m, problem.n, problem.k))  # fmt: skip
    return replace(problem, m=m, n=n, k=k)


def types_of(kernel: Kernel) -> tuple[np.dtype[Any], list[np.dtype[Any]]]:
    """The types of a kernel's results, and of a and b; float32 where any will do."""
    names = "float32" if kernel.dtype == "*" else kernel.dtype, *kernel.inputs
    dtype, *types = (operands.named(name, kernel.name) for name in names)
    return dtype, types or [dtype, dtype]


def random_matrix(random: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of -1 … 1, both parts of complex ones; integers of the whole range."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = random.uniform(-1, 1, shape)
    return (values + 1j * random.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def _wrapped(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None, alpha: int, beta: int, dtype: np.dtype[Any]
) -> np.ndarray:
    """The product of integers, modulo a power of two."""
    with np.errstate(over="ignore"):
        total = matmul(a.astype(np.int64), b.astype(np.int64)) * np.int64(alpha)
        total = total if c is None else total + np.int64(beta) * c
    result: np.ndarray = total.astype(dtype)
    return result


def unit(kernel: Kernel, dtype: np.dtype[Any], k: int) -> float:
    """What |a|·|b| is multiplied by in the bound of `kernel`, whose sums are of `dtype`; see `gemm.gemm`."""
    if kernel.precision == "medium" and any(name in FP8 for name in kernel.inputs):
        return 2.0**-5 + (k + 2) * 2.0**-24
    if kernel.precision == "medium" and kernel.dtype == "float16":
        return (k + 2) * 2.0**-11
    if kernel.precision == "medium" and kernel.dtype == "float32":
        return 2.0**-10 + (k + 2) * 2.0**-22
    if kernel.precision == "high" and kernel.dtype == "float32":
        return (k + 48) * 2.0**-24
    return float((k + 2) * np.finfo(dtype).eps / 2)


def _within(
    out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, case: Case, kernel: Kernel
) -> bool:  # fmt: skip
    """Whether each element, and of complex ones each part, is within the error bound; NaN is not."""
    dtype = out.dtype
    if dtype.kind == "c":  # real parts, then imaginary parts: products of twice the depth
        left = [np.concatenate([a.real, sign * a.imag], -1) for sign in (-1, 1)]
        right = [np.concatenate(parts, -2) for parts in ((b.real, b.imag), (b.imag, b.real))]
        thirds = (None, None) if c is None else (c.real, c.imag)
        rows = zip((out.real, out.imag), left, right, thirds, strict=True)
        return all(_within(*row, replace(case, k=2 * case.k), kernel) for row in rows)
    narrow = dtype.name in NARROW  # sums of float32, rounded once
    if narrow or kernel.inputs:
        out, a, b = (x.astype(np.float32) for x in (out, a, b))
        c = None if c is None else c.astype(np.float32)
    # float64 is exact enough for sums of float32: it errs by 2**-29 of the bound.
    wide = np.longdouble if dtype.itemsize > 4 else np.float64
    exact = wide(case.alpha) * matmul(a.astype(wide), b.astype(wide))
    size = matmul(np.abs(a).astype(wide), np.abs(b).astype(wide)) * abs(case.alpha)
    if c is not None:
        exact, size = exact + wide(case.beta) * c, size + np.abs(wide(case.beta) * c)
    # Where longdouble is no wider than double (macOS on Arm, MSVC), the reference errs as much as the result may.
    bound = (1 if np.finfo(wide).eps < np.finfo(a.dtype).eps else 2) * unit(kernel, a.dtype, case.k) * size
    if narrow:
        rounded = 2.0**-11 if dtype.name == "float16" else 2.0**-8
        bound = bound + rounded * (np.abs(exact) + bound) + 2.0**-25  # half of float16's least number
    return bool(np.all(np.abs(out - exact) <= bound))


def _letters(*arrays: np.ndarray) -> str:
    return "".join("N" if a.strides[-1] == a.itemsize else "T" for a in arrays)


def ordered_case(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fixed a (47 × 301), b (301 × 53) and c whose ordered product 0.75·a·b − 1.25·c has the bits of ORDERED.

    Made by integer arithmetic alone, with exponents spread over 2^±12 (float16: 2^±4), so that each machine has the
    same inputs.
    """
    reach = 4 if dtype == "float16" else 12

    def numbers(seed: int, *shape: int) -> np.ndarray:
        index = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            index = (index ^ (index >> np.uint64(shift))) * np.uint64(factor)
        index ^= index >> np.uint64(31)
        mantissa = (index >> np.uint64(11)).astype(np.int64) - (1 << 52)
        exponent = (index % np.uint64(2 * reach + 1)).astype(np.int64) - reach - 52
        values: np.ndarray = np.ldexp(mantissa.astype(np.float64), exponent.astype(np.int32)).astype(dtype)
        return values.reshape(shape)

    with np.errstate(over="ignore"):
        return numbers(1, 47, 301), numbers(2, 301, 53), numbers(3, 47, 53)


ORDERED = {
    "float32": "3820add6c6ff64dce8290166451b8ddac472a605978ddcbeb5c7e074f6f19254",
    "float16": "047c9ede111565c14e721aaee38ba350a8b0ddf99f84efd93c99dee60e4ef692",
    "bfloat16": "242e00b757924a592156a20aa9e1aaa9527751d58d87206dabf3f148b242c098",
    "float64": "b6d5d387c891116124c58406a17cb1f445a22330280c2d1d9a8ca1c786a513c3",
}
"""SHA-256 of the ordered product of `ordered_case`, little-endian; the tests derive them by an oracle of their own."""


def ordered_hash(backend: Backend, kernel: Kernel, device: Device) -> str:
    """SHA-256 of what `kernel` makes of `ordered_case` with reproducible=True."""
    types_of(kernel)  # makes NumPy know the name bfloat16
    a, b, c = ordered_case(kernel.dtype)
    out = np.empty_like(c)
    problem = Problem(kernel.dtype, 47, 53, 301, alpha="x", beta="x", reproducible=True)
    backend.launcher(kernel, device, problem)(a, b, c, out, 0.75, -1.25)
    return bits_hash(out)


def bits_hash(out: np.ndarray) -> str:
    """SHA-256 of the elements of `out` in C order, little-endian."""
    bits = np.ascontiguousarray(out).view(f"u{out.dtype.itemsize}")
    return hashlib.sha256(bits.astype(bits.dtype.newbyteorder("<")).tobytes()).hexdigest()
