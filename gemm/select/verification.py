"""Verification: which kernels `auto` may choose on which devices.

`auto` may choose a kernel that passed verification on the device and has not failed there. `auto` uses no device that
was lost in this process.

The probe verifies kernels once for each device and driver. Some backends have too many kernels to verify all of them in
advance. Their kernels have `lazy_verify`: such a kernel is verified only when it is first about to be chosen. Like the
probe, this verification runs in a worker (a child process) under a time limit. Results are stored on disk.

A product whose kernel is not verified yet waits some seconds for the result, unless another verified kernel can compute
the product meanwhile (gemm.select.choice). Drivers compile a second program for products with reproducible=True. The
checks of that program therefore run only when such a product is first about to use the kernel. A failure in this
process is remembered until the process ends.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from gemm.catalog import BY_NAME, HOST_BACKENDS, Kernel
from gemm.core import disk_cache, engine, threads
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device
from gemm.select import probe, tuning_db, worker
from gemm.select.probe import Facts
from gemm.select.worker import Line

log = logging.getLogger("gemm")

UNKNOWN = "not verified on this device and driver"
MOST_WORKERS = 8
"""Greatest number of workers that verify at the same time; each of them uses device memory."""

_recording = threads.lock()
_lock = threads.lock()  # products of several threads may fail at the same time
_failed: dict[tuple[str, str], str] = {}  # (kernel, device) → why the kernel failed
_lost: dict[str, str] = {}  # device → why the device was lost

forgetful: list[Callable[[], None]] = []
"""Functions to call when cached choices are no longer valid."""
repeating: list[Callable[[], None]] = []
"""Functions that make the plan cache forget its products, so that it does not repeat them without a new choice."""


_changes = count()
generation = 0
"""A number that changes after each event that choices depend on. The number is part of the key of cached choices.
Therefore a choice that was made before an event, but stored after the event, is never found."""


def forget_choices(*, repeated: bool = True) -> None:
    """Clear the cached choices, because something that they depend on has changed.

    Args:
        repeated: whether to clear the plan cache, too. The plan cache repeats products without a new choice.
    """
    global generation
    generation = next(_changes) + 1
    for forget in [*forgetful, *(repeating if repeated else ())]:
        forget()


worker.finished.append(forget_choices)
engine.limiting.append(forget_choices)


def demote(kernel: Kernel, device: Device, error: KernelFailed) -> None:
    """Exclude `kernel` on `device`, or the device itself if it was lost, until the process ends.

    A lack of memory excludes nothing: a smaller product may fit later.
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
    """Return how `device` was lost, or how `kernel` failed on `device`, in this process; or ""."""
    return _lost.get(device.key) or _failed.get((kernel.name, device.key), "")


def unproven(kernel: Kernel, facts: Facts | None) -> bool:
    """Whether `kernel` is verified only when it is first about to be chosen.

    The answer is yes for kernels with `lazy_verify`. Without results of the probe (`facts` is None), the answer is also
    yes for a kernel with the catalog's parameters that computes outside of host memory.
    """
    early = facts is None and kernel.backend not in HOST_BACKENDS and kernel is BY_NAME.get(kernel.name)
    return kernel.lazy_verify or early


def unverified(kernel: Kernel, device: Device, facts: Facts | None) -> str:
    """Return why `auto` must not choose `kernel` on `device`, as far as is known; or "".

    An `unproven` kernel without a result is allowed, because gemm.select.choice verifies such a kernel before its first
    use.
    """
    lazy = unproven(kernel, facts)
    found = record(kernel, device, ordered=False) if lazy else facts.of(kernel, device) if facts else None
    if found is None:
        return "" if lazy else UNKNOWN
    return "" if found["ok"] else f"failed verification: {found['error']}"


def known_to_fail(kernel: Kernel, device: Device) -> str:
    """Return what is known to be wrong with `kernel` on `device`, or "". Starts no probe and no verification."""
    why = failed(kernel, device) or unverified(kernel, device, probe.recalled[probe.entry()])
    return "" if why == UNKNOWN else why


def record(kernel: Kernel, device: Device, *, ordered: bool = True) -> dict[str, Any] | None:
    """Return the stored result of verifying `kernel` on this device and driver: {"ok", "error", ...}.

    None means that the kernel, with its present source, is not verified yet. With `ordered`, the result is also None if
    the kernel has passed only the checks for products without reproducible=True.
    """
    facts = probe.recalled[probe.entry("verified")]
    found = facts.of(kernel, device) if facts else None
    if found is None or found["source"] != tuning_db.fingerprint(kernel):
        return None
    return found if found.get("ordered") or not found["ok"] or not ordered else None


def begin(kernel: Kernel, device: Device, *, ordered: bool) -> worker.Task:
    """Return the background task that verifies `kernel` on `device`; start it if it is not running yet.

    When the task has ended, `record` returns its result. `ordered` is as for `record`.
    """
    key = "verified", kernel.label, device.backend, device.name, device.driver, ordered

    def work(task: worker.Task) -> None:
        if record(kernel, device, ordered=ordered) is None:
            _verify(kernel, device, task.child, lambda: task.stopped, ordered=ordered)

    return worker.begin(key, f"verifies {kernel.label} on {device.name}", work, reuse=True)


def verified(kernel: Kernel, device: Device, *, ordered: bool) -> bool:
    """Whether `kernel` passes verification on `device`. If the result is not known, verify the kernel and wait.

    `ordered` is as for `record`.
    """
    found = record(kernel, device, ordered=ordered)
    if found is None:
        begin(kernel, device, ordered=ordered).wait()
        found = record(kernel, device, ordered=ordered)
    return bool(found and found["ok"])


def verify(kernels: Iterable[Kernel], device: Device, until: float) -> None:
    """Verify those of `kernels` that are not verified yet, in their order, in several workers at the same time.

    Args:
        until: the time.monotonic() after which no further verification starts.
    """
    from concurrent.futures import ThreadPoolExecutor

    unknown = [kernel for kernel in dict.fromkeys(kernels) if record(kernel, device) is None]
    waiting = iter(unknown)  # the threads share this iterator, so each kernel goes to one thread

    def work(_: int) -> None:
        with worker.Child("gemm.select.probe") as child:
            for kernel in waiting:
                if time.monotonic() >= until:
                    return
                _verify(kernel, device, child)

    most = min(len(unknown), MOST_WORKERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(max(1, most)) as pool:
        list(pool.map(work, range(most)))  # raises what a thread has raised


def _verify(
    kernel: Kernel, device: Device, child: worker.Child, stopped: Callable[[], bool] = lambda: False, *,
    ordered: bool = True,
) -> None:  # fmt: skip
    """Have `child` verify `kernel`, and store the result unless `stopped()` says that this process is ending."""
    log.info("gemm verifies %s on %s, once for its driver", kernel.label, device.name)
    found: Line = {"ok": False, "error": "the child process found no such device"}
    request = {
        "kernel": kernel.name, "device": device.key, "name": device.name, "driver": device.driver, "ordered": ordered,
    }  # fmt: skip
    for line in child.ask(request, worker.timeout()):
        if line["step"] == "kernel":
            found = line
        elif line["step"] in ("died", "refused"):
            found = line | {"ok": False, "error": f"a child process that checked it {line['cause']}"}
    if stopped():
        return
    if not found["ok"]:
        child.close()  # the failure may have spoilt the driver's state; the next request starts a new process
        log.warning("gemm does without %s on %s: %s", kernel.label, device.name, found["error"])
    place = f"{device.name} with {device.driver}"
    about = {"step": "device", "device": place, "backend": device.backend, "name": device.name, "driver": device.driver}
    known = {
        "step": "kernel", "kernel": kernel.label, "device": place, "ok": found["ok"], "error": found["error"],
        "source": tuning_db.fingerprint(kernel), "ordered": ordered,
    }  # fmt: skip

    def change(blob: bytes | None) -> bytes:
        lines = [] if blob is None else json.loads(blob)
        return json.dumps(_merged(lines, about, known)).encode()

    name = probe.entry("verified")
    with _recording:
        here = probe.recalled[name]
        probe.recalled[name] = probe.Facts(_merged(here.lines if here else [], about, known))
        if found.get("step") != "refused":  # if no worker could check it ("refused"), the next process tries again
            disk_cache.update(name, change)


def _merged(lines: list[Line], about: Line, known: Line) -> list[Line]:
    """Return `lines` with `about` and `known`, without the lines that these two replace.

    Another task or process may have verified the same source meanwhile. Then a failure remains, and else the line that
    also checked the ordered bits.
    """
    same = ("step", "kernel", "device")
    rivals = [x for x in lines if all(x.get(key) == known[key] for key in (*same, "source"))]
    known = min(known, *rivals, key=lambda x: (x["ok"], not x.get("ordered"))) if rivals else known
    old = [x for x in lines if not any(all(x.get(key) == new.get(key) for key in same) for new in (about, known))]
    return [*old, about, known]
