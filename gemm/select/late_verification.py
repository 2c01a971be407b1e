"""Kernels that are verified when they are first to be chosen: those of which a backend has too many for the probe.

Each is checked once for a device and its driver, in a child process under a time limit, like everything the probe does;
what came out is remembered on disk. A product whose kernel is new there waits for that, some seconds, unless another
kernel that is verified can stand in meanwhile (gemm.select.choice).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gemm.catalog import Kernel
from gemm.core import disk_cache, threads
from gemm.core.problem import Device
from gemm.select import background, probe, tuning_db
from gemm.select.worker import Child, Line, timeout

log = logging.getLogger("gemm")

SIDE_BY_SIDE = 8
"""Children at most that verify at a time; each takes memory of the device."""

_records = threads.lock()


def record(kernel: Kernel, device: Device) -> dict[str, Any] | None:
    """What is known of `kernel` on that device and driver: {"ok", "error", ...}; None: it was not verified yet."""
    facts = probe.recall(probe.entry("verified"))
    found = facts.of(kernel, device) if facts else None
    return found if found and found["source"] == tuning_db.fingerprint(kernel) else None


def begin(kernel: Kernel, device: Device) -> background.Errand:
    """Have `kernel` verified on `device`, once, whoever asks; `record` tells when that is done."""
    key = "verified", kernel.label, device.backend, device.name, device.driver

    def work(errand: background.Errand) -> None:
        if record(kernel, device) is None:
            _verify(kernel, device, errand.child, lambda: errand.stopped)

    return background.begin(key, f"verifies {kernel.label} on {device.name}", work)


def verified(kernel: Kernel, device: Device) -> bool:
    """Whether `kernel` is right on `device`; finds out if that is not known."""
    found = record(kernel, device)
    if found is None:
        begin(kernel, device).wait()
        found = record(kernel, device)
    return bool(found and found["ok"])


def verify(kernels: Iterable[Kernel], device: Device, until: float) -> None:
    """Find out about those of `kernels` that are not known, in that order and in several children at a time.

    Args:
        until: when to begin with no more of them, by time.monotonic().
    """
    waiting = deque(kernel for kernel in dict.fromkeys(kernels) if record(kernel, device) is None)

    def work() -> None:
        with Child("gemm.select.probe") as child:
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


def _verify(kernel: Kernel, device: Device, child: Child, stopped: Callable[[], bool] = lambda: False) -> None:
    """Have `child` verify `kernel`, and remember what comes out, unless by then this process is `stopped`."""
    log.info("gemm verifies %s on %s, once for its driver", kernel.label, device.name)
    found: Line = {"ok": False, "error": "the child process found no such device"}
    request = {"kernel": kernel.name, "device": device.key, "name": device.name, "driver": device.driver}
    for line in child.ask(request, timeout()):
        if line["step"] == "kernel":
            found = line
        elif line["step"] in ("died", "refused"):
            found = line | {"ok": False, "error": f"a child process that checked it {line['cause']}"}
    if stopped():
        return
    if not found["ok"]:
        log.warning("gemm does without %s on %s: %s", kernel.label, device.name, found["error"])
    place = f"{device.name} with {device.driver}"
    about = {"step": "device", "device": place, "backend": device.backend, "name": device.name, "driver": device.driver}
    known = {
        "step": "kernel", "kernel": kernel.label, "device": place, "ok": found["ok"], "error": found["error"],
        "source": tuning_db.fingerprint(kernel),
    }  # fmt: skip

    def change(blob: bytes | None) -> bytes:
        lines = [] if blob is None else json.loads(blob)
        return json.dumps(_merged(lines, about, known)).encode()

    name = probe.entry("verified")
    with _records:
        here = probe.recall(name)
        probe.keep(name, probe.Facts(_merged(here.lines if here else [], about, known)))
        if found.get("step") != "refused":  # which says nothing of the kernel: the next process tries again
            disk_cache.update(name, change)


def _merged(lines: list[Line], about: Line, known: Line) -> list[Line]:
    """`lines` with these two, instead of what they replace."""
    same = ("step", "kernel", "device")
    old = [x for x in lines if not any(all(x.get(key) == new.get(key) for key in same) for new in (about, known))]
    return [*old, about, known]
