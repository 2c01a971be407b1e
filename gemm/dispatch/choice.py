"""Candidates → predicted times → the least."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from heapq import heapify, heappop, heappush

from gemm.backends.base import Converting, Launch
from gemm.catalog import BY_NAME, HOST_BACKENDS, Kernel
from gemm.dispatch import correction, cost, entrants, errands, probe, registry, trust, tuning
from gemm.dispatch.entrants import Entrant, Lineup, admitted, types, unfit
from gemm.dispatch.plan import SPLIT, Candidate, Plan, Split
from gemm.epilogue import Finishing
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device, DeviceView, Operand, Problem

log = logging.getLogger("gemm")

STAND_IN = 1.0
"""Seconds more than the soonest that a product may take by a kernel that stands in until that one is verified."""
_PLACES = {name: place for place, name in enumerate(BY_NAME)}


def choose(
    problem: Problem, backend: str = "auto", kernel: str | None = None, held_by: Device | None = None,
    without: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:  # fmt: skip
    """The plan for `problem`.

    Args:
        backend: "auto", "hybrid", "cuda:all", a backend, a target or a device key.
        kernel: a catalog row's name, or None.
        held_by: the device that holds the operands, None for the host.
        without: (kernel, device) pairs that have already failed in this call.

    Raises:
        ValueError: an unknown name, or a kernel that this problem's arguments rule out.
        BackendUnavailable: what was named cannot run here.
    """
    if backend in SPLIT and not without:
        from gemm.dispatch import split  # which has plans of parts chosen here

        return split.choose(problem, backend, kernel, held_by, trust.generation)
    return _choice(problem, backend, kernel, held_by, without)


def alone(problem: Problem, backend: str, kernel: str | None, held_by: Device | None) -> Plan:
    """The best plan that is no Split. Raises what `choose` does."""
    return _choice(problem, backend, kernel, held_by, frozenset())


def _choice(
    problem: Problem, backend: str, kernel: str | None, held_by: Device | None, without: frozenset[tuple[str, str]]
) -> Plan:
    patient = backend != "auto" or errands.patient()
    return _choose(problem, backend, kernel, held_by, without, patient, trust.generation)


def _standing_in(queue: _Queue, without: frozenset[tuple[str, str]], *, patient: bool) -> tuple[Candidate | None, bool]:
    """The soonest that is verified, and whether it stands in for a sooner one, whose verification has begun.

    Args:
        patient: nothing is to stand in: the verification of the soonest is waited for.
    """
    unproven: list[Candidate] = []
    while (found := queue.pop()) is not None:
        if (found.kernel.name, found.device.key) in without:
            continue
        if not queue.unproven(found.kernel):
            break
        from gemm.dispatch import late  # which can start children; most products never get here

        record = late.record(found.kernel, found.device)
        if record is None and not patient:
            unproven.append(found)
        elif record["ok"] if record is not None else late.verified(found.kernel, found.device):
            break
    if not unproven:
        return found, False
    soonest = unproven[0]
    late.begin(soonest.kernel, soonest.device)
    if found is not None and _seconds(found) - _seconds(soonest) <= STAND_IN:
        return found, True
    # Nothing that could stand in is verified. Of the simplest kernel, the catalog's last, that takes the least time:
    # of late rows a tenth. Others are small themselves.
    there = [each for each in unproven if each.device.key == soonest.device.key]
    simplest = max(there, key=lambda each: _PLACES[each.kernel.name])
    near = _seconds(simplest) - _seconds(soonest) <= STAND_IN
    if soonest.kernel.late and simplest is not soonest and near and late.verified(simplest.kernel, simplest.device):
        return simplest, True
    return next((each for each in unproven if late.verified(each.kernel, each.device)), found), False


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds or 0.0


@lru_cache(maxsize=4096)
def _choose(
    problem: Problem, backend: str, kernel: str | None, held_by: Device | None, without: frozenset[tuple[str, str]],
    patient: bool, generation: int,
) -> Plan:  # fmt: skip
    queue = _considered(problem, backend, kernel, held_by)
    if kernel is None:
        best, standing_in = _standing_in(queue, without, patient=patient)
    else:
        standing_in = False
        while (best := queue.pop()) is not None and (best.kernel.name, best.device.key) in without:
            pass
    if best is None or best.seconds is None:
        raise _refusal(problem, backend, kernel, queue.weighed())
    reason = "asked for by name" if kernel else "least predicted time"
    if held_by is not None:
        reason += f", on {held_by.key}, where the operands are"
    elif queue.searching:
        reason += ", until devices have been looked for"
    elif not kernel and backend == "auto" and not queue.away:
        reason += ", too small for any other device to be looked for" if probe.facts(run=False) is None else ""
    if standing_in:
        reason += ", until a sooner one is verified"
    rival = queue.rival(best.device) if queue.away and held_by is None else math.inf
    meanwhile = standing_in or queue.searching
    return Plan(problem, best.kernel, best.device, best.seconds, reason, best.factor, rival, meanwhile)


class _Queue:
    """Entrants for a problem, the soonest first. They are weighed when by their bounds they may be the soonest.

    Attributes:
        away: it has some that do not compute in host memory.
        facts: what the probe found, as far as that was waited for. searching: a search for devices goes on.
    """

    def __init__(self, problem: Problem, facts: probe.Facts | None = None) -> None:
        self.away = self.searching = False
        self.facts = facts
        self._problem = problem
        self._all: list[Entrant] = []
        self._found: dict[int, Candidate] = {}
        # (the NumPy reference is the last resort, whatever its time; seconds at least; number; weighed?)
        self._waiting: list[tuple[bool, float, int, bool]] = []

    def unproven(self, kernel: Kernel) -> bool:
        """Whether `kernel` is verified when it is first to be chosen."""
        return trust.unproven(kernel, self.facts)

    def add(self, more: Lineup) -> None:
        first = len(self._all)
        self._waiting += [(last, bound, first + place, False) for last, bound, place in more.bounds(self._problem)]
        heapify(self._waiting)
        self._all += more.all

    def peek(self) -> Candidate | None:
        """The soonest that can compute the problem."""
        while self._waiting:
            last, _, number, weighed = self._waiting[0]
            if weighed:
                return self._found[number]
            heappop(self._waiting)
            found = self._found[number] = self._all[number].weigh(self._problem)
            if found.seconds is not None:
                heappush(self._waiting, (last, found.seconds, number, True))
        return None

    def pop(self) -> Candidate | None:
        """The soonest, which `peek` will not give again."""
        found = self.peek()
        if found is not None:
            heappop(self._waiting)
        return found

    def rival(self, device: Device) -> float:
        """Seconds of the soonest on another device that is no last resort; infinite without one. Takes out others."""
        while (found := self.peek()) is not None and not self._waiting[0][0]:
            if found.device.key != device.key:
                return found.seconds or math.inf
            self.pop()
        return math.inf

    def weighed(self) -> list[Candidate]:
        """All, in the catalog's order."""
        return [self._found.get(n) or entrant.weigh(self._problem) for n, entrant in enumerate(self._all)]


def _considered(problem: Problem, backend: str, kernel: str | None, held_by: Device | None) -> _Queue:
    """Those that the names admit; devices are looked for if they are named or worth it."""
    rows = admitted(backend, kernel)
    kind, queue = entrants.example(problem), _Queue(problem)
    if held_by is not None:
        here = entrants.admitted(backend, kernel, held_by.backend)
        if not here:
            raise ValueError(
                f"backend={backend!r} cannot reach operands that lie on {held_by.key}; copy them to the host first"
            )
        # Late rows need no probe, and operands that lie there no way to the device.
        facts = probe.facts(run=False)
        if facts is None and kernel is None and not all(row.late for row in here):
            facts = probe.soon() if backend == "auto" else probe.facts(run=True)
            queue.searching = facts is None
        queue.facts = facts
        queue.add(entrants.held(kind, backend, kernel, facts, held_by))
        return queue
    facts = queue.facts = probe.facts(run=False)
    queue.add(entrants.lineup(kind, backend, kernel, facts, host=True, trusting=True))
    if backend == "auto" and kernel is None:
        best = queue.peek()
        on_cpu = math.inf if best is None or best.seconds is None else best.seconds
        if best is None or best.kernel.backend == "numpy":
            _told_of_the_engine()
        if not cost.a_device_could_win(problem, on_cpu) or not entrants.away(kind, backend):
            return queue
        if facts is None:
            facts = probe.soon()
            if facts is None and best is not None:  # which is verified, and computes meanwhile
                queue.searching = True
                return queue
    elif all(row.backend in HOST_BACKENDS for row in rows):
        return queue
    if kernel is None and queue.facts is None:
        facts = facts or probe.facts(run=True)
        queue = _Queue(problem, facts)  # guesses do not compete with measured rates
        queue.add(entrants.lineup(kind, backend, kernel, facts, host=True, trusting=True))
    queue.add(entrants.lineup(kind, backend, kernel, facts, host=False, trusting=kernel is not None))
    queue.away = True
    return queue


@cache
def _told_of_the_engine() -> None:
    """Say once what is wrong with the CPU engine, if it cannot be used: `auto` does without it, and is slow."""
    try:
        registry.backend("cpu").devices()
    except BackendUnavailable as error:
        log.warning("gemm multiplies by NumPy where no device is faster, most types much slower: %s", error)


def candidates(
    problem: Problem, backend: str = "auto", kernel: str | None = None, held_by: Device | None = None
) -> list[Candidate]:
    """Every kernel on every device that the names admit, weighed; those that cannot run say why."""
    return _considered(problem, backend, kernel, held_by).weighed()


def _refusal(problem: Problem, backend: str, kernel: str | None, weighed: list[Candidate]) -> Exception:
    """The error for a choice without candidates."""
    whys = list(dict.fromkeys(f"{c.kernel.name}: {c.why_not or 'failed'}" for c in weighed))
    asked = f"kernel {kernel!r}" if kernel else f"backend {backend!r}"
    if weighed and all(unfit(c.kernel, problem) for c in weighed):
        if problem.reproducible and any(c.kernel.multiplies(problem.dtype, problem.inputs) for c in weighed):
            return ValueError(f"reproducible=True: {asked} does not offer it for {problem.dtype}")
        if problem.fused and problem.device != "host":
            return TypeError(f"bias and activation: {asked} has no kernel for them in {problem.device}'s memory")
        others = ", ".join(dict.fromkeys(types(c.kernel) for c in weighed))
        cause = f"its kernels multiply {others}" if not kernel and len(whys) > 3 else "; ".join(whys)
        return TypeError(f"dtype {problem.dtype} has no kernel for {asked} ({cause})")
    fit = [c for c in weighed if not unfit(c.kernel, problem)]
    whys = list(dict.fromkeys(c.why_not or _since(c) for c in fit))
    if not whys and ":" in backend:
        return registry.absent(backend)
    return BackendUnavailable(kernel or backend, "; ".join(whys) or "no such device")


def _since(candidate: Candidate) -> str:
    """Why one that was weighed cannot be chosen any more."""
    kernel, device = candidate.kernel, candidate.device
    return f"{kernel.name} {trust.known_to_fail(kernel, device) or 'failed'}"


@lru_cache(maxsize=4096)
def launcher(plan: Plan) -> Launch:
    """The native launch of `plan`, compiled or loaded once; it converts operands of types that the kernel lacks."""
    if isinstance(plan, Split):
        from gemm.dispatch.split_launch import SplitLaunch

        return SplitLaunch(plan)
    problem = plan.problem if plan.kernel.fuses else plan.problem.unfused
    backend = registry.backend(plan.kernel.backend)
    if problem.inputs == plan.kernel.inputs:
        launch = backend.launcher(plan.kernel, plan.device, problem)
    else:
        launch = Converting(backend.launcher(plan.kernel, plan.device, replace(problem, inputs=())), problem.dtype)
    return launch if problem == plan.problem else Finishing(launch, plan.problem)


trust.forgetful.append(_choose.cache_clear)


def forget() -> None:
    """Drop cached choices and launches, as if the process had just started; demotions stay."""
    launcher.cache_clear()
    tuning.forget()
    correction.forget()
    trust.forget_choices()


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
    if plan is not None and (isinstance(plan, Split) or plan.meanwhile or trust.failed(plan.kernel, plan.device)):
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
            trust.demote(plan.kernel, plan.device, failure)
            if failure.spoilt:
                raise RuntimeError(str(failure)) from error
            without, plan = without | {(plan.kernel.name, plan.device.key)}, None


def run(
    problem: Problem, backend: str, kernel: str | None,
    a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float, bias: Operand | None = None,
    first: tuple[Plan, Launch] | None = None,
) -> Plan | None:  # fmt: skip
    """Compute the product, with the plan `first` if given, else with the best candidate; see `deliver`.

    Returns None, too, while it is in doubt whether that is the best one (gemm.dispatch.correction), or it stands in for
    one that is not known yet. Inputs (and an
    `out` that is c, but for the RuntimeError that says so) are untouched by a product that fails.
    """

    operands = (a, b, c, out, alpha, beta, *((bias,) if problem.fused else ()))

    def attempt(plan: Plan) -> None:
        launch = first[1] if first and plan is first[0] else launcher(plan)
        doubtful = plan.rival < math.inf and correction.doubtful(plan)
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
            correction.learn(plan, time.perf_counter() - start)

    held_by = out.device if isinstance(out, DeviceView) else None
    delivered = deliver(problem, backend, kernel, held_by, attempt, first and first[0])
    if delivered is None or delivered.meanwhile:
        return None
    return delivered if delivered.rival == math.inf or not correction.doubtful(delivered) else None
