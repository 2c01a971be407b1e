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
"""{"cuda:all": "cuda"}: the backend names that select all devices of one backend; see gemm.execute.split."""
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
        launch: seconds of a product of negligible size, with operands in the device's memory.
        flops: additions and multiplications per second in a large product.
        upload, download: bytes per second from host to device for large operands, and from device to host for large
            results; 0 if nothing is transferred.
        staged: additional seconds of a small product whose operands have another layout than the kernel needs and are
            packed first.
        wrapped: the alignment in bytes from which host memory is used in place; 0: host memory is always copied.
        start: seconds that transfers add to a product whatever their size.
        overlaps: transfers overlap with a product whose operands and result have together at least this many bytes; 0:
            they never overlap.
        memory: bytes per second at which the kernel reads an operand from memory once; 0: unknown. Kernels that compute
            in host memory have the rate of host memory. GPU kernels that stream an operand have their measured rate of
            the GPU's memory. Other GPU kernels have the highest rate of the streaming kernels on the device.
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
        launch, transfer, compute: the terms of `seconds`. `transfer` is the time that transfers add to the other two.
        basis: "measured" on this machine by the probe or the tuner; "modelled" from the properties of a GPU and the
            catalog's data about the kernel; or "guessed" from the catalog.
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
        factor: the calibration factor of the model's prediction; already included in `seconds`.
        rival: for host operands, predicted seconds of the fastest candidate on another device; infinite if there is
            none.
        meanwhile: True: the plan is used only until devices have been found or a kernel has been verified. The next
            product therefore asks dispatch again.
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
        sides: the plan of each part.
        cuts: the parts, in the order of `sides`.
    """

    backend: str
    sides: tuple[Plan, ...]
    cuts: tuple[Part, ...]
    named: str | None = None
