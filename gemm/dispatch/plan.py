"""What dispatch decides: candidates with predicted times, and the plan that was chosen."""

from __future__ import annotations

from dataclasses import dataclass

from gemm.catalog import Kernel
from gemm.problem import Device, Problem


@dataclass(frozen=True)
class Candidate:
    """A kernel on a device, weighed for one problem.

    Attributes:
        seconds: predicted time of the call, transfers included; None when it cannot run.
        launch, transfer, compute: the terms of `seconds`.
        basis: "measured" on this machine, by the probe or by the tuner, or "guessed" from the catalog.
        origin: where the values of the kernel's tunable parameters come from.
        why_not: why it cannot run, or "".
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


@dataclass(frozen=True)
class Plan:
    """The kernel and device chosen for a problem, with the predicted seconds and the reason."""

    problem: Problem
    kernel: Kernel
    device: Device
    seconds: float
    reason: str
