"""What is not to be chosen: kernels that were not verified on a device, or have failed there; devices that were lost.

The probe's facts say what was verified, once for a device and its driver. What fails in this process is remembered for
the rest of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from gemm.catalog import BY_NAME, HOST_BACKENDS, Kernel
from gemm.core import engine, threads
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device
from gemm.select import background, probe
from gemm.select.probe import Facts

log = logging.getLogger("gemm")

_lock = threads.lock()  # products of several threads fail at once
_failed: dict[tuple[str, str], str] = {}  # (kernel, device) → why
_lost: dict[str, str] = {}  # device → why

forgetful: list[Callable[[], None]] = []
"""What is to be called when choices are no longer valid."""
repeating: list[Callable[[], None]] = []
"""What is to be called when products that were chosen for are not to be repeated, either."""


_changes = count()
generation = 0
"""Another number after each change that choices depend on: one that was made before and kept after it is not found."""


def forget_choices(*, repeated: bool = True) -> None:
    """Drop cached choices, after something that they depend on has changed.

    Args:
        repeated: the products that are repeated without a choice are to be chosen for anew, too.
    """
    global generation
    generation = next(_changes) + 1
    for forget in [*forgetful, *(repeating if repeated else ())]:
        forget()


background.finished.append(forget_choices)
engine.limiting.append(forget_choices)


def demote(kernel: Kernel, device: Device, error: KernelFailed) -> None:
    """Do without `kernel` on `device`, or without a device that was lost, for the rest of the process.

    A want of memory demotes nothing: the next, smaller product may fit.
    """
    if error.memory and not error.lost:
        return
    with _lock:
        if error.lost and device.key not in _lost:
            _lost[device.key] = f"{device.name} was lost in this process: {error}"
            log.warning("gemm does without %s (%s): %s", device.name, device.key, error)
        elif not failed(kernel, device):
            _failed[kernel.name, device.key] = f"failed in this process: {error}"
            log.warning("gemm does without %s on %s: %s", kernel.name, device.name, error)
    forget_choices()


def failed(kernel: Kernel, device: Device) -> str:
    """How `kernel` has failed on `device`, or `device` itself, in this process; or ""."""
    return _lost.get(device.key) or _failed.get((kernel.name, device.key), "")


def _record(kernel: Kernel, device: Device, facts: Facts | None) -> dict[str, Any] | None:
    """What came out when `kernel` was verified on `device`; None if it was not yet."""
    if unproven(kernel, facts):
        from gemm.select import late_verification

        return late_verification.record(kernel, device)
    return facts.of(kernel, device) if facts else None


def unproven(kernel: Kernel, facts: Facts | None) -> bool:
    """Whether `kernel` is verified when it is first to be chosen: it is a late one, or the probe has not ended yet."""
    early = facts is None and kernel.backend not in HOST_BACKENDS and kernel is BY_NAME.get(kernel.name)
    return kernel.lazy_verify or early


def unverified(kernel: Kernel, device: Device, facts: Facts | None) -> str:
    """Why `kernel` may not be chosen on `device` unless it is named, as far as is known; or "".

    Unproven ones may be, until they fail: what chooses one has it verified.
    """
    record = _record(kernel, device, facts)
    if record is None and unproven(kernel, facts):
        return ""
    if record is None:
        return "not verified on this device and driver"
    return "" if record["ok"] else f"failed verification: {record['error']}"


def known_to_fail(kernel: Kernel, device: Device) -> str:
    """What is known to be wrong with `kernel` on `device`, without looking for anything; or ""."""
    facts = probe.facts(run=False)
    record = _record(kernel, device, facts)
    return failed(kernel, device) or (unverified(kernel, device, facts) if record else "")
