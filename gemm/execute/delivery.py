"""Plan → launch → result: by the best of all that can compute a product, by the next best where that fails."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from gemm.backends import registry
from gemm.core.backend import Converting, Launch
from gemm.core.epilogue import Finishing
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.plan import SPLIT, Plan, Split
from gemm.core.problem import Device, DeviceView, Operand, Problem
from gemm.select import calibration, choice, tuning_db, verification


def choose(
    problem: Problem, backend: str = "auto", kernel: str | None = None, held_by: Device | None = None,
    without: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:  # fmt: skip
    """The plan for `problem`, on several devices if `backend` is one of SPLIT and nothing has failed in this call.

    For the arguments, and what it raises, see gemm.select.choice.choose.
    """
    if backend in SPLIT and not without:
        from gemm.execute import split  # few products need it

        return split.choose(problem, backend, kernel, held_by, verification.generation)
    return choice.choose(problem, backend, kernel, held_by, without)


@lru_cache(maxsize=4096)
def launcher(plan: Plan) -> Launch:
    """The native launch of `plan`, compiled or loaded once; it converts operands of types that the kernel lacks."""
    if isinstance(plan, Split):
        from gemm.execute.split_launch import SplitLaunch  # few products need it

        return SplitLaunch(plan, run)
    problem = plan.problem if plan.kernel.fuses else plan.problem.unfused
    backend = registry.backend(plan.kernel.backend)
    if problem.inputs == plan.kernel.inputs:
        launch = backend.launcher(plan.kernel, plan.device, problem)
    else:
        launch = Converting(backend.launcher(plan.kernel, plan.device, replace(problem, inputs=())), problem.dtype)
    return launch if problem == plan.problem else Finishing(launch, plan.problem)


def forget() -> None:
    """Drop cached choices and launches, as if the process had just started; demotions stay."""
    launcher.cache_clear()
    tuning_db.forget()
    calibration.forget()
    verification.forget_choices()


def deliver(
    problem: Problem, backend: str, kernel: str | None, held_by: Device | None, attempt: Callable[[Plan], None],
    plan: Plan | None = None,
) -> Plan | None:  # fmt: skip
    """Try `attempt` with `plan`, if given, and the best candidates until one does not fail; what fails is demoted.

    Out of memory demotes nothing: only this call goes elsewhere. Returns the plan that delivered if the next product
    like this one will be given to it, too. When no candidate is left it raises MemoryError, if one lacked memory, or
    BackendUnavailable, with what each has failed of; and RuntimeError when an operand is no longer what it was.
    """
    without: frozenset[tuple[str, str]] = frozenset()
    failures: list[KernelFailed] = []
    if plan is not None and (
        isinstance(plan, Split) or plan.meanwhile or verification.failed(plan.kernel, plan.device)
    ):
        plan = None
    while True:
        try:
            plan = plan or choose(problem, backend, kernel, held_by, without)
        except BackendUnavailable as error:
            if not failures:
                raise
            causes = dict.fromkeys(map(str, failures))
            if any(failure.memory for failure in failures):
                raise MemoryError("; ".join(causes)) from failures[-1]
            others = [cause for cause in causes if cause not in error.cause]
            raise BackendUnavailable(error.backend, "; ".join([*others, error.cause])) from failures[-1]
        try:
            attempt(plan)
            return None if any(failure.memory for failure in failures) else plan
        except (KernelFailed, MemoryError) as error:
            failures.append(failure := KernelFailed.of(error))
            verification.demote(plan.kernel, plan.device, failure)
            if failure.spoilt:
                raise RuntimeError(str(failure)) from error
            without, plan = without | {(plan.kernel.name, plan.device.key)}, None


def run(
    problem: Problem, backend: str, kernel: str | None,
    a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float, bias: Operand | None = None,
    first: tuple[Plan, Launch] | None = None,
) -> Plan | None:  # fmt: skip
    """Compute the product, with the plan `first` if given, else with the best candidate; see `deliver`.

    Returns None, too, while it is in doubt whether that is the best one (gemm.select.calibration), or it stands in for
    one that is not known yet. Inputs (and an
    `out` that is c, but for the RuntimeError that says so) are untouched by a product that fails.
    """

    operands = (a, b, c, out, alpha, beta, *((bias,) if problem.fused else ()))

    def attempt(plan: Plan) -> None:
        launch = first[1] if first and plan is first[0] else launcher(plan)
        doubtful = plan.rival < math.inf and calibration.doubtful(plan)
        start = time.perf_counter()
        try:
            launch(*operands)
        except (KernelFailed, MemoryError) as error:
            if isinstance(error, MemoryError) or error.memory:
                given = {"a": a, "b": b, "c": c, "out": out}
                sizes = [f"{name} has {x.size * x.dtype.itemsize}" for name, x in given.items() if x is not None]
                error.args = (f"{KernelFailed.of(error)} (bytes: {', '.join(sizes)})",)
            raise
        if doubtful:
            calibration.learn(plan, time.perf_counter() - start)

    held_by = out.device if isinstance(out, DeviceView) else None
    delivered = deliver(problem, backend, kernel, held_by, attempt, first and first[0])
    if delivered is None or delivered.meanwhile:
        return None
    return delivered if delivered.rival == math.inf or not calibration.doubtful(delivered) else None
