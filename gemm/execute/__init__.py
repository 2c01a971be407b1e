"""Run a product: choose the best candidate and launch it. If a candidate fails, try the next best one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gemm.backends import registry
from gemm.core.backend import Converting, Launch
from gemm.core.epilogue import Finishing
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import SPLIT, Device, DeviceView, Plan, Problem, Split
from gemm.select import calibration, choice, probe, tuning_db, verification


def choose(
    problem: Problem, backend: str = "auto", kernel: str | None = None, holder: Device | None = None,
    without: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:  # fmt: skip
    """The plan for `problem`.

    The plan is a Split over several devices if `backend` is one of SPLIT and `without` is empty. If `without` is not
    empty, because a kernel has failed in this call, a single device computes the product. The arguments and exceptions
    are those of gemm.select.choice.choose.
    """
    if backend in SPLIT and not without:
        from gemm.execute import split  # imported here because few products need it

        return split.choose(problem, backend, kernel, holder, verification.generation)
    return choice.choose(problem, backend, kernel, holder, without)


@lru_cache(4096)
def launcher(plan: Plan) -> Launch:
    """The launch of `plan`. The launch is cached, so that its kernel is compiled or loaded only once.

    If the kernel does not take the operands' types, the launch converts the operands first.
    """
    if isinstance(plan, Split):
        from gemm.execute.split import SplitLaunch  # imported here because few products need it

        return SplitLaunch(plan, run)
    finishing = plan.problem.fused and not plan.kernel.fuses
    problem = plan.problem.unfused if finishing else plan.problem
    backend = registry.backend(plan.kernel.backend)
    if problem.inputs == plan.kernel.inputs:
        launch = backend.launcher(plan.kernel, plan.device, problem)
    else:
        launch = Converting(backend.launcher(plan.kernel, plan.device, replace(problem, inputs=())), problem.dtype)
    return Finishing(launch, plan.problem) if finishing else launch


def forget() -> None:
    """Drop all cached choices and launches, as in a new process. Kernels that have failed stay excluded."""
    launcher.cache_clear()
    tuning_db.forget()
    calibration.forget()
    verification.forget_choices()


def deliver(
    problem: Problem, backend: str, kernel: str | None, holder: Device | None, attempt: Callable[[Plan], None],
    plan: Plan | None = None,
) -> Plan | None:  # fmt: skip
    """Call `attempt` with `plan`, if given, then with the best candidates in turn, until one succeeds.

    `plan` is skipped if it is a Split, if it is temporary (Plan.meanwhile), or if its kernel has failed before. A
    kernel that fails is not used again in this process (verification.demote). A lack of memory does not exclude a
    kernel: only this call uses another candidate. After a plan that is `searching`, the probe starts.

    Returns:
        The plan that succeeded. None: a candidate ran out of memory, and the next product must choose its plan again.

    Raises:
        MemoryError: no candidate is left, and at least one ran out of memory.
        BackendUnavailable: no candidate is left; the message has the cause of each failure.
        RuntimeError: a failed kernel has overwritten an operand.
    """
    without, failures = frozenset[tuple[str, str]](), list[KernelFailed]()
    if plan and (isinstance(plan, Split) or plan.meanwhile or verification.failed(plan.kernel, plan.device)):
        plan = None
    while True:
        try:
            plan = plan or choose(problem, backend, kernel, holder, without)
        except BackendUnavailable as error:
            if not failures:
                raise
            raise _exhausted(failures, error) from failures[-1]
        try:
            attempt(plan)
            break
        except (KernelFailed, MemoryError) as error:
            failures.append(failure := KernelFailed.of(error))
            verification.demote(plan.kernel, plan.device, failure)
            if failure.spoilt:
                raise RuntimeError(str(failure)) from error
            without, plan = without | {(plan.kernel.name, plan.device.key)}, None
    if plan.searching:
        probe.start()  # only now: the probe must not compete with the verification and with the product
    return None if failures and any(failure.memory for failure in failures) else plan


def _exhausted(failures: list[KernelFailed], error: BackendUnavailable) -> Exception:
    """The exception to raise after `failures`: a MemoryError with their causes if at least one ran out of memory.

    Otherwise, it is a BackendUnavailable with their causes and the cause of `error`. `error` says why no candidate is
    left.
    """
    causes = dict.fromkeys(map(str, failures))
    if any(failure.memory for failure in failures):
        return MemoryError("; ".join(causes))
    others = [cause for cause in causes if cause not in error.cause]
    return BackendUnavailable(error.backend, "; ".join([*others, error.cause]))


def run(
    problem: Problem, backend: str, kernel: str | None, operands: tuple[Any, ...],
    first: tuple[Plan, Launch] | None = None,
) -> Plan | None:  # fmt: skip
    """Compute the product with the plan `first` if given, else with the best candidate; see `deliver`.

    A product that fails leaves the inputs unchanged, with one exception: if `out` is c, this array may be partly
    written. A RuntimeError then says so.

    Args:
        operands: (a, b, c, out, alpha, beta, bias), as a launch takes them. c and bias may be None.

    Returns:
        The plan that succeeded, if the next product like this one may use the plan again. Otherwise None: a candidate
        ran out of memory (see `deliver`), or calibration is still timing products to decide which plan is fastest
        (gemm.select.calibration). A temporary plan (Plan.meanwhile) may be used again, until the plan cache's era ends.
    """
    out = operands[3]
    given = operands if problem.fused else operands[:6]

    def attempt(plan: Plan) -> None:
        launch = first[1] if first and plan is first[0] else launcher(plan)
        doubtful = plan.rival < math.inf and calibration.doubtful(plan)
        start = time.perf_counter()
        try:
            launch(*given)
        except (KernelFailed, MemoryError) as error:
            if isinstance(error, MemoryError) or error.memory:
                arrays = zip(("a", "b", "c", "out"), operands, strict=False)
                sizes = [f"{name} has {x.size * x.dtype.itemsize}" for name, x in arrays if x is not None]
                error.args = (f"{KernelFailed.of(error)} (bytes: {', '.join(sizes)})",)
            raise
        if doubtful:
            calibration.learn(plan, time.perf_counter() - start)

    holder = out.device if isinstance(out, DeviceView) else None
    delivered = deliver(problem, backend, kernel, holder, attempt, first and first[0])
    if delivered is None or (delivered.rival < math.inf and calibration.doubtful(delivered)):
        return None
    return delivered
