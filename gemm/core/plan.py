"""Data types of dispatch: measured rates, candidates with predicted times, and the plan that was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gemm.catalog import SPREADING, Kernel
from gemm.core.problem import Device, Problem

HYBRID = "hybrid"
"""The backend name for the CPU and the fastest other device together; see gemm.execute.split."""
ALL = {f"{name}:all": name for name in SPREADING}
"""{backend name for all devices of a backend together, "cuda:all": the backend}; see gemm.execute.split."""
SPLIT = frozenset((HYBRID, *ALL))
"""The backend names that select several devices."""
Part = tuple[tuple[str, int, int], ...]
"""A part of a product: (axis, start, stop) for each split axis. The axis is a field of Problem: "m", "n" or "batch"."""


CALL = 2e-6
"""Seconds of a call that only enters native code."""


@dataclass(frozen=True)
class Rates:
    """The rates that the probe (gemm.select.measure) measured for a kernel on a device.

    The cost model predicts times from these rates.

    Attributes:
        launch: seconds of a product that is too small to matter, with operands in the device's memory.
        flops: additions and multiplications per second in a large product.
        upload, download: bytes per second between host and device for large operands and results; 0 if nothing is
            transferred.
        staged: additional seconds of a small product whose operands have another layout than the kernel needs and are
            packed first.
        wrapped: the alignment from which host memory is used in place; 0: host memory is copied.
        start: additional seconds of a transfer of any size.
        overlaps: smallest size, in bytes of operands and result, from which transfers overlap with products; 0: they
            never do.
        memory: bytes per second for an operand that is read once, or 0. For kernels that compute in host memory: of
            host memory. For GPU kernels that stream an operand: of the GPU's memory; other GPU kernels have the highest
            of these rates.
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
    """A kernel on a device, with its predicted time for one problem.

    Attributes:
        seconds: predicted time of the call, transfers included; None if the kernel cannot run.
        launch, transfer, compute: the terms of `seconds`. `transfer` is what transfers add to the other terms.
        basis: "measured" on this machine by the probe or the tuner; "modelled" from the properties of a GPU and the
            catalog's data of the kernel; or "guessed" from the catalog.
        origin: the source of the values of the kernel's tunable parameters.
        why_not: why the kernel cannot run, or "".
        factor: the calibration factor of the model's prediction; already included in `seconds`.
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
        factor: the calibration factor of the model's prediction.
        rival: for host operands, predicted seconds of the fastest candidate on another device; infinite if there is
            none.
        meanwhile: the plan is temporary, while devices are being found or a kernel is being verified; the next product
            asks dispatch again.
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
        return hash((self.problem, self.kernel))  # hashing all fields would take longer, and these two are enough


@dataclass(frozen=True, kw_only=True)
class Split(Plan):
    """A product split into parts that several devices compute at the same time; see gemm.execute.split.

    A Split is chosen anew for each product, because a device may have failed. `kernel` and `device` are those of the
    first part. `seconds` is the time until the last part is complete.

    Attributes:
        backend: the requested name, one of SPLIT.
        named: the requested kernel, or None.
        sides: the plans of the parts.
        cuts: the parts.
    """

    backend: str
    sides: tuple[Plan, ...]
    cuts: tuple[Part, ...]
    named: str | None = None
