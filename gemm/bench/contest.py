"""The timing of `gemm bench`: contestants on one shape, interleaved round by round in one process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gemm import execute
from gemm.backends import registry
from gemm.bench.rest import LONG, settle, warm
from gemm.catalog import BACKENDS
from gemm.core.backend import Backend, Launch
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, DeviceView
from gemm.frontend import api
from gemm.frontend.arguments import Given, Options, normalise

OWN = frozenset(BACKENDS) - {"numpy"}
"""Backends whose threads sleep soon after a product. Threads of other libraries keep spinning and slow down the
contestant that follows."""

SAMPLE = 5e-4
"""Seconds that a sample should last at least. Shorter products are repeated within a sample."""

_EXACT_WORK = 1 << 31
"""Multiply-adds up to which all elements of a float64 result are checked: longdouble products have no BLAS."""


@dataclass(frozen=True)
class Shape:
    """m × n is the shape of C, k the length of the sums, `batch` the products per call. trans "NT": b is stored
    transposed, a is not."""

    m: int
    n: int
    k: int
    batch: int = 1
    trans: str = "NN"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        batch = f"{self.batch} × " if self.batch > 1 else ""
        return f"{batch}{self.m} × {self.n} × {self.k}{'' if self.trans == 'NN' else ' ' + self.trans}"

    def operands(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """a and b with their layouts: uniform random numbers in [-1, 1), the same in every run."""
        random = np.random.default_rng([self.m, self.n, self.k, self.batch])
        lead = (self.batch,) if self.batch > 1 else ()

        def matrix(rows: int, columns: int, trans: str) -> np.ndarray:
            shape = (*lead, columns, rows) if trans == "T" else (*lead, rows, columns)
            return random.uniform(-1, 1, shape).astype(dtype)

        return matrix(self.m, self.k, self.trans[0]), matrix(self.k, self.n, self.trans[1])

    def plain(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Views of the operands without transposition, for np.matmul."""
        x, y = (np.swapaxes(x, -1, -2) if flip == "T" else x for x, flip in zip((a, b), self.trans, strict=True))
        return x, y


@dataclass
class Contestant:
    """One way to multiply on one device, and its measurements for one shape.

    Attributes:
        call: one product from host memory to host memory.
        launch: one product on resident operands; None if the device has no memory of its own.
        offload: offload(n) sends the operands, multiplies n times and fetches the result; None like `launch`.
        out: the array that receives the results of `call`.
        view: the device array that receives the results of `launch` and `offload`.
        cold: seconds of the first call for the shape. That call compiles or loads the kernel if the kernel was not yet
            in use.
        host, resident: seconds per product, one value for each sample. `resident` is empty without `launch`.
        worst: the largest error of the checked elements in units of the bound; inf for NaN; None before the check.
        sha256: the hash of the result's bits.
    """

    device: Device
    kernel: str
    call: Callable[[], Any]
    out: np.ndarray
    launch: Callable[[], Any] | None = None
    offload: Callable[[int], Any] | None = None
    view: DeviceView | None = None
    cold: float = 0.0
    host: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    worst: float | None = None
    sha256: str = ""

    def results(self) -> Iterator[np.ndarray]:
        """The results of the calls: the host array, and a copy of the device array if there is one."""
        yield self.out
        if self.view is not None:
            yield registry.backend(self.device.backend).to_host(self.view)


class Entry(NamedTuple):
    """What becomes a contestant.

    Attributes:
        kernel: the name of its kernel; with None, dispatch chooses the kernel.
    """

    backend: Backend
    device: Device
    kernel: str | None = None
    reproducible: bool = False


def enter(entry: Entry, shape: Shape, a: np.ndarray, b: np.ndarray) -> Contestant:
    """A contestant after its first call. Raises BackendUnavailable, MemoryError or KernelFailed."""
    backend, device, kernel, reproducible = entry
    lead = (shape.batch,) if shape.batch > 1 else ()
    # NaN marks elements that the product did not write.
    out = np.full((*lead, shape.m, shape.n), np.nan, a.dtype)
    trans_a, trans_b = (letter == "T" for letter in shape.trans)
    if backend.name == "numpy":
        x, y = shape.plain(a, b)
        peer = Contestant(device, "np.matmul", lambda: matmul(x, y, out=out), out)
        peer.cold = timed(peer.call)
        return peer
    problem = normalise(Given(a, b, out=out), Options(trans_a, trans_b, reproducible=reproducible)).problem
    plan = execute.choose(problem, device.key, kernel)

    def call() -> None:
        api.gemm(a, b, out=out, trans_a=trans_a, trans_b=trans_b, reproducible=reproducible,
                 backend=device.key, kernel=kernel)  # fmt: skip

    entered = Contestant(device, plan.kernel.name, call, out)
    entered.cold = timed(call)
    try:
        entered.view = backend.to_device(out, device)
    except TypeError:  # this backend computes in host memory, so `resident` would equal `host`
        return entered

    def send() -> list[DeviceView]:
        views = (backend.to_device(array, device) for array in (a, b))
        return [view.mT if turned else view for view, turned in zip(views, (trans_a, trans_b), strict=True)]

    _use_device_memory(entered, backend.launcher(plan.kernel, device, replace(problem, device=device.key)), send)
    return entered


def _use_device_memory(entered: Contestant, launch: Launch, send: Callable[[], list[DeviceView]]) -> None:
    """Set `launch` and `offload` of a contestant with a `view`. `send` makes copies of a and b on the device."""
    backend, result = registry.backend(entered.device.backend), entered.view
    assert result is not None
    left, right = send()

    def resident() -> None:
        launch(left, right, None, result, 1, 0)
        backend.synchronize(entered.device)

    def offload(times: int) -> np.ndarray:
        operands = send()
        for _ in range(times):
            launch(*operands, None, result, 1, 0)
        return backend.to_host(result)

    entered.launch, entered.offload = resident, offload


def compete(field_: list[Contestant], iterations: int, warmup: int, step: Callable[[str], None]) -> None:
    """Time the contestants in `iterations` rounds. Each round samples every contestant; they take turns to be first.

    `step` is called with the name of the contestant before each of its samples.
    """
    repeats: dict[int, tuple[int, int, bool]] = {}
    stranger_before = True  # other libraries' threads may still spin after the warm-up
    for one in field_:
        for _ in range(warmup):
            one.call()
            if one.launch:
                one.launch()
        seconds = timed(one.call)
        repeats[id(one)] = _repeat(seconds), _repeat(timed(one.launch)) if one.launch else 0, seconds < LONG
    for turn in range(iterations):
        at = turn % len(field_)
        for one in field_[at:] + field_[:at]:
            step(f"{one.kernel} on {one.device.key}")
            often, resident_often, brief = repeats[id(one)]
            stranger = one.device.backend not in OWN
            if stranger_before or stranger:
                settle()
            stranger_before = stranger
            if brief:
                warm(one.call)
            one.host.append(timed(one.call, often))
            if one.launch:
                one.resident.append(timed(one.launch, resident_often))


def timed(call: Callable[[], Any], times: int = 1) -> float:
    """Seconds per call, over `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _repeat(seconds: float) -> int:
    """The number of calls in a sample."""
    return max(1, round(SAMPLE / max(seconds, 1e-7)))


def check(field_: list[Contestant], shape: Shape, a: np.ndarray, b: np.ndarray) -> str:
    """Set `worst` and `sha256` of each contestant, by a reference computed here. Returns a text: what was compared.

    The reference is NumPy's product, in float64 for float32 and in longdouble for float64. The bound is that of the
    numerical contract, (k + 2)·u·|a|·|b| for each element. If longdouble is no wider than float64, the reference may
    have the same error as the result, so twice the bound is allowed.
    """
    x, y = shape.plain(a, b)
    wide: Any = np.float64 if a.dtype == np.float32 else np.longdouble
    every = 1 if a.dtype == np.float32 else int(shape.flops / 2 / _EXACT_WORK) + 1
    lines = np.unique([*range(0, shape.m, every), shape.m - 1])
    scope = f"{lines.size} of {shape.m} rows" if every > 1 else "every element"
    rows = x[..., lines, :]
    exact = matmul(rows.astype(wide), y.astype(wide))
    slack = 2.0 if np.finfo(wide).eps >= np.finfo(a.dtype).eps else 1.0
    unit = np.finfo(a.dtype).eps / 2
    bound = slack * (shape.k + 2) * unit * matmul(np.abs(rows).astype(np.float64), np.abs(y).astype(np.float64))
    for one in field_:
        one.worst = max(_worst(result[..., lines, :], exact, bound) for result in one.results())
        one.sha256 = hashlib.sha256(one.out.tobytes()).hexdigest()
    return scope


def _worst(result: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(result - exact)
        share = np.where(error == 0, 0, error / bound)
    return float("inf") if np.isnan(share).any() else float(share.max())
