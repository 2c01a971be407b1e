"""What dispatch knows and decides: rates, candidates with predicted times, and the plan that was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gemm.catalog import SPREADING, Kernel
from gemm.core.problem import Device, Problem

HYBRID = "hybrid"
"""The name for the CPU and the fastest other device at once; see gemm.execute.split."""
ALL = {f"{name}:all": name for name in SPREADING}
"""{the name for all devices of a backend at once, "cuda:all": the backend}; see gemm.execute.split."""
SPLIT = frozenset((HYBRID, *ALL))
"""The names for several devices at once."""
Part = tuple[tuple[str, int, int], ...]
"""A part of a product: (axis, start, stop) of each axis that is cut, a field of Problem, "m", "n" or "batch"."""


class Candidate(NamedTuple):
    """A kernel on a device, weighed for one problem.

    Attributes:
        seconds: predicted time of the call, transfers included; None when it cannot run.
        launch, transfer, compute: the terms of `seconds`; of transfers what they add to the others.
        basis: "measured" on this machine, by the probe or by the tuner; "modelled" from what a GPU tells of itself and
            the catalog of the kernel; or "guessed" from the catalog.
        origin: where the values of the kernel's tunable parameters come from.
        why_not: why it cannot run, or "".
        factor: by which what the model says was corrected; part of `seconds` only.
    """

    kernel: Kernel
    device: Device
    seconds: float | None = None
    launch: float = 0.0
    transfer: float = 0.0
    compute: float = 0.0
    basis: str = ""
    why_not: str = ""
    origin: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The kernel and device chosen for a problem, with the predicted seconds and the reason.

    Attributes:
        factor: by which the model's prediction was corrected.
        rival: predicted seconds of the soonest on another device, for operands on the host; infinite without one.
        meanwhile: it stands in while devices are looked for, or a kernel is verified; the next product asks again.
    """

    problem: Problem
    kernel: Kernel
    device: Device
    seconds: float
    reason: str
    factor: float = 1.0
    rival: float = math.inf
    meanwhile: bool = False

    def __hash__(self) -> int:
        return hash((self.problem, self.kernel))  # of all fields it would take longer, and these are enough


@dataclass(frozen=True, kw_only=True)
class Split(Plan):
    """A product in parts that several devices compute at once; see gemm.execute.split.

    It is chosen anew for each product, as a device may have failed. `kernel` and `device` are the first side's,
    `seconds` are those until the last side ends.

    Attributes:
        backend: what was asked for, one of SPLIT. named: the kernel that was, or None.
        sides: the plans of the parts. cuts: the parts.
    """

    backend: str
    sides: tuple[Plan, ...]
    cuts: tuple[Part, ...]
    named: str | None = None
