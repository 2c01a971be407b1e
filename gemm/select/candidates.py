"""Who may compute a kind of products: rows on devices, found once, and how soon each could be done at best.

A kind is all of a Problem but its sizes and where its operands lie in host memory. What rules a row out for a kind does
so for each product of it; what is left is few, and of those only the ones that may be the soonest are weighed.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from gemm.backends import registry
from gemm.catalog import BACKENDS, BY_NAME, HOST_BACKENDS, KERNELS, TARGETS, Kernel
from gemm.core import engine
from gemm.core.errors import BackendUnavailable
from gemm.core.plan import ALL, HYBRID, Candidate
from gemm.core.problem import EXTRA, PRECISIONS, Device, Problem
from gemm.core.rates import Rates
from gemm.select import calibration, cost, probe, tuning_db, verification

LEAD = 1.1
"""See `Entrant.lead`."""


class Entrant:
    """A row on a device, for problems like `example`.

    Attributes:
        why_not: why it can compute none of them; or "".
        last_resort: the NumPy reference, whatever its time.
        lead: times its prediction that another one may take and yet be chosen. Of NumPy's BLAS it is more than 1: two
            measurements of one rate differ by that much, and what repeats our own kernels does not repeat its.
    """

    def __init__(
        self, row: Kernel, device: Device, example: Problem, facts: probe.Facts | None, *, trusting: bool,
        why_not: str = "",
    ) -> None:  # fmt: skip
        self.row, self.device, self.last_resort = row, device, row.dtype == "*"
        self.lead = LEAD if row.backend == "numpy" else 1.0
        self._facts, self._trusting = facts, trusting
        self._known: dict[str, tuple[str, Rates | None]] = {}
        named = trusting or row.chosen_on(device.kind, device.features)
        self.why_not = why_not or (
            unfit(row, example)
            or unavailable(row, device, reproducible=example.reproducible)
            or verification.failed(row, device)
            or ("" if named else f"chosen on a {device.kind} only by name")
            or ("" if trusting or row.backend != "numpy" else verification.unverified(row, device, facts))
        )
        if not self.why_not:
            every = [self._knows(kernel)[1] for kernel in (row, *tuning_db.variants(row, device))] if facts else []
            self._bound = cost.Bound(row, device, [r for r in every if r], moved=example.device == "host")
            self._least = calibration.least(row, device)

    def bound(
        self, problem: Problem, flops: float, moved: tuple[int, int], factor: float | None = None
    ) -> float:  # fmt: skip
        """Seconds, quickly found, that are no more than what `weigh` will say.

        Args:
            flops, moved: the problem's.
            factor: `correction.factor` of the problem, where that is the same for all kernels of the device.
        """
        if self.row.space and tuning_db.timed(self.row, self.device):
            flops = 0.0
        seconds = self._bound.seconds(problem, flops, moved)
        return (self._least if factor is None else factor) * seconds

    def weigh(self, problem: Problem) -> Candidate:
        """The row with its parameters for `problem` and the time that they are predicted to take."""
        row, device = self.row, self.device
        why_not: str | None = self.why_not
        if why_not:
            return Candidate(row, device, why_not=why_not)
        asked, problem = problem, problem if row.fuses else problem.unfused
        sizes: dict[str, int] = {}
        if row.legal or row.suits:
            sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
        for choice in tuning_db.choices(row, device, problem):
            kernel = choice.kernel
            why_not = kernel.illegal({**sizes, **device.limits}) if kernel.legal else None
            if not self._trusting and kernel.suits and not kernel.suited(sizes | _circumstances(asked)):
                why_not = why_not or f"chosen only by name but where {kernel.suits}"
            unverified, rates = self._knows(kernel)
            if not self._trusting and not choice.here:
                why_not = why_not or unverified
            if row.space and (kernel.chosen or not self._trusting):
                why_not = why_not or _spoiled(row, kernel, device, problem)
            if not why_not:
                origin = choice.origin if row.space else ""
                found = cost.predict(kernel, device, problem, rates, choice.record, origin)
                factor = calibration.factor(kernel, device, problem)
                if factor == 1:
                    return found
                # `_replace` would take a fifth of the whole choice.
                return Candidate._make((*found[:2], (found.seconds or 0.0) * factor, *found[3:-1], factor))
        return Candidate(row, device, why_not=why_not or "")

    def _knows(self, kernel: Kernel) -> tuple[str, Rates | None]:
        """What the probe found of the row with some parameters: why it is not to be chosen, or ""; and its rates."""
        facts, device, label = self._facts, self.device, kernel.label
        if label not in self._known:
            rates = None
            if facts is not None and cost.modelled(kernel, device):
                rates = facts.link(device)
            elif facts is not None:
                rates = facts.rates(kernel, device) or facts.rates(self.row, device)
            self._known[label] = "" if kernel.lazy_verify else verification.unverified(kernel, device, facts), rates
        unverified, rates = self._known[label]
        return verification.unverified(kernel, device, facts) if kernel.lazy_verify else unverified, rates


class Lineup:
    """Entrants for one kind of products.

    Attributes:
        all: in the catalog's order. able: those that can compute such a product, with their places among all.
    """

    def __init__(self, all: Iterable[Entrant]) -> None:
        self.all = tuple(all)
        self.able = tuple((place, entrant) for place, entrant in enumerate(self.all) if not entrant.why_not)
        self._devices = {entrant.device.key: (entrant.row, entrant.device) for _, entrant in self.able}

    def bounds(self, problem: Problem) -> list[tuple[bool, float, int]]:
        """Of each that is able: whether it is a last resort, its bound, and its place."""
        factors: dict[str, float] = {}
        if problem.device == "host":
            factors = {key: calibration.factor(*some, problem) for key, some in self._devices.items()}
        flops, moved, of = problem.flops, problem.moved, factors.get
        return [(x.last_resort, x.bound(problem, flops, moved, of(x.device.key)), place) for place, x in self.able]


@lru_cache(maxsize=256)
def lineup(
    example: Problem, backend: str, kernel: str | None, facts: probe.Facts | None, *, host: bool, trusting: bool
) -> Lineup:
    """The rows that compute in host memory, or (not `host`) elsewhere, on each device that the names admit."""
    rows = [row for row in admitted(backend, kernel) if (row.backend in HOST_BACKENDS) == host]
    if backend == "cpu" and kernel is None and host and all(unfit(row, example) for row in rows):
        rows.append(BY_NAME["gemm_numpy_reference"])  # other dtypes multiply on the CPU all the same
    found: list[Entrant] = []
    named = kernel is not None or backend.partition(":")[0] == "numpy"
    for row in rows:
        cause = facts.unavailable.get(row.backend) if facts and not trusting else None
        try:
            if cause:
                raise BackendUnavailable(row.backend, cause.removeprefix(f"{row.backend}: "))
            devices = registry.backend(row.backend).devices()
        except BackendUnavailable as error:
            nowhere = Device(row.backend, f"{row.backend}:none", "none")
            found.append(Entrant(row, nowhere, example, facts, trusting=trusting, why_not=error.told))
            continue
        for device in devices:
            if ":" not in backend or backend in (*ALL, device.key):
                trusted = trusting and (named or row.backend != "numpy" or row.dtype == "*")
                found.append(Entrant(row, device, example, facts, trusting=trusted))
    return Lineup(found)


@lru_cache(maxsize=256)
def held(example: Problem, backend: str, kernel: str | None, facts: probe.Facts | None, device: Device) -> Lineup:
    """The rows that the names admit, on the device that holds the operands."""
    rows = admitted(backend, kernel, device.backend)
    return Lineup(Entrant(row, device, example, facts, trusting=kernel is not None) for row in rows)


_KIND = ("dtype", "inputs", "device", "precision", "reproducible", "bias", "activation", "apart")
_of_kind = attrgetter(*_KIND)


@lru_cache(maxsize=1024)
def _kind(*values: Any) -> Problem:
    return Problem(m=1, n=1, k=1, **dict(zip(_KIND, values, strict=True)))


def example(problem: Problem) -> Problem:
    """The one problem that stands for all of its kind."""
    return _kind(*_of_kind(problem))


def check_names(backend: str, kernel: str | None) -> None:
    """Raise ValueError, listing the choices, unless `backend` and `kernel` are names that exist."""
    family, _, number = backend.partition(":") if isinstance(backend, str) else ("", "", "")
    named = family in BACKENDS and (backend == family or number.isdigit())
    if not (named or (isinstance(backend, str) and (backend in ("auto", HYBRID, *ALL) or backend in TARGETS))):
        names = ", ".join(("auto", *BACKENDS, HYBRID, *ALL, *sorted(TARGETS - set(BACKENDS))))
        raise ValueError(f"backend must be one of {names} or a device such as 'opencl:0', not {backend!r}")
    if kernel is not None and kernel not in BY_NAME:
        raise ValueError(f"kernel must be one of {', '.join(BY_NAME)}, not {kernel!r}")


@lru_cache(maxsize=256)
def admitted(backend: str, kernel: str | None, where: str | None = None) -> tuple[Kernel, ...]:
    """The catalog's rows that the names admit, or those of the backend `where`. Raises what `check_names` does."""
    if where is not None:
        return tuple(row for row in admitted(backend, kernel) if row.backend == where)
    check_names(backend, kernel)

    def fits(row: Kernel) -> bool:
        family = backend in ("auto", row.backend, row.target) or backend.startswith(f"{row.backend}:")
        family |= backend == HYBRID and kernel is None  # a kernel by name is one side's
        return family and kernel in (None, row.name)

    rows = tuple(row for row in KERNELS if fits(row))
    if kernel is not None and not rows:
        raise ValueError(f"kernel={kernel!r} does not belong to backend={backend!r}")
    return rows


@lru_cache(maxsize=256)
def away(example: Problem, backend: str) -> bool:
    """Whether the catalog has rows for such problems that do not compute in host memory."""
    return any(row.backend not in HOST_BACKENDS and not unfit(row, example) for row in admitted(backend, None))


verification.forgetful += [lineup.cache_clear, held.cache_clear, away.cache_clear, admitted.cache_clear]


def types(x: Kernel | Problem) -> str:
    """What is multiplied, for messages: "float32", or "uint8 and int8 to int32"."""
    return f"{' and '.join(x.inputs)} to {x.dtype}" if x.inputs else x.dtype


def unfit(row: Kernel, problem: Problem) -> str:
    """Why `row` can never compute `problem`, whatever the device; or ""."""
    computed = problem if row.fuses else problem.unfused
    if not row.multiplies(computed.dtype, computed.inputs):
        before = ", which a bias and an activation need" if computed != problem and computed.inputs else ""
        return f"multiplies {types(row)}, not {types(computed)}{before}"
    if problem.device != "host" and row.inputs != computed.inputs:
        return f"multiplies {types(row)}, not {types(computed)} as these lie on {problem.device}"
    if problem.device != "host" and computed != problem:
        return "adds no bias and applies no activation in a device's memory"
    if PRECISIONS.index(problem.precision) < PRECISIONS.index(row.precision):
        return f"offers precision={row.precision!r}, not {problem.precision!r}"
    if problem.apart and not row.apart:
        return "takes no table of addresses"
    exact = problem.dtype == "bool" or "int" in problem.dtype
    if problem.reproducible and not row.ordered and not exact:
        return "does not offer reproducible=True"
    return ""


def unavailable(row: Kernel, device: Device, *, reproducible: bool = False) -> str:
    """Which features `row` misses on `device`, or the package that NumPy needs for its dtype; or ""."""
    extra = [name for name in (row.dtype, *row.inputs) if name in EXTRA]
    if extra and importlib.util.find_spec("ml_dtypes") is None:
        return f'needs ml_dtypes, by which NumPy knows {extra[0]}: pip install "gemm[bfloat16]"'
    missing = set(row.needs) - device.features
    if reproducible:
        missing |= set(row.ordered_needs) - device.features
    if not missing:
        return ""
    return f"needs {', '.join(sorted(missing))}, which {device.name} ({platform.machine()}) does not offer"


def _circumstances(problem: Problem) -> dict[str, object]:
    """What `Kernel.suits` may name of a problem beside its sizes."""
    a, b, out = tuple(problem.layout)
    return {"alpha": problem.alpha, "beta": problem.beta, "a": a, "b": b, "out": out, "fused": problem.fused,
            "limited": engine.limited()}  # fmt: skip


def _spoiled(row: Kernel, kernel: Kernel, device: Device, problem: Problem) -> str | None:
    cause = tuning_db.failure(row, kernel, device, problem)
    return f"failed when it was tuned: {cause}" if cause else None
