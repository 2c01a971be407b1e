"""Candidates → predicted times → the least."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from gemm.backends.base import Launch, converting
from gemm.catalog import BACKENDS, BY_NAME, KERNELS, TARGETS, Kernel
from gemm.dispatch import cost, late, probe, registry, trust, tuning
from gemm.dispatch.plan import Candidate, Plan
from gemm.epilogue import finishing
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import EXTRA, PRECISIONS, Device, DeviceView, Operand, Problem

HOST_BACKENDS = probe.HARMLESS
"""Backends that compute in host memory and cost nothing to look for."""


def choose(
    problem: Problem, backend: str = "auto", kernel: str | None = None, held_by: Device | None = None,
    without: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:  # fmt: skip
    """The plan for `problem`.

    Args:
        backend: "auto", a backend, a target or a device key. kernel: a catalog row's name, or None.
        held_by: the device that holds the operands, None for the host.
        without: (kernel, device) pairs that have already failed in this call.

    Raises:
        ValueError: an unknown name, or a kernel that this problem's arguments rule out.
        BackendUnavailable: what was named cannot run here.
    """
    return _choose(problem, backend, kernel, held_by, without)


@lru_cache(maxsize=4096)
def _choose(
    problem: Problem, backend: str, kernel: str | None, held_by: Device | None, without: frozenset[tuple[str, str]]
) -> Plan:
    weighed = candidates(problem, backend, kernel, held_by)
    able = [
        c for c in weighed if c.seconds is not None and (c.kernel.name, c.device.key) not in without
    ]  # fmt: skip
    # The NumPy reference is the last resort, whatever its time.
    able.sort(key=lambda c: (c.kernel.backend == "numpy", c.seconds))
    while able and not (kernel or not able[0].kernel.late or late.verified(able[0].kernel, able[0].device)):
        del able[0]
    if not able:
        raise _refusal(problem, backend, kernel, weighed)
    best = able[0]
    others = len({c.device.key for c in able}) - 1
    reason = "asked for by name" if kernel else f"least predicted time of {len(able)} candidates"
    if held_by is not None:
        reason += f", on {held_by.key}, where the operands are"
    elif not others and not kernel and backend == "auto":
        reason += ", too small for any other device to be looked for" if probe.facts(run=False) is None else ""
    assert best.seconds is not None
    return Plan(problem, best.kernel, best.device, best.seconds, reason)


def check_names(backend: str, kernel: str | None) -> None:
    """Raise ValueError, listing the choices, unless `backend` and `kernel` are names that exist."""
    names = ("auto", *BACKENDS, *sorted(TARGETS - set(BACKENDS)))
    if not isinstance(backend, str) or (
        backend not in names and not (backend.partition(":")[0] in BACKENDS and backend.partition(":")[2].isdigit())
    ):
        raise ValueError(f"backend must be one of {', '.join(names)} or a device such as 'opencl:0', not {backend!r}")
    if kernel is not None and kernel not in BY_NAME:
        raise ValueError(f"kernel must be one of {', '.join(BY_NAME)}, not {kernel!r}")


def candidates(
    problem: Problem, backend: str = "auto", kernel: str | None = None, held_by: Device | None = None
) -> list[Candidate]:
    """Every kernel on every device that the names admit, weighed; those that cannot run say why."""
    check_names(backend, kernel)

    def admitted(row: Kernel) -> bool:
        family = backend in ("auto", row.backend, row.target) or backend.startswith(f"{row.backend}:")
        return family and kernel in (None, row.name)

    rows = [row for row in KERNELS if admitted(row)]
    if kernel is not None and not rows:
        raise ValueError(f"kernel={kernel!r} does not belong to backend={backend!r}")
    if backend == "cpu" and kernel is None and all(_unfit(row, problem) for row in rows):
        rows.append(BY_NAME["gemm_numpy_reference"])  # other dtypes multiply on the CPU all the same
    host_rows = [row for row in rows if row.backend in HOST_BACKENDS]
    device_rows = [row for row in rows if row.backend not in HOST_BACKENDS]
    if held_by is not None:
        rows_here = [row for row in rows if row.backend == held_by.backend]
        if not rows_here:
            raise ValueError(
                f"backend={backend!r} cannot reach operands that lie on {held_by.key}; copy them to the host first"
            )
        # Late rows need no probe, and operands that lie there no way to the device.
        facts = probe.facts(run=kernel is None and not all(row.late for row in rows_here))
        return [_weigh(row, held_by, problem, facts, trusting=kernel is not None) for row in rows_here]

    def weighed(rows: list[Kernel], *, trusting: bool) -> list[Candidate]:
        return [c for row in rows for c in _on_devices(row, problem, facts, backend, trusting=trusting)]

    facts = probe.facts(run=False)
    on_host = weighed(host_rows, trusting=True)
    if not device_rows:
        return on_host
    if backend == "auto" and kernel is None:
        cpu = min((c.seconds for c in on_host if c.seconds is not None and c.kernel.backend == "cpu"), default=None)
        fits = any(not _unfit(row, problem) for row in device_rows)
        if cpu is None or not fits or not cost.a_device_could_win(problem, cpu):
            return on_host
    if kernel is None and facts is None:
        facts = probe.facts(run=True)
        on_host = weighed(host_rows, trusting=True)  # guesses do not compete with measured rates
    return on_host + weighed(device_rows, trusting=kernel is not None)


def _on_devices(
    row: Kernel, problem: Problem, facts: probe.Facts | None, wanted: str, *, trusting: bool
) -> list[Candidate]:
    """`row` weighed on each device of its backend; a backend that is not there is one candidate that says why."""
    cause = facts.unavailable.get(row.backend) if facts and not trusting else None
    try:
        if cause:
            raise BackendUnavailable(row.backend, cause.removeprefix(f"{row.backend}: "))
        devices = registry.backend(row.backend).devices()
    except BackendUnavailable as error:
        return [Candidate(row, Device(row.backend, f"{row.backend}:none", "none"), why_not=str(error))]
    return [
        _weigh(row, device, problem, facts, trusting=trusting)
        for device in devices
        if ":" not in wanted or wanted == device.key
    ]


def types(x: Kernel | Problem) -> str:
    """What is multiplied, for messages: "float32", or "uint8 and int8 to int32"."""
    return f"{' and '.join(x.inputs)} to {x.dtype}" if x.inputs else x.dtype


def _unfit(row: Kernel, problem: Problem) -> str:
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


def _weigh(row: Kernel, device: Device, problem: Problem, facts: probe.Facts | None, *, trusting: bool) -> Candidate:
    names = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch, **device.limits}
    why_not = (
        _unfit(row, problem)
        or unavailable(row, device, reproducible=problem.reproducible)
        or trust.failed(row, device)
        or (None if trusting or row.chosen_on(device.kind, device.features) else _by_name(device))
    )
    if why_not:
        return Candidate(row, device, why_not=why_not)
    problem = problem if row.fuses else problem.unfused
    for choice in tuning.choices(row, device, problem):
        kernel = choice.kernel
        why_not = kernel.illegal(names) or (
            None if trusting or choice.here else trust.unverified(kernel, device, facts)
        )
        if kernel.chosen or not trusting:
            why_not = why_not or _spoiled(row, kernel, device, problem)
        if not why_not:
            rates = facts.rates(kernel, device) or facts.rates(row, device) if facts else None
            if facts and cost.modelled(row, device):
                rates = facts.link(device)
            found = cost.predict(kernel, device, problem, rates, choice.record)
            return replace(found, origin=choice.origin if row.space else "")
    return Candidate(row, device, why_not=why_not or "")


def _by_name(device: Device) -> str:
    return f"chosen on a {device.kind} only by name"


def _spoiled(row: Kernel, kernel: Kernel, device: Device, problem: Problem) -> str | None:
    cause = tuning.failure(row, kernel, device, problem)
    return f"failed when it was tuned: {cause}" if cause else None


def _refusal(problem: Problem, backend: str, kernel: str | None, weighed: list[Candidate]) -> Exception:
    """The error for a choice without candidates."""
    whys = list(dict.fromkeys(f"{c.kernel.name}: {c.why_not or 'failed'}" for c in weighed))
    asked = f"kernel {kernel!r}" if kernel else f"backend {backend!r}"
    if weighed and all(_unfit(c.kernel, problem) for c in weighed):
        if problem.reproducible and any(c.kernel.multiplies(problem.dtype, problem.inputs) for c in weighed):
            return ValueError(f"reproducible=True: {asked} does not offer it for {problem.dtype}")
        if problem.fused and problem.device != "host":
            return TypeError(f"bias and activation: {asked} has no kernel for them in {problem.device}'s memory")
        return TypeError(f"dtype {problem.dtype} has no kernel for {asked} ({'; '.join(whys)})")
    fit = [c for c in weighed if not _unfit(c.kernel, problem)]
    whys = list(dict.fromkeys(c.why_not or f"{c.kernel.name} failed" for c in fit))
    return BackendUnavailable(kernel or backend, "; ".join(whys) or "no such device")


@lru_cache(maxsize=4096)
def launcher(plan: Plan) -> Launch:
    """The native launch of `plan`, compiled or loaded once; it converts operands of types that the kernel lacks."""
    problem = plan.problem if plan.kernel.fuses else plan.problem.unfused
    backend = registry.backend(plan.kernel.backend)
    if problem.inputs == plan.kernel.inputs:
        launch = backend.launcher(plan.kernel, plan.device, problem)
    else:
        launch = converting(backend.launcher(plan.kernel, plan.device, replace(problem, inputs=())), problem.dtype)
    return launch if problem == plan.problem else finishing(launch, plan.problem)


trust.forgetful.append(_choose.cache_clear)


def forget() -> None:
    """Drop cached choices and launches, as if the process had just started; demotions stay."""
    launcher.cache_clear()
    tuning.forget()
    trust.forget_choices()


def deliver(
    problem: Problem, backend: str, kernel: str | None, held_by: Device | None, attempt: Callable[[Plan], None],
    plan: Plan | None = None,
) -> Plan | None:  # fmt: skip
    """Try `attempt` with `plan`, if given, and the best candidates until one does not fail; what fails is demoted.

    Out of memory demotes nothing: only this call goes elsewhere. Returns the plan that delivered if the next product
    like this one will be given to it, too. Raises MemoryError or BackendUnavailable when no candidate is left, and
    RuntimeError when an operand is no longer what it was.
    """
    without: frozenset[tuple[str, str]] = frozenset()
    failure: KernelFailed | None = None
    if plan is not None and trust.failed(plan.kernel, plan.device):
        plan = None
    while True:
        try:
            plan = plan or choose(problem, backend, kernel, held_by, without)
        except BackendUnavailable as error:
            if failure is not None and failure.memory:
                raise MemoryError(str(failure)) from failure
            raise error from failure
        try:
            attempt(plan)
            return plan if failure is None or not failure.memory else None
        except KernelFailed as error:
            trust.demote(plan.kernel, plan.device, error)
            if error.spoilt:
                raise RuntimeError(str(error)) from error
            failure, without, plan = error, without | {(plan.kernel.name, plan.device.key)}, None


def run(
    problem: Problem, backend: str, kernel: str | None,
    a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float, bias: Operand | None = None,
    first: tuple[Plan, Launch] | None = None,
) -> Plan | None:  # fmt: skip
    """Compute the product, with the plan `first` if given, else with the best candidate; see `deliver`.

    Inputs (and an `out` that is c, but for the RuntimeError that says so) are untouched by a product that fails.
    """

    operands = (a, b, c, out, alpha, beta, *((bias,) if problem.fused else ()))

    def attempt(plan: Plan) -> None:
        launch = first[1] if first and plan is first[0] else launcher(plan)
        try:
            launch(*operands)
        except KernelFailed as error:
            if error.memory:
                given = {"a": a, "b": b, "c": c, "out": out}
                sizes = [f"{name} has {x.size * x.dtype.itemsize}" for name, x in given.items() if x is not None]
                error.args = (f"{error} (bytes: {', '.join(sizes)})",)
            raise

    held_by = out.device if isinstance(out, DeviceView) else None
    return deliver(problem, backend, kernel, held_by, attempt, first and first[0])
