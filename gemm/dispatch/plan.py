"""What dispatch knows and decides: rates, candidates with predicted times, and the plan that was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gemm.catalog import SPREADING, Kernel
from gemm.problem import Device, Problem

HYBRID = "hybrid"
"""The name for the CPU and the fastest other device at once; see gemm.dispatch.split."""
ALL = {f"{name}:all": name for name in SPREADING}
"""{the name for all devices of a backend at once, "cuda:all": the backend}; see gemm.dispatch.split."""
SPLIT = frozenset((HYBRID, *ALL))
"""The names for several devices at once."""
Part = tuple[tuple[str, int, int], ...]
"""A part of a product: (axis, start, stop) of each axis that is cut, a field of Problem, "m", "n" or "batch"."""
CALL = 2e-6
"""Seconds of a call that only enters native code."""


@dataclass(frozen=True)
class Rates:
    """What the probe measured of a kernel on a device.

    Attributes:
        launch: seconds of a product too small to matter, on resident operands.
        flops: additions and multiplications a second on a large product.
        upload, download: bytes/s between host and device of large operands and results; 0 where nothing is moved.
        staged: seconds more of a small product whose operands do not lie as the kernel asks, and are packed first.
        wrapped: the alignment from which host memory is used where it lies; 0: it is copied.
        start: seconds that moving takes besides, however little there is.
        overlaps: bytes of operands and result from which they are moved while others are multiplied; 0: never.
        memory: bytes/s of an operand that is read once: in the host's memory, by kernels that compute there, and in a
            GPU's, by those that stream one (others have the highest of theirs); or 0.
    """

    launch: float
    flops: float
    upload: float = 0.0
    download: float = 0.0
    staged: float = 0.0
    wrapped: int = 0
    start: float = 0.0
    overlaps: int = 0
    memory: float = 0.0


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
    """A product in parts that several devices compute at once; see gemm.dispatch.split.

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
