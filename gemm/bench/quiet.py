"""Detect whether other programs disturbed the machine during a benchmark."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gemm.core.threads import granted

_OTHERS = 0.05
"""Cores that other processes may use on average."""
_STOLEN = 0.01
"""Fraction of the time that a hypervisor may have withheld."""
_SPREAD = 0.05
"""Interquartile range ÷ median that the ratios of the median row may have."""


class Watch:
    """Measure the load by other processes since this object was made."""

    def __init__(self) -> None:
        self.cores = granted()
        self._load = _load()
        self._ticks, self._own, self._start = _ticks(), time.process_time(), time.monotonic()

    def facts(self, spreads: list[float], helper: float = 0.0) -> dict[str, Any]:
        """{load_before, load_after, others_cores, stolen, median_spread, warnings}. null: the system does not tell.

        Args:
            helper: CPU seconds of processes that the benchmark itself started.
        """
        wall, own = time.monotonic() - self._start, time.process_time() - self._own + helper
        others = stolen = None
        after = _ticks()
        if self._ticks and after:
            busy, steal = (now - then for now, then in zip(after, self._ticks, strict=True))
            others, stolen = max(0.0, busy - own) / wall, steal / wall
        spread = sorted(spreads)[len(spreads) // 2] if spreads else None
        warnings = []
        if self._load and self._load[0] > 0.5:
            warnings.append(f"the load average was {self._load[0]:.2f} before the first product")
        if others is not None and others > _OTHERS:
            warnings.append(f"other processes used {others:.2f} cores on average")
        if stolen is not None and stolen > _STOLEN:
            warnings.append(f"the hypervisor withheld {100 * stolen:.1f} % of a core")
        if spread is not None and spread > _SPREAD:
            warnings.append(f"the ratios of the median row spread by {100 * spread:.0f} % (interquartile range)")
        return {"load_before": self._load, "load_after": _load(), "others_cores": others, "stolen": stolen,
                "median_spread": spread, "warnings": warnings}  # fmt: skip


def _load() -> list[float] | None:
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def _ticks() -> tuple[float, float] | None:
    """CPU seconds since boot: of all processes, and those withheld by a hypervisor. None except on Linux."""
    try:
        with Path("/proc/stat").open() as file:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
    except (OSError, ValueError):  # not Linux
        return None
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / rate, steal / rate
