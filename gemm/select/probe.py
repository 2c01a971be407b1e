"""What this machine's devices are and can do: found in a child process, remembered on disk.

The child (`python -m gemm.select.probe`, see gemm.select.worker) loads each backend, verifies each kernel on each
device (gemm.select.verify), except those that are verified lazily (gemm.select.verification), also with the parameters
that are shipped for the device or were tuned with another driver, and measures its rates. A step that kills or hangs
the child costs that kernel, and the child is started again without it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm.catalog import BACKENDS, BY_NAME, HOST_BACKENDS, KERNELS, Kernel
from gemm.core import disk_cache, engine
from gemm.core.problem import Device
from gemm.core.rates import Rates
from gemm.core.version import VERSION
from gemm.select import background, tuning_db

if TYPE_CHECKING:
    from gemm.select.background import Errand
    from gemm.select.worker import Line

log = logging.getLogger("gemm")

RESTARTS = 4
"""How many steps may kill the child before the probe settles for what it has."""


class Facts:
    """What a probe found.

    Attributes:
        devices: {device key: {"name", "driver", "backend", "kind"}}.
        kernels: {(kernel label, device key): {"ok", "error", and the fields of gemm.core.rates.Rates}}.
        memory: {device key: the highest of its kernels' rates of memory}, which stands in for those that have none.
        unavailable: {backend: cause and remedy}. deadly: {backend: what its drivers do to a process}.
    """

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.devices = {x["device"]: x for x in lines if x["step"] == "device"}
        self.kernels = {(x["kernel"], x["device"]): x for x in lines if x["step"] == "kernel"}
        self.unavailable = {x["backend"]: x["cause"] for x in lines if x["step"] == "unavailable"}
        self.memory: dict[str, float] = {}
        for (_, where), x in self.kernels.items():
            self.memory[where] = max(self.memory.get(where, 0.0), x.get("memory", 0.0))
        self.deadly = {x["backend"]: x["cause"] for x in lines if x["step"] == "unavailable" and x.get("deadly")}

    def of(self, kernel: Kernel, device: Device) -> dict[str, Any] | None:
        """The record of `kernel` on `device`, or on a device of the same name and driver (another context)."""
        for key, facts in self.devices.items():
            if (
                facts["backend"] == device.backend
                and facts["name"] == device.name
                and (facts["driver"] == device.driver)
            ):
                return self.kernels.get((kernel.label, key))
        return None

    def rates(self, kernel: Kernel, device: Device) -> Rates | None:
        record = self.of(kernel, device)
        if record is None or not record["ok"]:
            return None
        rates = _rates(record)
        return rates if rates.memory else replace(rates, memory=self.memory.get(record["device"], 0.0))

    def link(self, device: Device) -> Rates | None:
        """Rates between host and `device`, as some kernel on it had them."""
        key = next((k for k, x in self.devices.items() if (x["name"], x["driver"]) == (device.name, device.driver)), "")
        return next((_rates(x) for (_, where), x in self.kernels.items() if where == key and x["ok"]), None)


def _rates(record: dict[str, Any]) -> Rates:
    return Rates(**{rate.name: record[rate.name] for rate in fields(Rates) if rate.name in record})


_memory: dict[str, Facts | None] = {}


def facts(*, run: bool) -> Facts | None:
    """The machine's facts: from this process, from disk, or (if `run`) from a new probe; None if not known yet.

    A probe is waited for; a lookup never waits for one.
    """
    return _known(entry(), run=run)


def soon() -> Facts | None:
    """The facts, or None while they are looked for, which begins now. A thread that is patient waits."""
    found = recall(entry())
    if found is None:
        errand = _begin(entry())
        if background.patient():
            errand.wait()
            found = recall(entry())
    return found


def devices(backend: str) -> tuple[Device, ...]:
    """The devices of `backend`, unless a child that looked for them, once for these drivers, died or hung of that.

    For those who ask for no product, so that `gemm info` tells of such a driver and is not ended by it. Raises
    BackendUnavailable.
    """
    from gemm.backends import registry
    from gemm.core.errors import BackendUnavailable

    if backend not in HOST_BACKENDS:
        found = facts(run=False) or _known(entry("drivers"), run=True)
        if found and backend in found.deadly:
            raise BackendUnavailable(backend, found.deadly[backend], "Remove or update that driver")
    return registry.backend(backend).devices()


def _known(name: str, *, run: bool) -> Facts | None:
    found = recall(name)
    if found is None and run:
        _begin(name).wait()
        found = recall(name)
    return found


def recall(name: str) -> Facts | None:
    """The facts of entry `name`: remembered, or from disk. That there are none there is remembered, too."""
    if name not in _memory:
        blob = disk_cache.load(name)
        _memory.setdefault(name, None if blob is None else Facts(json.loads(blob)))
    return _memory[name]


def keep(name: str, found: Facts) -> None:
    """Let `recall` give `found` in this process."""
    _memory[name] = found


def _begin(name: str) -> Errand:
    """The search for what entry `name` is to have."""

    def search(errand: Errand) -> None:
        blob = disk_cache.load(name)  # another process may have been faster
        found = _probe(errand, verify=verify) if blob is None else Facts(json.loads(blob))
        if errand.stopped:
            return
        if blob is None and found.lines:
            disk_cache.store(name, json.dumps(found.lines).encode())
        keep(name, found)

    verify = name == entry()
    what = "looks for devices and verifies their kernels" if verify else "looks for devices"
    return background.begin(name, what, search)


def look() -> Facts:
    """What devices there are, found anew in a child process; nothing is remembered."""
    found: list[Facts] = []
    background.begin(object(), "looks for devices", lambda errand: found.append(_probe(errand, verify=False))).wait()
    return found[0]


def forget() -> None:
    """Drop what is remembered in this process and on disk, so that the next need probes anew."""
    _memory.clear()
    for kind in ("probe", "begun", "drivers", "verified", "costs"):
        disk_cache.remove(entry(kind))


@lru_cache(maxsize=8)
def entry(kind: str = "probe") -> str:
    """The cache entry's name: a fingerprint of the drivers, taken without loading any, and of what it tells of.

    What was verified is told of all sources, but for the late rows ("verified"), each of which has its own fingerprint.
    """
    found: list[Any] = [sys.version, VERSION, [row.name for row in KERNELS]]
    if kind in ("probe", "begun"):
        found += [disk_cache.state(), engine.identity()]
    variables = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "GEMM_CPU_ISA", "GEMM_NUM_THREADS",
                 "GEMM_LIBCUDA", "GEMM_LIBNVRTC")  # fmt: skip
    found += [os.environ.get(name) for name in variables]
    folders = [os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors", "/vendor/lib64", "/system/vendor/lib64"]
    folders += [folder for p in sys.path if os.path.isdir(folder := os.path.join(p, "pyopencl"))]
    files = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dri", "/dev/kgsl-3d0"]
    files += _listed(str(tuning_db.SHIPPED), "", ".json")
    for package in (package for p in sys.path for package in _listed(os.path.join(p, "nvidia"))):  # CUDA's
        files += _listed(os.path.join(package, "lib"), "libnvrtc.so")
    for folder in folders:
        files += _listed(folder, "", ".icd") or _listed(folder, "libOpenCL") or [folder]
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            continue
        text = Path(file).read_text(errors="replace") if file.endswith((".icd", "nvidia/version")) else ""
        found.append((file, status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0, text))
        library = text.strip()
        if file.endswith(".icd") and os.path.isfile(library):
            found.append((os.stat(library).st_size, os.stat(library).st_mtime_ns))
    return f"{kind}-" + disk_cache.digest(repr(found).encode()).hex()[:32]


def _listed(folder: str, start: str = "", end: str = "") -> list[str]:
    """The paths in `folder` whose names start and end so, sorted; none where there is no such folder.

    (Path.glob takes ten times as long, which the first small product of a process would wait for.)
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(start) and name.endswith(end)]


def _probe(errand: Errand, *, verify: bool) -> Facts:
    """Ask children until one finishes or too many died; each death blames the step it died in.

    What a process that ended in the midst of it has found is on disk, and is not looked for again.

    Args:
        verify: kernels, too, not only which devices there are.
    """
    from gemm.select.worker import timeout

    begun = entry("begun")
    lines: list[Line] = json.loads((disk_cache.load(begun) if verify else None) or b"[]")
    # What is known, for better or worse.
    skip = [f"{line['kernel']} on {line['device']}" for line in lines if line["step"] == "kernel"]
    skip += [line["backend"] for line in lines if line.get("deadly")]
    if verify:
        errand.leave = lambda: disk_cache.store(begun, json.dumps(lines).encode()) if lines else None
    log.info("gemm %s, once for these drivers", "verifies kernels" if verify else "looks for devices")
    for _ in range(RESTARTS):
        step = cause = None
        for line in errand.child.ask({"skip": skip, "verify": verify}, timeout()):
            if line["step"] == "begin":
                step = line["what"]
            elif line["step"] in ("died", "refused"):
                cause = line["cause"]
            elif line not in lines:
                lines.append(line)
                if line["step"] == "kernel":
                    skip.append(f"{line['kernel']} on {line['device']}")
        if cause is None or errand.stopped:
            break
        if step is None:
            log.warning("gemm does without devices for now: the probe %s", cause)
            break
        skip.append(step)
        log.warning("gemm does without %s: the probe %s there", step, cause)
        name, _, device = step.partition(" on ")
        if device:
            lines.append({"step": "kernel", "kernel": name, "device": device, "ok": False, "error": cause})
        else:
            unavailable = f"its driver {cause} in a child process"
            lines.append({"step": "unavailable", "backend": name, "cause": unavailable, "deadly": True})
    if verify and not errand.stopped:
        disk_cache.remove(begun)
    return Facts(lines)


def answer(request: Line) -> Iterator[Line]:
    """The child's answer: what one kernel does on one device, if the request names them, or what there is."""
    return _check(request) if "kernel" in request else explore(request)


def _check(request: Line) -> Iterator[Line]:
    from gemm.backends import registry
    from gemm.core.errors import BackendUnavailable
    from gemm.select.verify.suite import checks

    name, key = request["kernel"], request["device"]
    kernel, error = BY_NAME[name], ""
    backend = registry.backend(kernel.backend)
    about = request["name"], request["driver"]  # a caller's context has a key that is known in his process only
    try:
        alike = [device for device in backend.devices() if (device.name, device.driver) == about]
        device = next(device for device in sorted(alike, key=lambda device: device.key != key))
        for passed in checks(backend, kernel, device, full=False):
            yield {"step": "begin", "what": f"what follows {passed}"}  # the time limit is one check's
    except (BackendUnavailable, StopIteration) as failure:  # which says nothing of the kernel
        left_out = failure if isinstance(failure, BackendUnavailable) else backend.left_out.get(key, "it is not there")
        yield {"step": "refused", "cause": f"cannot use {key}: {left_out}"}
        return
    except Exception as failure:  # whatever it is, the kernel is not to be trusted
        error = str(failure) or repr(failure)
    yield {"step": "kernel", "kernel": name, "device": key, "ok": not error, "error": error}


def explore(request: Line) -> Iterator[Line]:
    """Every backend, device and kernel that the request does not skip."""
    from gemm.backends import registry
    from gemm.core.errors import BackendUnavailable
    from gemm.select.measure import measure
    from gemm.select.verify.suite import quick

    skip = request["skip"]
    for name in BACKENDS:
        if name in skip or (name in HOST_BACKENDS and not request["verify"]):
            continue
        yield {"step": "begin", "what": name}
        try:
            backend = registry.backend(name)
            devices = backend.devices()
        except Exception as error:  # BackendUnavailable, or a driver's library that is broken in its own way
            line = {"step": "unavailable", "backend": name, "cause": str(error) or repr(error)}
            if isinstance(error, BackendUnavailable):
                line |= {"cause": error.told, "why": error.cause, "remedy": error.remedy}
            yield line
            continue
        for device in devices:
            yield {"step": "device", "device": device.key, "backend": name, "name": device.name,
                   "driver": device.driver, "kind": device.kind}  # fmt: skip
            for kernel in _variants(name, device) if request["verify"] else ():
                what = f"{kernel.label} on {device.key}"
                if what in skip:
                    continue
                yield {"step": "begin", "what": what}
                record = {"step": "kernel", "kernel": kernel.label, "device": device.key, "ok": False, "error": ""}
                try:
                    quick(backend, kernel, device)
                    yield {**record, "ok": True, **vars(measure(backend, kernel, device))}
                except Exception as error:  # whatever it is, the kernel is not to be trusted
                    yield {**record, "error": str(error) or repr(error)}


def _variants(backend: str, device: Device) -> Iterator[Kernel]:
    """The rows that can run on `device`, each as the catalog has it and with other parameters.

    Of late rows only the plainest of float32, and only to know the way to a device whose other times are modelled.
    """
    plain = [row for row in KERNELS if (row.backend, row.dtype, row.inputs) == (backend, "float32", ())][-1:]
    for row in KERNELS:
        late = row.lazy_verify and not (row in plain and "sm_count" in device.limits)
        if row.backend != backend or row.dtype == "*" or late or not row.chosen_on(device.kind, device.features):
            continue
        if not set(row.needs) - device.features:
            yield row
            yield from tuning_db.variants(row, device)


if __name__ == "__main__":
    from gemm.select.worker import serve

    serve(answer)
