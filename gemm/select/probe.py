"""The probe: find this machine's devices, verify and time their kernels in a worker, and store the results on disk.

The worker is a child process, `python -m gemm.select.probe` (see gemm.select.worker). The worker loads each backend. On
each device it verifies each kernel (gemm.select.verify) and measures the kernel's rates, with the catalog's parameters
and with the parameters that are shipped for the device or were tuned with another driver. Kernels with `lazy_verify`
are verified later (gemm.select.verification).

If a step kills or hangs the worker, the kernel of that step counts as failed, and a new worker continues without it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm.backends import registry
from gemm.catalog import BACKENDS, BY_NAME, HOST_BACKENDS, KERNELS, Kernel, simplest
from gemm.core import VERSION, disk_cache, engine, threads
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import EXTRA, Device, Rates
from gemm.select import tuning_db, worker
from gemm.select.worker import Line, Task

log = logging.getLogger("gemm")

RESTARTS = 4
"""Greatest number of workers for one probe. If the last worker dies, too, the probe ends with the results so far."""


BUSY, BUSY_SHARE = 0.5, 0.1
"""Rates are not reliable if other processes used more than BUSY cores, and more than BUSY_SHARE of all cores, while the
rates were measured."""


class Facts:
    """The results of a probe.

    Attributes:
        devices: {device key: {"name", "driver", "backend", "kind"}}.
        kernels: {(kernel label, device key): {"ok", "error", and the fields of gemm.core.problem.Rates}}.
        memory: {(device key, type): highest memory rate that a kernel for this type reached}. A type is the part of the
            kernels' names before "_", such as "sgemm"; "" stands for all types.
        unavailable: {backend: cause and remedy}.
        deadly: {backend: how its driver killed or hung a process}.
        others: the number of cores that other processes used while the kernels were timed; 0.0 if it is not known.
    """

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.devices = {x["device"]: x for x in lines if x["step"] == "device"}
        self.kernels = {(x["kernel"], x["device"]): x for x in lines if x["step"] == "kernel"}
        self.unavailable = {x["backend"]: x["cause"] for x in lines if x["step"] == "unavailable"}
        self.memory: dict[tuple[str, str], float] = {}
        for (label, where), x in self.kernels.items():
            for key in ((where, ""), (where, label.partition("_")[0])):
                self.memory[key] = max(self.memory.get(key, 0.0), x.get("memory", 0.0))
        self.deadly = {x["backend"]: x["cause"] for x in lines if x["step"] == "unavailable" and x.get("deadly")}
        self.others: float = max((x["others"] or 0.0 for x in lines if x["step"] == "load"), default=0.0)

    def of(self, kernel: Kernel, device: Device) -> dict[str, Any] | None:
        """Return the record of `kernel` on `device`; None if there is none.

        The device is found by its backend, name and driver. Its key cannot be used, because a caller's context has
        another key for the same device.
        """
        about = device.backend, device.name, device.driver
        for key, facts in self.devices.items():
            if (facts["backend"], facts["name"], facts["driver"]) == about:
                return self.kernels.get((kernel.label, key))
        return None

    def rates(self, kernel: Kernel, device: Device) -> Rates | None:
        """Return the measured rates of `kernel` on `device`; None if the kernel was not measured or failed.

        On devices, a kernel without a memory rate has the device's highest. In host memory, all kernels for one type
        have the highest rate that one of them reached: they read the same memory, so differences are noise. Noise would
        otherwise choose among them, because reading takes most of a small product's time.
        """
        record = self.of(kernel, device)
        if record is None or not record["ok"]:
            return None
        rates = _rates(record)
        if device.backend in HOST_BACKENDS:
            return replace(rates, memory=self.memory[record["device"], kernel.name.partition("_")[0]])
        return rates if rates.memory else replace(rates, memory=self.memory[record["device"], ""])

    def link(self, device: Device) -> Rates | None:
        """Return the rates of any one kernel that passed verification on `device`; None if there is none.

        The caller uses only the rates of launches and transfers, as an estimate for every kernel on the device. The GPU
        model predicts the times of arithmetic and memory accesses.
        """
        key = next((k for k, x in self.devices.items() if (x["name"], x["driver"]) == (device.name, device.driver)), "")
        return next((_rates(x) for (_, where), x in self.kernels.items() if where == key and x["ok"]), None)


def _rates(record: dict[str, Any]) -> Rates:
    return Rates(**{rate.name: record[rate.name] for rate in fields(Rates) if rate.name in record})


class Recalled(dict[str, Facts | None]):
    """{name of a cache entry: the results of a probe; None if the entry does not exist}.

    An entry is read from disk at the first access.
    """

    def __missing__(self, name: str) -> Facts | None:
        blob = disk_cache.load(name)
        return self.setdefault(name, None if blob is None else Facts(json.loads(blob)))


recalled = Recalled()
"""The results of probes that this process has run or has read from disk. The absence of an entry is stored, too."""


def facts(*kind: str) -> Facts | None:
    """Return the results of the probe. If they are not known, run a probe and wait for it.

    Args:
        kind: "drivers" for a probe that only looks for devices; no argument for a probe that also verifies kernels.
    """
    if recalled[entry(*kind)] is None:
        _begin(*kind).wait()
    return recalled[entry(*kind)]


def soon() -> Facts | None:
    """Return the results of the probe. If they are not known, start the probe in the background and return None.

    A thread inside `worker.waiting` waits for the results instead.
    """
    if worker.this_thread.waits:
        return facts()
    start()
    return recalled[entry()]


def start() -> None:
    """Start the probe in the background if its results are not known."""
    if recalled[entry()] is None:
        _begin()


def devices(backend: str) -> tuple[Device, ...]:
    """Return the devices of `backend`.

    A worker loads the drivers first. The result is stored on disk, so the worker runs once for each set of drivers. If
    the worker dies or hangs, this function raises BackendUnavailable and does not load the driver in this process.
    Callers that compute no product use this function, and so does dispatch before the probe has ended. `gemm info`, for
    example, can thus report a driver that kills processes.
    """
    if backend not in HOST_BACKENDS:
        found = recalled[entry()] or facts("drivers")
        if found and backend in found.deadly:
            raise BackendUnavailable(backend, found.deadly[backend], "Remove or update that driver")
    return registry.backend(backend).devices()


def _begin(*kind: str) -> Task:
    """Start the probe that fills the cache entry for `kind` (as for `facts`)."""
    name, verify = entry(*kind), not kind

    def search(task: Task) -> None:
        blob = disk_cache.load(name)  # another process may have stored it meanwhile
        found = _probe(task, verify=verify) if blob is None else Facts(json.loads(blob))
        if task.stopped:
            return
        if blob is None and found.lines:
            disk_cache.store(name, json.dumps(found.lines).encode())
        recalled[name] = found

    what = "looks for devices and verifies their kernels" if verify else "looks for devices"
    return worker.begin(name, what, search)


def disturbance() -> str:
    """Return a sentence that says that other processes disturbed the probe whose results are known; or ""."""
    known = recalled[entry()]
    if known is None or known.others <= max(BUSY, BUSY_SHARE * (os.cpu_count() or 1)):
        return ""
    return f"Kernels were timed while other processes used {known.others:.1f} cores: gemm tune measures again."


def look() -> Facts:
    """Search for devices in a worker and return the results. Uses and stores no cached results."""
    found: list[Facts] = []
    worker.begin(object(), "looks for devices", lambda task: found.append(_probe(task, verify=False))).wait()
    return found[0]


def forget(kinds: Iterable[str] = ("probe", "begun", "drivers", "verified", "costs")) -> None:
    """Delete the results in this process, and the cache entries of these kinds on disk. The next use runs a new probe
    if the kinds include "probe".
    """
    recalled.clear()
    for kind in kinds:
        disk_cache.remove(entry(kind))


@lru_cache(8)
def entry(kind: str = "probe") -> str:
    """Return the name of a cache entry: `kind` and a fingerprint of the drivers and of all else that results depend on.

    The fingerprint is made without loading a driver. Entries of the probe depend on all kernel sources. The entry
    "verified", for kernels with `lazy_verify`, does not: each record in it has the fingerprint of one kernel's source.
    """
    registry.register_drivers()
    found: list[Any] = [sys.version, VERSION, [row.name for row in KERNELS]]
    if kind in ("probe", "begun"):
        found += [disk_cache.state(), engine.identity(), _without_ml_dtypes()]
    variables = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "GEMM_CPU_ISA", "GEMM_NUM_THREADS",
                 "GEMM_CPU_CACHES", "GEMM_LIBCUDA", "GEMM_LIBNVRTC")  # fmt: skip
    found += [os.environ.get(name) for name in variables]
    folders = [os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors", "/vendor/lib64", "/system/vendor/lib64"]
    folders += [folder for p in sys.path if os.path.isdir(folder := os.path.join(p, "pyopencl"))]
    files = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dri", "/dev/kgsl-3d0"]
    files += _listed(str(tuning_db.SHIPPED), "", ".json")
    for package in (package for p in sys.path for package in _listed(os.path.join(p, "nvidia"))):  # packages of CUDA
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
    """Return the sorted paths in `folder` whose names begin with `start` and end with `end`; [] if there is no folder.

    Path.glob takes ten times as long, and the first small product of a process waits for this function.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(start) and name.endswith(end)]


def _probe(task: Task, *, verify: bool) -> Facts:
    """Run workers until one finishes or `RESTARTS` of them have died. The step in which a worker dies counts as failed.

    If an earlier process ended during its probe, the results that it had stored on disk are used.

    Args:
        verify: whether to verify and time kernels, too. If not, the workers only search for devices.
    """
    begun = entry("begun")
    lines: list[Line] = json.loads((disk_cache.load(begun) if verify else None) or b"[]")
    # Skip kernels whose results are known, whether they passed or failed, and backends whose driver killed a worker.
    skip = [f"{line['kernel']} on {line['device']}" for line in lines if line["step"] == "kernel"]
    skip += [line["backend"] for line in lines if line.get("deadly")]
    if verify:
        task.leave = lambda: disk_cache.store(begun, json.dumps(lines).encode()) if lines else None
    log.info("gemm %s, once for these drivers", "verifies kernels" if verify else "looks for devices")
    for _ in range(RESTARTS):
        step, cause = _run_worker(task, {"skip": skip, "verify": verify}, lines)
        if cause is None or task.stopped:
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
    if verify and not task.stopped:
        disk_cache.remove(begun)
    if not all(line["ok"] for line in lines if line["step"] == "kernel"):
        task.child.close()  # a failure may have spoilt the driver's state; the next task starts a new process
    return Facts(lines)


def _run_worker(task: Task, request: Line, lines: list[Line]) -> tuple[str | None, str | None]:
    """Send `request` to the worker. Add the new lines of the answer to `lines`, and their kernels to request["skip"].

    Returns:
        (last step that the worker began, or None; how the worker died or why no worker could start, or None).
    """
    step = cause = None
    for line in task.child.ask(request, worker.timeout()):
        if line["step"] == "begin":
            step = line["what"]
        elif line["step"] in ("died", "refused"):
            cause = line["cause"]
        elif line not in lines:
            lines.append(line)
            if line["step"] == "kernel":
                request["skip"].append(f"{line['kernel']} on {line['device']}")
    return step, cause


def answer(request: Line) -> Iterator[Line]:
    """Answer a request in the worker: verify the kernel that the request names, or else explore all devices."""
    return _check(request) if "kernel" in request else explore(request)


def _check(request: Line) -> Iterator[Line]:
    name, key = request["kernel"], request["device"]
    kernel, error = BY_NAME[name], ""
    backend = registry.backend(kernel.backend)
    # Find the device by name and driver. Its key may belong to a context that exists in the caller's process only.
    about = request["name"], request["driver"]
    try:
        alike = [device for device in backend.devices() if (device.name, device.driver) == about]
        device = next(device for device in sorted(alike, key=lambda device: device.key != key))
        yield from _checked(kernel, device, ordered=request["ordered"])
    except (BackendUnavailable, StopIteration) as failure:  # a lack of the device is no fault of the kernel
        left_out = failure if isinstance(failure, BackendUnavailable) else backend.left_out.get(key, "it is not there")
        yield {"step": "refused", "cause": f"cannot use {key}: {left_out}"}
        return
    except Exception as failure:  # any exception means that the kernel failed
        error = str(failure) or repr(failure)
    yield {"step": "kernel", "kernel": name, "device": key, "ok": not error, "error": error}


def _checked(kernel: Kernel, device: Device, *, ordered: bool = True) -> Iterator[Line]:
    """Verify `kernel`. Yield a line after each check, because each line of an answer restarts the time limit.

    `ordered` is as for `planned`.
    """
    from gemm.select.verify.suite import planned

    for _, check in planned(registry.backend(kernel.backend), kernel, device, full=False, ordered=ordered):
        check()
        yield {"step": "begin", "what": f"{kernel.label} on {device.key}"}


def explore(request: Line) -> Iterator[Line]:
    """Search for devices and, if the request says `verify`, verify and time their kernels.

    Backends and kernels in the request's `skip` are left out. Yields a line before each step, and a line for each
    unavailable backend, each device and each kernel. With `verify`, the last line has the number of cores that other
    processes used meanwhile.
    """
    from gemm.select.measure import measure

    skip, load = request["skip"], threads.OtherProcesses()
    for name in BACKENDS:
        if name in skip or (name in HOST_BACKENDS and not request["verify"]):
            continue
        yield {"step": "begin", "what": name}
        try:
            backend = registry.backend(name)
            devices = backend.devices()
        except Exception as error:  # BackendUnavailable, or any error of a broken driver library
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
                    yield from _checked(kernel, device)
                    yield {**record, "ok": True, **vars(measure(backend, kernel, device))}
                except Exception as error:  # any exception means that the kernel failed
                    yield {**record, "error": str(error) or repr(error)}
    if request["verify"]:
        yield {"step": "load", "others": load.cores()[0]}


def _variants(backend: str, device: Device) -> Iterator[Kernel]:
    """Yield the kernels of `backend` that can run on `device` and that `auto` may choose there.

    Each kernel comes first with the catalog's parameters, then with other parameters that need verification
    (`tuning_db.variants`).

    Kernels with `lazy_verify` are left out, with one exception. If the GPU model predicts the device's times, the
    simplest kernel of float32 is included, to measure the link between host and device.
    """
    plain = simplest(backend, "float32")
    for row in KERNELS:
        lazy = row.lazy_verify and not (row is plain and "sm_count" in device.limits)
        if row.backend != backend or row.dtype == "*" or lazy or not row.chosen_on(device.kind, device.features):
            continue
        if not set(row.needs) - device.features and not missing_type(row):
            yield row
            yield from tuning_db.variants(row, device)


def missing_type(row: Kernel) -> str:
    """Return the name of a type of `row` that NumPy lacks because ml_dtypes is not installed; or ""."""
    extra = [name for name in (row.dtype, *row.inputs) if name in EXTRA]
    return extra[0] if extra and _without_ml_dtypes() else ""


def _without_ml_dtypes() -> bool:
    return importlib.util.find_spec("ml_dtypes") is None


if __name__ == "__main__":
    worker.serve(answer)
