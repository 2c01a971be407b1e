"""What this machine offers: which kernels of the catalog can run here, and which backends can be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm import execute
from gemm.catalog import BACKENDS, KERNELS, Kernel
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.select import probe, verification


@dataclass(frozen=True)
class KernelStatus:
    """A catalog row on this machine.

    Attributes:
        available: whether some device here can run it. reason: why not, or "".
        devices: the keys of the devices that can.
        untrusted: {device that can: why it is not chosen there unless it is named}, as far as that is known.
    """

    name: str
    backend: str
    target: str
    dtype: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    row: Kernel
    untrusted: Mapping[str, str]


def kernels() -> list[KernelStatus]:
    """Each kernel of the catalog with whether it can run here. Loads every backend."""
    found = []
    for row in KERNELS:
        able, reasons, untrusted = [], [], {}
        for device, reason in _on(row):
            if reason:
                reasons.append(reason)
            elif device is not None:
                able.append(device.key)
                if cause := verification.known_to_fail(row, device):
                    untrusted[device.key] = cause
        reason = "" if able else "; ".join(dict.fromkeys(reasons))
        names = row.name, row.backend, row.target, row.dtype
        found.append(KernelStatus(*names, bool(able), reason, tuple(able), row, untrusted))
    return found


def _on(row: Kernel) -> list[tuple[Device | None, str]]:
    try:
        devices = probe.devices(row.backend)
    except BackendUnavailable as error:
        return [(None, error.told)]
    return [(device, execute.unavailable(row, device)) for device in devices]


def backends() -> dict[str, str]:
    """{backend: "" if it can be used here, else why not and the remedy}. Loads every backend.

    backend="hybrid" is none of its own: it can be used where some other one than "cpu" and "numpy" can.
    """
    found = {}
    for name in BACKENDS:
        try:
            probe.devices(name)
            found[name] = ""
        except BackendUnavailable as error:
            found[name] = str(error)
    return found
