"""Kernels that are verified when they are first to be chosen: those of which a backend has too many for the probe.

Each is checked once for a device and its driver, in a child process under a time limit, like everything the probe does;
what came out is remembered on disk. A product whose kernel is new there waits for that, some seconds.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gemm import sources
from gemm.catalog import Kernel
from gemm.dispatch import probe, tuning
from gemm.dispatch.child import Child, Line, timeout
from gemm.problem import Device

log = logging.getLogger("gemm")

SIDE_BY_SIDE = 8
"""Children at most that verify at a time; each takes memory of the device."""

_lock = threading.Lock()
_records = threading.Lock()


def record(kernel: Kernel, device: Device) -> dict[str, Any] | None:
    """What is known of `kernel` on that device and driver: {"ok", "error", ...}; None: it was not verified yet."""
    facts = probe.recall(probe.entry("verified"))
    found = facts.of(kernel, device) if facts else None
    return found if found and found["source"] == tuning.fingerprint(kernel) else None


def verified(kernel: Kernel, device: Device) -> bool:
    """Whether `kernel` is right on `device`; finds out if that is not known."""
    with _lock:  # products of other threads want it, too, as often as not
        found = record(kernel, device)
        if found is None:
            with Child("gemm.dispatch.probe") as child:
                found = _verify(kernel, device, child)
    return bool(found["ok"])


def verify(kernels: Iterable[Kernel], device: Device, until: float) -> None:
    """Find out about those of `kernels` that are not known, in that order and in several children at a time.

    Args:
        until: when to begin with no more of them, by time.monotonic().
    """
    with _lock:
        waiting = deque(kernel for kernel in dict.fromkeys(kernels) if record(kernel, device) is None)

        def work() -> None:
            with Child("gemm.dispatch.probe") as child:
                while waiting and time.monotonic() < until:
                    try:
                        kernel = waiting.popleft()
                    except IndexError:  # another one was faster
                        return
                    _verify(kernel, device, child)

        count = min(len(waiting), SIDE_BY_SIDE, os.cpu_count() or 1)
        with ThreadPoolExecutor(max(1, count)) as pool:
            for each in [pool.submit(work) for _ in range(count)]:
                each.result()


def _verify(kernel: Kernel, device: Device, child: Child) -> Line:
    log.info("gemm verifies %s on %s, once for its driver", kernel.label, device.name)
    found: Line = {"ok": False, "error": "the child process found no such device"}
    for line in child.ask({"kernel": kernel.name, "device": device.key}, timeout()):
        if line["step"] == "kernel":
            found = line
        elif line["step"] in ("died", "refused"):
            found = line | {"ok": False, "error": f"a child process that checked it {line['cause']}"}
    if not found["ok"]:
        log.warning("gemm does without %s on %s: %s", kernel.label, device.name, found["error"])
    place = f"{device.name} with {device.driver}"
    about = {"step": "device", "device": place, "backend": device.backend, "name": device.name, "driver": device.driver}
    known = {
        "step": "kernel", "kernel": kernel.label, "device": place, "ok": found["ok"], "error": found["error"],
        "source": tuning.fingerprint(kernel),
    }  # fmt: skip

    def change(blob: bytes | None) -> bytes:
        lines = [] if blob is None else json.loads(blob)
        return json.dumps(_merged(lines, about, known)).encode()

    name = probe.entry("verified")
    with _records:
        here = probe.recall(name)
        probe.keep(name, probe.Facts(_merged(here.lines if here else [], about, known)))
        if found.get("step") != "refused":  # which says nothing of the kernel: the next process tries again
            sources.update(name, change)
    return known


def _merged(lines: list[Line], about: Line, known: Line) -> list[Line]:
    """`lines` with these two, instead of what they replace."""
    same = ("step", "kernel", "device")
    old = [x for x in lines if not any(all(x.get(key) == new.get(key) for key in same) for new in (about, known))]
    return [*old, about, known]
