"""Energy a product, where the platform counts it: RAPL's counters of packages, NVML's of NVIDIA GPUs.

Whole packages and boards are counted, idle power and other processes included: what it costs to have the product made
on this machine, not what the arithmetic alone takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
SPAN = 0.5
"""Seconds that a measurement lasts at least: the counters advance every millisecond (RAPL) to every 0.1 s (NVML)."""


@dataclass(frozen=True)
class Meter:
    """A counter of joules.

    Attributes:
        read: the counter. span: joules after which it begins anew at 0; 0: never.
    """

    name: str
    read: Callable[[], float]
    span: float = 0.0

    def since(self, before: float) -> float:
        """Joules since it read `before`, if it has begun anew no more than once."""
        used = self.read() - before
        return used + self.span if used < 0 else used


def meters(root: Path = POWERCAP) -> tuple[list[Meter], list[str]]:
    """The machine's meters, and why others are absent."""
    found, absent = _rapl(root)
    gpus, why = _nvml()
    return found + gpus, absent + why


def _rapl(root: Path) -> tuple[list[Meter], list[str]]:
    found = []
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's packages, too, are called so
        if zone.name.count(":") != 1:  # a part of a package that is counted already
            continue
        counter = zone / "energy_uj"
        try:
            meter = Meter(
                (zone / "name").read_text().strip(), partial(_joules, counter),
                _joules(zone / "max_energy_range_uj"),
            )  # fmt: skip
            meter.read()
        except PermissionError:
            return [], [f"RAPL: {counter} is for root only: chmod a+r it, or run as root"]
        except (OSError, ValueError) as error:
            return [], [f"RAPL: {counter}: {error}"]
        found.append(meter)
    return found, [] if found else [f"RAPL: {root} has no packages (no such hardware, or a virtual machine)"]


def _joules(file: Path) -> float:
    return int(file.read_text()) / 1e6


def _nvml() -> tuple[list[Meter], list[str]]:
    try:
        import pynvml
    except ImportError:
        return [], ["NVML: pip install nvidia-ml-py"]
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        found = [Meter(f"GPU {at}", partial(_board, pynvml, handle)) for at, handle in enumerate(handles)]
        for meter in found:
            meter.read()
    except pynvml.NVMLError as error:
        return [], [f"NVML: {error}"]
    return found, []


def _board(pynvml: Any, handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


def spent(call: Callable[[], Any], meters: Sequence[Meter], span: float = SPAN) -> tuple[dict[str, float], float]:
    """({meter: joules a call}, seconds a call) of calls in a row for `span` seconds."""
    call()
    before = [meter.read() for meter in meters]
    start, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - start < span:
        call()
        times += 1
    seconds = time.perf_counter() - start
    return {m.name: m.since(x) / times for m, x in zip(meters, before, strict=True)}, seconds / times
