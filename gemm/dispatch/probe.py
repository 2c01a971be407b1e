"""What this machine's devices are and can do: found in a child process, remembered on disk.

A driver may abort, hang or compute garbage when it is first touched. The child (`python -m gemm.dispatch.probe`) takes
that risk: it loads each backend, verifies each kernel on each device (gemm.verify) and measures its rates, printing one
JSON line a step. The parent reads them under a time limit; a step that kills or hangs the child costs that kernel, and
the child is started again without it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm import sources
from gemm.catalog import BACKENDS, KERNELS, Kernel
from gemm.dispatch.cost import Rates
from gemm.problem import Device

log = logging.getLogger("gemm")

RESTARTS = 4
"""How many steps may kill the child before the probe settles for what it has."""


def timeout() -> float:
    """Seconds that the child may be silent, i.e. spend in one step: $GEMM_PROBE_TIMEOUT or 60."""
    text = os.environ.get("GEMM_PROBE_TIMEOUT", "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"GEMM_PROBE_TIMEOUT must be a positive number of seconds, not {text!r}")
    return seconds


class Facts:
    """What a probe found.

    Attributes:
        devices: {device key: {"name", "driver", "backend", "kind"}}.
        kernels: {(kernel name, device key): {"ok", "error", "launch", "flops", "upload", "download"}}.
        unavailable: {backend: cause and remedy}.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self.devices = {x["device"]: x for x in lines if x["step"] == "device"}
        self.kernels = {(x["kernel"], x["device"]): x for x in lines if x["step"] == "kernel"}
        self.unavailable = {x["backend"]: x["cause"] for x in lines if x["step"] == "unavailable"}

    def of(self, kernel: Kernel, device: Device) -> dict[str, Any] | None:
        """The record of `kernel` on `device`, or on a device of the same name and driver (another context)."""
        for key, facts in self.devices.items():
            if (
                facts["backend"] == device.backend
                and facts["name"] == device.name
                and (facts["driver"] == device.driver)
            ):
                return self.kernels.get((kernel.name, key))
        return None

    def rates(self, kernel: Kernel, device: Device) -> Rates | None:
        record = self.of(kernel, device)
        if record is None or not record["ok"]:
            return None
        return Rates(record["launch"], record["flops"], record["upload"], record["download"])


_lock = threading.Lock()


def facts(*, run: bool) -> Facts | None:
    """The machine's facts: from this process, from disk, or (if `run`) from a new probe; None if not known yet."""
    with _lock:
        known = _remembered()
        if known is None and run:
            known = _probe()
            blob = json.dumps(known.lines).encode()
            sources.store(entry(), blob)
            _memory[entry()] = known
        return known


def forget() -> None:
    """Drop what is remembered in this process and on disk, so that the next need probes anew."""
    with _lock:
        _memory.clear()
        folder = sources.cache_dir()
        if folder is not None:
            (folder / entry()).unlink(missing_ok=True)


_memory: dict[str, Facts] = {}


def _remembered() -> Facts | None:
    name = entry()
    if name not in _memory:
        blob = sources.load(name)
        if blob is None:
            return None
        _memory[name] = Facts(json.loads(blob))
    return _memory[name]


@lru_cache(maxsize=1)
def entry() -> str:
    """The cache entry's name: a fingerprint of the drivers, taken without loading any."""
    found: list[Any] = [sys.version, sources.version(), [row.name for row in KERNELS]]
    variables = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "GEMM_CPU_ISA", "GEMM_NUM_THREADS")
    found += [os.environ.get(name) for name in variables]
    folders = [os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors", "/vendor/lib64", "/system/vendor/lib64"]
    folders += [str(Path(p, "pyopencl")) for p in sys.path if Path(p, "pyopencl").is_dir()]
    files = [Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dri"), Path("/dev/kgsl-3d0")]
    for folder in folders:
        files += sorted(Path(folder).glob("*.icd")) or sorted(Path(folder).glob("libOpenCL*")) or [Path(folder)]
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        text = file.read_text(errors="replace") if file.suffix == ".icd" or "nvidia/version" in str(file) else ""
        found.append((str(file), status.st_mtime_ns if file.is_file() else 0, text))
        library = Path(text.strip())
        if file.suffix == ".icd" and library.is_file():
            found.append((library.stat().st_size, library.stat().st_mtime_ns))
    return "probe-" + hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def _probe() -> Facts:
    """Run children until one finishes or too many died; each death blames the step it died in."""
    lines: list[dict[str, Any]] = []
    skip: list[str] = []
    log.info("gemm looks for devices, once for these drivers")
    for _ in range(RESTARTS):
        step, cause = None, ""
        for line in _child(skip):
            if line["step"] == "begin":
                step = line["what"]
            elif line["step"] == "died":
                cause = line["cause"]
            elif line["step"] == "end":
                return Facts(lines)
            elif line not in lines:
                lines.append(line)
        if step is None:
            break
        skip.append(step)
        log.warning("gemm does without %s: the probe %s there", step, cause)
        name, _, device = step.partition(" on ")
        if device:
            lines.append({"step": "kernel", "kernel": name, "device": device, "ok": False, "error": cause})
        else:
            lines.append({"step": "unavailable", "backend": name, "cause": f"its driver {cause} in a child process"})
    return Facts(lines)


def _child(skip: list[str]) -> Iterator[dict[str, Any]]:
    """The child's lines, ended by {"step": "died", "cause": ...} unless it said "end" itself."""
    command = [sys.executable, "-m", "gemm.dispatch.probe", *skip]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_PACKAGES), *_python_path()])},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        last = time.monotonic()
        hung = threading.Event()

        def watch() -> None:
            while process.poll() is None:
                if time.monotonic() - last > limit:
                    hung.set()
                    process.kill()
                    return
                time.sleep(0.05)

        limit = timeout()
        threading.Thread(target=watch, daemon=True).start()
        for text in process.stdout:
            last = time.monotonic()
            if not text.startswith(_MARK):
                continue  # drivers print what they like
            line = json.loads(text[len(_MARK) :])
            yield line
            if line["step"] == "end":
                process.kill()  # a driver may hang at exit, too
                return
        code = process.wait()
    yield {"step": "died", "cause": "hung" if hung.is_set() else f"ended with status {code}"}


_MARK = "gemm-probe "
_PACKAGES = Path(__file__).resolve().parents[2]


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _say(**line: Any) -> None:
    print(_MARK + json.dumps(line), flush=True)


def main(skip: list[str]) -> None:
    """The child: every backend, device and kernel not in `skip`."""
    from gemm.dispatch import registry
    from gemm.errors import BackendUnavailable, KernelFailed
    from gemm.verify import Mismatch, measure, quick

    for name in BACKENDS:
        if name in skip:
            continue
        _say(step="begin", what=name)
        try:
            backend = registry.backend(name)
            devices = backend.devices()
        except BackendUnavailable as error:
            _say(step="unavailable", backend=name, cause=str(error))
            continue
        for device in devices:
            _say(step="device", device=device.key, backend=name, name=device.name, driver=device.driver,
                 kind=device.kind)  # fmt: skip
            for kernel in KERNELS:
                what = f"{kernel.name} on {device.key}"
                if kernel.backend != name or kernel.dtype == "*" or device.kind not in kernel.auto:
                    continue
                if what in skip or set(kernel.needs) - device.features:
                    continue
                _say(step="begin", what=what)
                try:
                    quick(backend, kernel, device)
                    rates = measure(backend, kernel, device)
                except (KernelFailed, Mismatch) as error:
                    _say(step="kernel", kernel=kernel.name, device=device.key, ok=False, error=str(error))
                else:
                    _say(step="kernel", kernel=kernel.name, device=device.key, ok=True, error="", **vars(rates))
    _say(step="end")


if __name__ == "__main__":
    main(sys.argv[1:])
