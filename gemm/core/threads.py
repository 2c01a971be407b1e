"""Finds how many threads affinity, control groups and GEMM_NUM_THREADS grant this process. Reads environment variables,
measures the load by other processes, and makes the package's locks.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from gemm.core.errors import link

MOST = 2**31 - 1
"""The largest int32. If a gemm_plan has this value in its field `threads`, only the engine's own limit applies."""

TICKS = 3
"""A load of fewer ticks of the operating system's clock counts as 0, because the system counts only whole ticks."""

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def lock(make: Callable[[], Any] = threading.Lock) -> Any:
    """A lock that is free in the child of a fork, even if a thread of the parent held it: that thread does not exist in
    the child.

    All locks of the package are made here. They are the interpreter's own locks: in a lock written in Python, an
    interrupt during acquire or release could leave the lock held.

    Args:
        make: threading.Lock or threading.RLock.
    """
    made = make()
    _locks.add(made)
    return made


class once(cached_property[Any]):
    """functools.cached_property whose lock is free in the child of a fork. From Python 3.12 on, there is no lock."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        super().__init__(find)
        if hasattr(self, "lock"):
            _locks.add(self.lock)


def _after_fork() -> None:
    for held in list(_locks):
        held._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def granted() -> int:
    """The number of threads that a product may use unless `gemm.set_num_threads` says otherwise.

    The number is the minimum of three: the number of CPUs on which this process may run (affinity), the container's CPU
    quota (cgroup), and GEMM_NUM_THREADS. Raises ValueError if GEMM_NUM_THREADS is not a positive integer.
    """
    available = cores()
    return min(available, int(setting("GEMM_NUM_THREADS", "a positive integer", _count, available)))


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


def setting(name: str, kind: str, read: Callable[[str], Any], default: Any) -> Any:
    """The value of the environment variable `name`, or `default` if it is not set or empty.

    Args:
        kind: the expected kind of value, for messages.
        read: converts the text to a value or raises ValueError.

    Raises:
        ValueError: the text is not valid; the message contains it.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return read(text)
    except ValueError:
        cause = f"the environment variable {name} must be {kind}, not {text!r}"
        raise ValueError(f"{cause} ({link('variables')})") from None


def switch(text: str) -> bool:
    """True or False for the text of a setting, such as "on" or "0". Raises ValueError for any other text."""
    known = {"1": True, "on": True, "true": True, "yes": True, "0": False, "off": False, "false": False, "no": False}
    try:
        return known[text.lower()]
    except KeyError:
        raise ValueError from None


def affinity() -> int:
    """Number of CPUs on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Number of CPUs on which this process may run, limited by the CPU quota."""
    return max(1, math.ceil(min(affinity(), _cgroup_quota())))


@lru_cache(1)
def _cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """The number of CPUs that the control groups grant this process; inf without a limit. Reads cgroup v1 and v2.

    A group's limit applies to all groups below it, so the minimum over all parent groups counts. In a container, the
    path in /proc may be outside of the mount; the root of the mount is then the container's own group.
    """
    quota = math.inf
    try:
        lines = own.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # not Linux
        return quota
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        for mount in (root,) if not controllers else (root / controllers, root / "cpu"):
            group = Path(path.lstrip("/"))
            for folder in (mount / group, *(mount / parent for parent in group.parents), mount):
                quota = min(quota, _group_quota(folder))
    return quota


def _group_quota(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return int(granted) / int(period) if granted not in ("max", "-1") else math.inf
    except (OSError, ValueError):  # absent, unreadable or of an unknown format: no known limit
        return math.inf


class OtherProcesses:
    """Measures the load by other processes, from the creation of this object on.

    Attributes:
        known: whether the system reports the load: only Linux does.
    """

    def __init__(self) -> None:
        self._ticks, self._own, self._start = _ticks(), sum(os.times()[:4]), time.monotonic()
        self.known = self._ticks is not None

    def cores(self) -> tuple[float | None, float | None]:
        """Return (cores that other processes used, cores that a hypervisor withheld), averages since the creation.

        Child processes of this process that have ended do not count as other processes. (None, None) if the system does
        not report the load.
        """
        wall, own = time.monotonic() - self._start, sum(os.times()[:4]) - self._own
        after = _ticks()
        if not (self._ticks and after):
            return None, None
        busy, steal = (now - then for now, then in zip(after, self._ticks, strict=True))
        least = (TICKS - 0.5) / os.sysconf("SC_CLK_TCK")
        others, withheld = (seconds / wall if seconds > least else 0.0 for seconds in (busy - own, steal))
        return others, withheld


def _ticks() -> tuple[float, float] | None:
    """CPU seconds since boot: (used by all processes, withheld by a hypervisor). None on systems other than Linux."""
    try:
        with Path("/proc/stat").open() as file:
            user, nice, system, _, _, irq, soft, steal = (int(x) for x in file.readline().split()[1:9])
    except (OSError, ValueError):  # not Linux
        return None
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / rate, steal / rate
