"""Choose the plan for a problem: the candidate with the least predicted time. A candidate is a kernel on a device."""

from __future__ import annotations

import logging
import math
from collections.abc import Set
from functools import cache, lru_cache, partial
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gemm.backends import registry
from gemm.catalog import HOST_BACKENDS, simplest
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import SPLIT, Candidate, Device, Plan, Problem
from gemm.select import cost, probe, verification, worker
from gemm.select.candidates import Lineup, RowOnDevice, admitted, away, example, lineup, lineup_on, types, unfit

log = logging.getLogger("gemm")

STAND_IN = 1.0
"""While the fastest kernel is being verified, a verified kernel replaces it if the replacement is predicted to take at
most STAND_IN seconds longer."""


class Request(NamedTuple):
    """The arguments of `choose`."""

    problem: Problem
    backend: str = "auto"
    kernel: str | None = None
    holder: Device | None = None
    without: frozenset[tuple[str, str]] = frozenset()


def choose(
    problem: Problem, backend: str = "auto", kernel: str | None = None, holder: Device | None = None,
    without: frozenset[tuple[str, str]] = frozenset(),
) -> Plan:  # fmt: skip
    """Return the plan for `problem` on one device.

    Args:
        backend: "auto", a backend, a target (a family of kernels, see Kernel.target) or a device's key. With "hybrid"
            or "cuda:all", every device of that split is a candidate.
        kernel: the name of a catalog row, or None.
        holder: the device that holds the operands; None for the host.
        without: (kernel, device) pairs that have already failed in this call.

    Raises:
        ValueError: a name is unknown, the problem's arguments rule out the kernel, or GEMM_PROBE_TIMEOUT is wrong.
        TypeError: no kernel fits the dtype, the precision, or a bias or activation on a device.
        BackendUnavailable: the named backend, device or kernel cannot run here.
    """
    waits = worker.this_thread.waits > 0
    plan = _choose(Request(problem, backend, kernel, holder, without), waits, verification.generation)
    if plan.searching:
        worker.timeout()  # the probe starts after the product: a wrong setting is an error before `out` is written
    return plan


def _passes(ordered: bool, each: Candidate) -> bool:
    return verification.verified(each.kernel, each.device, ordered=ordered)


def _standing_in(
    found: Candidate | None, queue: _Queue, without: frozenset[tuple[str, str]], *, patient: bool, ordered: bool
) -> tuple[Candidate | None, bool]:
    """Return (candidate, whether it is a replacement).

    The candidate is the fastest one that passes verification. If a faster one is not verified yet, its verification
    starts in the background. Meanwhile a verified candidate replaces it, if one is fast enough (STAND_IN). Otherwise,
    this function waits for verifications. The candidate is None if none passes.

    Args:
        found: the fastest candidate; `queue` has the others.
        patient: whether to wait for the verification of the fastest candidate instead of using a replacement.
        ordered: whether the product is one with reproducible=True.
    """
    unproven: list[Candidate] = []
    passes = partial(_passes, ordered)
    while found is not None and verification.unproven(found.kernel, queue.facts):
        record = verification.record(found.kernel, found.device, ordered=ordered)
        if record is None and not patient:
            unproven.append(found)
        elif record["ok"] if record is not None else passes(found):
            break
        found = queue.pop(without)
    if not unproven:
        return found, False
    soonest = unproven[0]
    verification.begin(soonest.kernel, soonest.device, ordered=ordered)
    latest = (soonest.seconds or 0.0) + STAND_IN
    if found is not None and (found.seconds or 0.0) <= latest:
        return found, True
    # No verified candidate is fast enough to be the replacement. If the fastest kernel has `lazy_verify`, verify the
    # simplest kernel on the same device now: this takes a tenth of the time that verifying the fastest kernel takes.
    if soonest.kernel.lazy_verify:
        plain = simplest(soonest.kernel.backend, soonest.kernel.dtype, soonest.kernel.inputs)
        for each in unproven[1:]:
            near = each.device.key == soonest.device.key and (each.seconds or 0.0) <= latest
            if each.kernel is plain and near and passes(each):
                return each, True
    return next(filter(passes, unproven), found), False


@lru_cache(4096)
def _choose(request: Request, waits: bool, generation: int) -> Plan:
    problem, backend, kernel, holder, without = request
    patient = backend != "auto" or waits
    queue, standing_in = _considered(request), False
    best = queue.pop(without)
    if kernel is None and best is not None and best.kernel.backend not in HOST_BACKENDS:
        best, standing_in = _standing_in(best, queue, without, patient=patient, ordered=problem.reproducible)
    if best is None or best.seconds is None:
        raise _refusal(problem, backend, kernel, queue.weighed())
    reason = "asked for by name" if kernel else "least predicted time"
    if holder is not None:
        reason += f", on {holder.key}, where the operands are"
    elif queue.searching:
        reason += f", until {'all kernels have been timed' if queue.away else 'devices have been looked for'}"
    elif not kernel and backend == "auto" and queue.facts is None and not queue.away:
        reason += ", too small for any other device to be looked for"
    if standing_in:
        reason += ", until a sooner one is verified"
    doubted = holder is None and not queue.searching and (queue.away or best.kernel.third_party)
    rival = queue.rival(best.device) if doubted else math.inf
    return Plan(problem, best.kernel, best.device, best.seconds, reason, best.factor, rival,
                meanwhile=standing_in or queue.searching, searching=queue.searching)  # fmt: skip


class _Queue:
    """The candidates for a problem, the fastest first.

    A candidate's time is predicted only when its lower bound is the least of all remaining bounds and times.

    Attributes:
        away: whether the queue has candidates that do not compute in host memory.
        facts: the results of the probe; None if the queue was made without them.
        searching: whether the results of a probe that has not ended may change the choice.
    """

    def __init__(self, problem: Problem, facts: probe.Facts | None = None) -> None:
        self.away = self.searching = False
        self.facts = facts
        self._problem = problem
        self._all: list[RowOnDevice] = []
        self._found: dict[int, Candidate] = {}
        # A heap of (last resort, seconds, index in `_all`, weighed). The NumPy reference is the last resort, whatever
        # its time. `weighed` is true after the candidate's time was predicted. Before that, `seconds` is the lower
        # bound. Afterwards, `seconds` is the predicted time multiplied by RowOnDevice.lead.
        self._waiting: list[tuple[bool, float, int, bool]] = []

    def add(self, more: Lineup) -> None:
        first = len(self._all)
        for last, bound, place in more.bounds(self._problem):
            self._waiting.append((last, bound, first + place, False))
        heapify(self._waiting)
        self._all += more.all

    def peek(self) -> Candidate | None:
        """Return the fastest candidate that can compute the problem; None if there is none."""
        while self._waiting:
            last, _, number, weighed = self._waiting[0]
            if weighed:
                return self._found[number]
            heappop(self._waiting)
            row = self._all[number]
            found = self._found[number] = row.weigh(self._problem)
            if found.seconds is not None:
                heappush(self._waiting, (last, found.seconds * row.lead, number, True))
        return None

    def pop(self, without: Set[tuple[str, str]] = frozenset()) -> Candidate | None:
        """Return the fastest candidate that is not in `without`, and remove it from the queue; None if there is none.

        All faster candidates are removed, too. `without` has (kernel, device) pairs.
        """
        while (found := self.peek()) is not None:
            heappop(self._waiting)
            if (found.kernel.name, found.device.key) not in without:
                break
        return found

    def rival(self, device: Device) -> float:
        """Return the seconds of the fastest candidate on a device other than `device`; infinity if there is none.

        Third-party kernels and the last resort do not count: a prediction that NumPy is as fast as our own kernels puts
        no choice in doubt. All candidates that are faster than the result are removed from the queue.
        """
        while (found := self.peek()) is not None and not self._waiting[0][0]:
            if found.device.key != device.key and not found.kernel.third_party:
                return found.seconds or math.inf
            heappop(self._waiting)
        return math.inf

    def weighed(self) -> list[Candidate]:
        """Return all candidates in the order of the catalog, with their predicted times or why they cannot run."""
        return [self._found.get(n) or row.weigh(self._problem) for n, row in enumerate(self._all)]


def _considered(request: Request) -> _Queue:
    """Return the queue of the candidates that the request's backend and kernel admit.

    Devices are searched for if the backend or the kernel needs one, or if the problem is so large that a device could
    be faster than the CPU.

    If the caller names a backend that computes on devices, except those of SPLIT, the product does not wait for the
    probe, which verifies and times all kernels. The catalog's guesses rank the kernels, and the first kernel is
    verified now (`_standing_in`).
    """
    problem, backend, kernel, holder, _ = request
    rows, kind, facts = admitted(backend, kernel), example(problem), probe.recalled[probe.entry()]
    queue = _Queue(problem, facts)
    if holder is not None:
        return _on_holder(queue, kind, request)
    queue.add(lineup(kind, backend, kernel, facts, host=True, trusting=True))
    if backend == "auto" and kernel is None:
        best = queue.peek()
        _warn_without_engine()
        if not cost.a_device_could_win(problem, math.inf if best is None else best.seconds or 0.0) or not away(kind):
            return queue
        facts = facts or probe.soon()
        if facts is None and best is not None:  # the CPU computes such products until the search ends
            queue.searching = True
            return queue
    elif all(row.backend in HOST_BACKENDS for row in rows):
        return queue
    if kernel is None and queue.facts is None:
        # Guesses must not be compared with measured rates, nor with guesses for other backends.
        waits = backend in SPLIT or len({row.backend for row in rows}) > 1 or worker.this_thread.waits
        queue = _Queue(problem, facts or (probe.facts() if waits else None))
        queue.searching = queue.facts is None
        queue.add(lineup(kind, backend, kernel, queue.facts, host=True, trusting=True))
    queue.add(lineup(kind, backend, kernel, queue.facts, host=False, trusting=kernel is not None))
    queue.away = True
    return queue


def _on_holder(queue: _Queue, kind: Problem, request: Request) -> _Queue:
    """Add the candidates on the device that holds the operands."""
    _, backend, kernel, holder, _ = request
    assert holder is not None
    rows = admitted(backend, kernel, holder.backend)
    if not rows:
        raise ValueError(f"backend={backend!r} cannot access operands on {holder.key}; copy them to the host first")
    # Kernels with `lazy_verify` are verified without the probe, and operands on the device need no measured link. If
    # all kernels have `lazy_verify`, the probe's results are therefore not needed.
    if queue.facts is None and kernel is None and not all(row.lazy_verify for row in rows):
        queue.facts = probe.facts() if worker.this_thread.waits else None
        queue.searching = queue.facts is None
    queue.add(lineup_on(kind, backend, kernel, queue.facts, holder))
    return queue


@cache
def _warn_without_engine() -> None:
    """Log a warning, once, if the CPU engine cannot be used: `auto` then uses NumPy and is slow."""
    try:
        registry.backend("cpu").devices()
    except BackendUnavailable as error:
        log.warning("gemm multiplies by NumPy where no device is faster, most types much slower: %s", error)


def candidates(
    problem: Problem, backend: str = "auto", kernel: str | None = None, holder: Device | None = None
) -> list[Candidate]:
    """Return all kernels on all devices that the names admit, each with its predicted time or why it cannot run."""
    return _considered(Request(problem, backend, kernel, holder)).weighed()


def _refusal(problem: Problem, backend: str, kernel: str | None, weighed: list[Candidate]) -> Exception:
    """Return the error for a problem that no candidate can compute."""
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
    whys = list(
        dict.fromkeys(
            c.why_not or f"{c.kernel.name} {verification.known_to_fail(c.kernel, c.device) or 'failed'}" for c in fit
        )
    )
    if not whys and ":" in backend:
        return registry.absent(backend)
    return BackendUnavailable(kernel or backend, "; ".join(whys) or "no such device")
