"""What may be chosen: kernels that were verified on a device and have not failed there; devices that were not lost.

The probe verifies kernels once for a device and its driver. Late rows, of which a backend has too many for that, are
verified when they are first to be chosen: each in a child process under a time limit, like all that the probe does.
What came out is remembered on disk. A product whose kernel is new there waits for that, some seconds, unless another
kernel that is verified can stand in meanwhile (gemm.select.choice). What fails in this process is remembered for the
rest of it.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any

from gemm.catalog import BY_NAME, HOST_BACKENDS, Kernel
from gemm.core import disk_cache, engine, threads
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device
from gemm.select import background, probe, tuning_db
from gemm.select.probe import Facts

if TYPE_CHECKING:
    from gemm.select.worker import Child, Line

log = logging.getLogger("gemm")

SIDE_BY_SIDE = 8
"""Children at most that verify at a time; each takes memory of the device."""

_recording = threads.lock()
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
        return record(kernel, device)
    return facts.of(kernel, device) if facts else None


def unproven(kernel: Kernel, facts: Facts | None) -> bool:
    """Whether `kernel` is verified when it is first to be chosen: it is a late one, or the probe has not ended yet."""
    early = facts is None and kernel.backend not in HOST_BACKENDS and kernel is BY_NAME.get(kernel.name)
    return kernel.lazy_verify or early


def unverified(kernel: Kernel, device: Device, facts: Facts | None) -> str:
    """Why `kernel` may not be chosen on `device` unless it is named, as far as is known; or "".

    Unproven ones may be, until they fail: what chooses one has it verified.
    """
    found = _record(kernel, device, facts)
    if found is None:
        return "" if unproven(kernel, facts) else "not verified on this device and driver"
    return "" if found["ok"] else f"failed verification: {found['error']}"


def known_to_fail(kernel: Kernel, device: Device) -> str:
    """What is known to be wrong with `kernel` on `device`, without looking for anything; or ""."""
    facts = probe.facts(run=False)
    found = _record(kernel, device, facts)
    return failed(kernel, device) or (unverified(kernel, device, facts) if found else "")


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
    from concurrent.futures import ThreadPoolExecutor

    from gemm.select.worker import Child

    waiting = deque(kernel for kernel in dict.fromkeys(kernels) if record(kernel, device) is None)

    def work() -> None:
        with Child("gemm.select.probe") as child:
            while waiting and time.monotonic() < until:
                try:
                    kernel = waiting.popleft()
                except IndexError:  # another one was faster
                    return
                _verify(kernel, device, child)

    most = min(len(waiting), SIDE_BY_SIDE, os.cpu_count() or 1)
    with ThreadPoolExecutor(max(1, most)) as pool:
        for each in [pool.submit(work) for _ in range(most)]:
            each.result()


def _verify(kernel: Kernel, device: Device, child: Child, stopped: Callable[[], bool] = lambda: False) -> None:
    """Have `child` verify `kernel`, and remember what comes out, unless by then this process is `stopped`."""
    from gemm.select.worker import timeout

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
    with _recording:
        here = probe.recall(name)
        probe.keep(name, probe.Facts(_merged(here.lines if here else [], about, known)))
        if found.get("step") != "refused":  # which says nothing of the kernel: the next process tries again
            disk_cache.update(name, change)


def _merged(lines: list[Line], about: Line, known: Line) -> list[Line]:
    """`lines` with these two, instead of what they replace."""
    same = ("step", "kernel", "device")
    old = [x for x in lines if not any(all(x.get(key) == new.get(key) for key in same) for new in (about, known))]
    return [*old, about, known]
