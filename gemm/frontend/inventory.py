"""The kernels of the catalog that can run on this machine, and the backends that can be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm.catalog import BACKENDS, KERNELS, Kernel
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.select import candidates, probe, verification


@dataclass(frozen=True)
class KernelStatus:
    """The status of a catalog row on this machine.

    Attributes:
        available: whether at least one device of this machine can run the kernel.
        reason: why no device can run the kernel, or "".
        devices: the keys of the devices that can run the kernel.
        untrusted: {device that can run the kernel: why gemm does not choose the kernel there unless it is named}.
            Contains only what is known so far.
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
    """The status of each kernel of the catalog on this machine. Loads every backend."""
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
    return [(device, candidates.unavailable(row, device)) for device in devices]


def backends() -> dict[str, str]:
    """{backend: "" if the backend can be used here, else the cause and the remedy}. Loads every backend.

    "hybrid" is not in the result: backend="hybrid" can be used if any backend except "cpu" and "numpy" can be used.
    """
    found = {}
    for name in BACKENDS:
        try:
            probe.devices(name)
            found[name] = ""
        except BackendUnavailable as error:
            found[name] = str(error)
    return found
