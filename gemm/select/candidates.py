"""Find the candidates for a kind of products, and a lower bound of each candidate's time.

A row is a kernel with the parameters that the catalog gives to it (gemm.catalog.Kernel). A candidate is a row on a
device. Two products are of the same kind if their Problems agree in all fields except the sizes, the layout, alpha,
beta and `places`. A `Lineup` has all candidates for one kind.

A row that is ruled out for a kind is ruled out for each product of that kind. The candidates of a kind are therefore
found once and cached. For a product, only the few candidates whose lower bounds are least get a predicted time.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from gemm.backends import registry
from gemm.catalog import BACKENDS, BY_NAME, HOST_BACKENDS, KERNELS, TARGETS, Kernel, simplest
from gemm.core import engine
from gemm.core.errors import BackendUnavailable, unknown
from gemm.core.operands import needs_package
from gemm.core.problem import ALL, HYBRID, PRECISIONS, Candidate, Device, Problem, Rates
from gemm.select import calibration, cost, probe, tuning_db, verification

LEAD = 1.1
"""The factor by which comparisons multiply the predicted time of third-party rows: see `RowOnDevice.lead`."""


class RowOnDevice:
    """A candidate: a row of the catalog on a device, for problems of the same kind as `example`.

    Attributes:
        why_not: why the row is ruled out for all problems of this kind on the device; or "".
        last_resort: whether the row is the NumPy reference, which is chosen only if nothing else can compute the
            problem.
        lead: the factor by which comparisons multiply the candidate's predicted time. It is more than 1 for third-party
            rows, for two reasons: two measurements of the same rate differ by that much, and the fast path for repeated
            products covers our own kernels only.
        subject: the key of the calibration entries (calibration.Subject) for the row with the catalog's parameters.
        bound: the lower bound of the row's predicted times; absent if the row is ruled out.
    """

    def __init__(
        self, row: Kernel, device: Device, example: Problem, facts: probe.Facts | None, *, trusting: bool,
        why_not: str = "",
    ) -> None:  # fmt: skip
        self.row, self.device, self.last_resort = row, device, row.dtype == "*"
        self.lead = LEAD if row.third_party else 1.0
        self._facts, self._trusting = facts, trusting
        self._second_pass = example.fused and not row.fuses  # a second pass applies bias and activation
        named = trusting or row.chosen_on(device.kind, device.features)
        self.why_not = why_not or (
            unfit(row, example)
            or unavailable(row, device, reproducible=example.reproducible)
            or verification.failed(row, device)
            or ("" if named else f"chosen on a {device.kind} only by name")
            or ("" if trusting or not row.third_party else verification.unverified(row, device, facts))
        )
        self.subject = calibration.subject(row, device, example)
        self._rates: dict[str, Rates | None] = {}  # {label of the row or of a variant: its rates}
        if not self.why_not:
            if facts:
                # If the GPU model predicts the times, only the rates of the link between host and device are used.
                link = facts.link(device) if cost.modelled(row, device) else None
                kernels = (row, *tuning_db.variants(row, device))
                self._rates = {kernel.label: link or facts.rates(kernel, device) for kernel in kernels}
                if self.last_resort:
                    self._rates[row.label] = _reference_rates(row, device, example, facts)
            self._rates[row.label] = self._rates.get(row.label) or cost.guess(row, device)
            measured, least = [rates for rates in self._rates.values() if rates], calibration.least(row, device)
            self.bound = cost.Bound(row, device, measured, moved=example.device == "host", least=least)

    def weigh(self, asked: Problem) -> Candidate:
        """Return the Candidate for the product `asked`: the row with the most trusted parameters that may be used.

        The result has the predicted time, or says in `why_not` why the row cannot be chosen.
        """
        row, device, why_not = self.row, self.device, self.why_not
        if why_not:
            return Candidate(row, device, why_not=why_not)
        problem = asked.unfused if self._second_pass else asked
        choices = tuning_db.choices(row, device, problem) if row.space else (tuning_db.Choice(row, ""),)
        for choice in choices:
            kernel = choice.kernel
            why_not = self._excluded(choice, problem, asked)
            if not why_not:
                rates = self._rates.get(kernel.label) or self._rates[row.label]
                found = cost.predict(kernel, device, problem, rates, choice.record)
                subject = self.subject if kernel is row else calibration.subject(kernel, device, asked)
                factor = calibration.factor(subject, asked)
                if factor == 1 and not choice.origin:
                    return found
                seconds = (found.seconds or 0.0) * factor
                # `_make` is used because `_replace` would take a fifth of the time of the whole choice.
                return Candidate._make((kernel, device, seconds, *found[3:-2], choice.origin, factor))
        return Candidate(row, device, why_not=why_not)

    def _excluded(self, choice: tuning_db.Choice, problem: Problem, asked: Problem) -> str:
        """Return why the row with the parameters of `choice` cannot be chosen for `problem`; or "".

        Args:
            problem: what the row computes: the product without bias and activation if the row does not fuse them.
            asked: the whole product.
        """
        row, kernel, device = self.row, choice.kernel, self.device
        if kernel.legal or kernel.suits:
            sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
            if kernel.legal and (broken := kernel.illegal({**sizes, **device.limits})):
                return broken
            if not self._trusting and kernel.suits:
                a, b, out = tuple(asked.layout)
                names = {"alpha": asked.alpha, "beta": asked.beta, "a": a, "b": b, "out": out, "fused": asked.fused}
                if not kernel.suited({**sizes, **names, "limited": engine.limited()}):
                    return f"chosen only by name but where {kernel.suits}"
        if not self._trusting and not choice.here and (why := verification.unverified(kernel, device, self._facts)):
            return why
        if row.space and (kernel.chosen or not self._trusting):
            cause = tuning_db.failure(row, kernel, device, problem)
            return f"failed when it was tuned: {cause}" if cause else ""
        return ""


def _reference_rates(row: Kernel, device: Device, example: Problem, facts: probe.Facts) -> Rates:
    """Return the rates of the NumPy reference, which the probe does not measure.

    For types that NumPy's BLAS multiplies, these are the measured rates of the BLAS row: both rows call numpy.matmul.
    For other types, the arithmetic rate is the catalog's guess, and the rate of host memory is the measured one.
    """
    blas = simplest(row.backend, example.dtype, example.inputs)
    measured = facts.rates(blas, device) if blas is not None else None
    return measured or replace(cost.guess(row, device), memory=facts.memory.get((device.key, ""), 0.0))


class Lineup:
    """All candidates for one kind of products.

    Attributes:
        all: all candidates, in the order of the catalog.
        able: {device: [(index in `all`, candidate), ...]}, without the candidates that are ruled out for this kind.
    """

    def __init__(self, all: Iterable[RowOnDevice]) -> None:
        self.all = tuple(all)
        self.able: dict[Device, list[tuple[int, RowOnDevice]]] = {}
        for place, each in enumerate(self.all):
            if not each.why_not:
                self.able.setdefault(each.device, []).append((place, each))

    def bounds(self, problem: Problem) -> list[tuple[bool, float, int]]:
        """Return (`last_resort`, lower bound in seconds, index in `all`) of each candidate in `able`."""
        flops, moved, found = problem.flops, problem.moved, list[tuple[bool, float, int]]()
        for rows in self.able.values():
            # For operands in host memory, one calibration factor applies to all kernels of the device.
            factor = calibration.factor(rows[0][1].subject, problem) if problem.device == "host" else None
            for place, each in rows:
                found.append((each.last_resort, each.bound.seconds(problem, flops, moved, factor), place))
        return found


@lru_cache(256)
def lineup(
    example: Problem, backend: str, kernel: str | None, facts: probe.Facts | None, *, host: bool, trusting: bool
) -> Lineup:
    """Return the Lineup of the catalog rows that `backend` and `kernel` admit, on each device that `backend` admits.

    Args:
        host: whether to return the rows that compute in host memory. If not, all other rows are returned.
        trusting: whether to include rows without verification, and rows that `auto` does not choose.
    """
    rows = [row for row in admitted(backend, kernel) if (row.backend in HOST_BACKENDS) == host]
    if backend == "cpu" and kernel is None and host and all(unfit(row, example) for row in rows):
        rows.append(BY_NAME["gemm_numpy_reference"])  # for dtypes that no other row of the CPU supports
    found: list[RowOnDevice] = []
    for row in rows:
        cause = facts.unavailable.get(row.backend) if facts and not trusting else None
        try:
            if cause:
                raise BackendUnavailable(row.backend, cause.removeprefix(f"{row.backend}: "))
            # Before the probe has ended, a worker loads the drivers first: they may kill the process.
            known = registry.backend(row.backend).devices if trusting or facts else partial(probe.devices, row.backend)
            devices = known()
        except BackendUnavailable as error:
            nowhere = Device(row.backend, row.backend, "none")
            found.append(RowOnDevice(row, nowhere, example, facts, trusting=trusting, why_not=error.told))
            continue
        for device in devices:
            if ":" not in backend or backend in (*ALL, device.key):
                # Third-party rows, and rows that suit only some products, must be verified by the probe before they are
                # chosen, unless the caller or GEMM_CPU_ISA names them.
                asked = kernel is not None or backend.startswith(row.backend if row.third_party else row.target)
                asked = asked or os.environ.get("GEMM_CPU_ISA") == row.target
                trusted = trusting and (asked or not (row.third_party or row.suits))
                found.append(RowOnDevice(row, device, example, facts, trusting=trusted))
    return Lineup(found)


@lru_cache(256)
def lineup_on(example: Problem, backend: str, kernel: str | None, facts: probe.Facts | None, device: Device) -> Lineup:
    """Return the Lineup of the catalog rows that `backend` and `kernel` admit, on `device`, which has the operands."""
    rows = admitted(backend, kernel, device.backend)
    return Lineup(RowOnDevice(row, device, example, facts, trusting=kernel is not None) for row in rows)


_KIND = ("dtype", "inputs", "device", "precision", "reproducible", "bias", "activation", "apart")
_of_kind = attrgetter(*_KIND)


@lru_cache(1024)
def _kind(*values: Any) -> Problem:
    return Problem(m=1, n=1, k=1, **dict(zip(_KIND, values, strict=True)))


def example(problem: Problem) -> Problem:
    """Return the problem that represents all problems of the same kind as `problem`."""
    return _kind(*_of_kind(problem))


def check_names(backend: str, kernel: str | None) -> None:
    """Raise ValueError, with a list of the valid names, unless `backend` and `kernel` exist."""
    family, _, number = backend.partition(":") if isinstance(backend, str) else ("", "", "")
    named = family in BACKENDS and (backend == family or number.isdigit())
    if not (named or (isinstance(backend, str) and (backend in ("auto", HYBRID, *ALL) or backend in TARGETS))):
        names = ("auto", *BACKENDS, HYBRID, *ALL, *sorted(TARGETS - set(BACKENDS)), "a device such as 'opencl:0'")
        raise ValueError(unknown("backend", backend, names))
    if kernel is not None and kernel not in BY_NAME:
        raise ValueError(unknown("kernel", kernel, BY_NAME))


@lru_cache(256)
def admitted(backend: str, kernel: str | None, where: str | None = None) -> tuple[Kernel, ...]:
    """Return the catalog rows that `backend` and `kernel` admit. If `where` is given, only rows of backend `where`.

    Raises ValueError if a name does not exist, or if the kernel does not belong to the backend.
    """
    if where is not None:
        return tuple(row for row in admitted(backend, kernel) if row.backend == where)
    check_names(backend, kernel)

    def fits(row: Kernel) -> bool:
        family = backend in ("auto", row.backend, row.target) or backend.startswith(f"{row.backend}:")
        family |= backend == HYBRID and kernel is None  # a named kernel cannot run on both devices of the split
        return family and kernel in (None, row.name)

    rows = tuple(row for row in KERNELS if fits(row))
    if kernel is not None and not rows:
        raise ValueError(f"kernel={kernel!r} does not belong to backend={backend!r}")
    return rows


def away(example: Problem) -> bool:
    """Whether the catalog has rows of backends other than HOST_BACKENDS that can compute problems like `example`."""
    return any(row.backend not in HOST_BACKENDS and not unfit(row, example) for row in KERNELS)


verification.forgetful += [lineup.cache_clear, lineup_on.cache_clear, admitted.cache_clear]


def types(x: Kernel | Problem) -> str:
    """Return the types of a product for messages: "float32", or "uint8 and int8 to int32"."""
    return f"{' and '.join(x.inputs)} to {x.dtype}" if x.inputs else x.dtype


def unfit(row: Kernel, problem: Problem) -> str:
    """Return why `row` cannot compute `problem` on any device; or ""."""
    computed = problem if row.fuses else problem.unfused
    if not row.multiplies(computed.dtype, computed.inputs):
        before = ", which a bias and an activation need" if computed != problem and computed.inputs else ""
        return f"multiplies {types(row)}, not {types(computed)}{before}"
    if problem.device != "host" and row.inputs != computed.inputs:
        return f"multiplies {types(row)}, not {types(computed)}, the types of the operands on {problem.device}"
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
    """Return which features `row` needs and `device` lacks; or "".

    If the row's types need the package ml_dtypes and the package is not installed, the result says so instead.
    """
    if kind := probe.missing_type(row):
        return needs_package(kind)
    missing = set(row.needs) - device.features
    if reproducible:
        missing |= set(row.ordered_needs) - device.features
    if not missing:
        return ""
    return f"needs {', '.join(sorted(missing))}, which {device.name} ({platform.machine()}) does not offer"
