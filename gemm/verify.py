"""Does a kernel compute the right thing on this device and driver, and how fast? For the probe, `verify` and `info`.

This is the short check that a kernel must pass before `auto` may choose it; tests/conformance is the long one.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm.backends.base import Backend, Launch
from gemm.catalog import Kernel
from gemm.dispatch.cost import Rates
from gemm.problem import Device, DeviceView, Operand, Problem


class Mismatch(ArithmeticError):
    """A kernel's result is not what the numerical contract says."""


@dataclass(frozen=True)
class Case:
    """One product to check: sizes, scalars and how the operands lie."""

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1

    def __str__(self) -> str:
        trans = "NT"[self.trans_a] + "NT"[self.trans_b]
        batch = f"{self.batch}x " if self.batch > 1 else ""
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


def quick(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Raise Mismatch (or KernelFailed) unless `kernel` passes the short cases and its ordered bits are right."""
    for _ in checks(backend, kernel, device, QUICK):
        pass


def checks(backend: Backend, kernel: Kernel, device: Device, cases: tuple[Case, ...] = FULL) -> Iterator[str]:
    """Check case after case, yielding each one's name when it has passed; raises Mismatch at the first that has not."""
    for case in cases:
        _check(backend, kernel, device, case)
        yield str(case)
    if kernel.ordered and not set(kernel.ordered_needs) - device.features:
        if ordered_hash(backend, kernel, device) != ORDERED[kernel.dtype]:
            raise Mismatch(f"{kernel.name} on {device.name}: its ordered bits differ from the contract's")
        yield "ordered bits"


def _check(backend: Backend, kernel: Kernel, device: Device, case: Case) -> None:
    dtype = np.dtype("float32" if kernel.dtype == "*" else kernel.dtype)
    random = np.random.default_rng(list(case.__dict__.values())[:3])
    lead = (case.batch,) if case.batch > 1 else ()

    def matrix(rows: int, columns: int, flip: bool = False) -> np.ndarray:
        shape = (*lead, columns, rows) if flip else (*lead, rows, columns)
        values = random.uniform(-1, 1, shape).astype(dtype)
        return np.swapaxes(values, -1, -2) if flip else values

    a, b = matrix(case.m, case.k, case.trans_a), matrix(case.k, case.n, case.trans_b)
    c = matrix(case.m, case.n) if case.beta else None
    frame = np.full((*lead, case.m + 2, case.n + 2), np.nan, dtype)
    out = frame[..., 1:-1, 1:-1]
    problem = Problem(dtype.name, case.m, case.n, case.k, case.batch, _letters(a, b) + "N",
                      "1" if case.alpha == 1 else "x", "0" if c is None else "x")  # fmt: skip
    backend.launcher(kernel, device, problem)(a, b, c, out, case.alpha, case.beta)

    wide = np.longdouble
    product = np.matmul(a.astype(wide), b.astype(wide))
    size = np.matmul(np.abs(a).astype(wide), np.abs(b).astype(wide)) * abs(case.alpha)
    exact = wide(case.alpha) * product
    if c is not None:
        exact, size = exact + wide(case.beta) * c, size + np.abs(wide(case.beta) * c)
    unit = np.finfo(dtype).eps / 2
    # Where longdouble is no wider than double (macOS on Arm, MSVC), the reference errs as much as the result may.
    slack = 1 if np.finfo(wide).eps < np.finfo(dtype).eps else 2
    bound = slack * (case.k + 2) * unit * size
    if not np.all(np.abs(out - exact) <= bound):  # NaN fails
        raise Mismatch(f"{kernel.name} on {device.name}: {case} exceeds the error bound")
    edges = np.ones(frame.shape, bool)
    edges[..., 1:-1, 1:-1] = False
    if not np.all(np.isnan(frame[edges])):
        raise Mismatch(f"{kernel.name} on {device.name}: {case} wrote outside its output")


def _letters(*arrays: np.ndarray) -> str:
    return "".join("N" if a.strides[-1] == a.itemsize else "T" for a in arrays)


def ordered_case(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fixed a (47 × 301), b (301 × 53) and c whose ordered product 0.75·a·b − 1.25·c has the bits of ORDERED.

    Made by integer arithmetic alone, with exponents spread over 2^±12, so that each machine has the same inputs.
    """

    def numbers(seed: int, *shape: int) -> np.ndarray:
        index = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            index = (index ^ (index >> np.uint64(shift))) * np.uint64(factor)
        index ^= index >> np.uint64(31)
        mantissa = (index >> np.uint64(11)).astype(np.int64) - (1 << 52)
        exponent = (index % np.uint64(25)).astype(np.int64) - 12 - 52
        values: np.ndarray = np.ldexp(mantissa.astype(np.float64), exponent.astype(np.int32)).astype(dtype)
        return values.reshape(shape)

    with np.errstate(over="ignore"):
        return numbers(1, 47, 301), numbers(2, 301, 53), numbers(3, 47, 53)


ORDERED = {
    "float32": "3820add6c6ff64dce8290166451b8ddac472a605978ddcbeb5c7e074f6f19254",
    "float64": "b6d5d387c891116124c58406a17cb1f445a22330280c2d1d9a8ca1c786a513c3",
}
"""SHA-256 of the ordered product of `ordered_case`, little-endian; the tests derive them by an oracle of their own."""


def ordered_hash(backend: Backend, kernel: Kernel, device: Device) -> str:
    """SHA-256 of what `kernel` makes of `ordered_case` with reproducible=True."""
    a, b, c = ordered_case(kernel.dtype)
    out = np.empty_like(c)
    problem = Problem(kernel.dtype, 47, 53, 301, alpha="x", beta="x", reproducible=True)
    backend.launcher(kernel, device, problem)(a, b, c, out, 0.75, -1.25)
    return hashlib.sha256(out.astype(out.dtype.newbyteorder("<")).tobytes()).hexdigest()


def measure(backend: Backend, kernel: Kernel, device: Device, budget: float = 0.04) -> Rates:
    """The kernel's rates, from products whose size doubles until one takes `budget` seconds or n = 4096.

    Operands are resident where the backend has memory of its own; transfers are timed apart, on 16 MiB.
    """
    dtype = np.dtype("float32" if kernel.dtype == "*" else kernel.dtype)
    upload = download = 0.0
    resident = True
    try:
        block = np.ones((2048, (16 << 20) // 2048 // dtype.itemsize), dtype)
        view = _sent(backend, block, device)
    except TypeError:  # computes in host memory
        resident = False
    else:
        upload = block.nbytes / best_of(lambda: _sent(backend, block, device))
        download = block.nbytes / best_of(lambda: backend.to_host(view))

    def seconds(n: int) -> float:
        random = np.random.default_rng(n)
        a, b = (random.uniform(-1, 1, (n, n)).astype(dtype) for _ in "ab")
        launch = backend.launcher(kernel, device, Problem(dtype.name, n, n, n))
        operands: list[Operand] = [a, b, np.empty_like(a)]
        if resident:
            operands = [backend.to_device(x, device) for x in (a, b, a)]
        return best_of(lambda: _finished(backend, launch, device, *operands))

    n = 16
    first = spent = seconds(n)
    while spent * 8 < budget and n < 4096:
        n *= 2
        spent = seconds(n)
    work = 2.0 * n**3
    return Rates(first, work / max(spent - first, spent / 4), upload, download)


def _sent(backend: Backend, block: np.ndarray, device: Device) -> DeviceView:
    view = backend.to_device(block, device)
    backend.synchronize(device)
    return view


def _finished(backend: Backend, launch: Launch, device: Device, a: Operand, b: Operand, out: Operand) -> None:
    launch(a, b, None, out, 1.0, 0.0)
    backend.synchronize(device)


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """The least seconds of `times` runs after one that warms up: the others met something else on the machine."""
    run()
    best = math.inf
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
