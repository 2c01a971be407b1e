"""What this installation and machine offer: kernels, backends, libgemm (docs/c-api.md), and the facts that `gemm info`,
`gemm.show_config()` and recorded results contain.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemm.backends import registry
from gemm.catalog import BACKENDS, HOST_BACKENDS, KERNELS, Kernel
from gemm.core import VERSION, disk_cache, engine, threads
from gemm.core.errors import BackendUnavailable, link
from gemm.core.problem import Device
from gemm.select import candidates, probe, verification


@dataclass(frozen=True, repr=False)
class KernelStatus:
    """The status of a catalog row on this machine.

    Attributes:
        available: whether at least one device of this machine can run the kernel.
        reason: why no device can run the kernel, or "".
        devices: the keys of the devices that can run the kernel.
        untrusted: {key of a device that can run the kernel: why gemm chooses the kernel on this device only if the user
            names it}. Contains only the reasons that are known so far.
    """

    name: str
    backend: str
    target: str
    dtype: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    row: Kernel
    untrusted: Mapping[str, str]

    def __repr__(self) -> str:
        outcome = f"runs on {', '.join(self.devices)}" if self.available else f"not available: {self.reason}"
        return f"<KernelStatus {self.name} {outcome}>"


def kernels() -> list[KernelStatus]:
    """The status of each kernel of the catalog on this machine. Loads every backend."""
    found = []
    for row in KERNELS:
        able, reasons, untrusted = [], [], {}
        try:
            for device in probe.devices(row.backend):
                if reason := candidates.unavailable(row, device):
                    reasons.append(reason)
                    continue
                able.append(device.key)
                if cause := verification.known_to_fail(row, device):
                    untrusted[device.key] = cause
        except BackendUnavailable as error:
            reasons.append(error.told)
        reason = "" if able else "; ".join(dict.fromkeys(reasons))
        names = row.name, row.backend, row.target, row.dtype
        found.append(KernelStatus(*names, bool(able), reason, tuple(able), row, untrusted))
    return found


def backends() -> dict[str, str]:
    """{backend: "" if the backend can be used here, else the cause and the remedy}. Loads every backend.

    "hybrid" is not in the result: backend="hybrid" can be used if any backend except "cpu" and "numpy" can be used.
    """
    return dict.fromkeys(BACKENDS, "") | all_devices()[1]


def all_devices() -> tuple[list[Device], dict[str, str]]:
    """All working devices, and {backend: why it is missing}."""
    found: list[Device] = []
    missing = {}
    for name in BACKENDS:
        try:
            found += probe.devices(name)
        except BackendUnavailable as error:
            missing[name] = str(error)
    return found, missing


_PACKAGE = Path(__file__).resolve().parents[1]


def get_include() -> str:
    """The folder of `gemm_cblas.h`, for the option -I of a C compiler."""
    return str(_PACKAGE / "include")


def get_library() -> str:
    """The path of the shared library libgemm, for a C compiler or a loader.

    Raises FileNotFoundError if the package was built without libgemm.
    """
    library = _PACKAGE / "lib" / "libgemm.so"
    if not library.is_file():
        raise FileNotFoundError(f"{library} does not exist: build it with `python build.py` in a checkout of gemm")
    return str(library)


def compiler_words() -> str:
    """The options of a C compiler that compile and link a program with libgemm.

    The options include the library's folder as run path: the program searches this folder for libgemm when it starts.
    """
    import shlex

    folder = str(Path(get_library()).parent)
    return shlex.join([f"-I{get_include()}", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgemm"])


VARIABLES = {
    "GEMM_NUM_THREADS": "threads of the cpu backend; default: the cores that this process may use",
    "GEMM_CPU_ISA": "instruction set of the cpu backend, such as scalar or avx2; an error where the CPU lacks it",
    "GEMM_CPU_CACHES": "caches for which the cpu backend chooses its blocks, such as 32/8,512/1,8192/2",
    "GEMM_CACHE_DIR": "folder of compiled kernels, of the probe's facts and of what was tuned",
    "GEMM_ADAPT": "0: predictions are not corrected by measured times while the program runs",
    "GEMM_PROBE_TIMEOUT": "seconds that a driver may be silent when devices are looked for or tuned; default 60",
    "GEMM_LIBCUDA": "the CUDA driver's library instead of libcuda.so.1",
    "GEMM_LIBNVRTC": "the NVRTC library instead of those that are found",
}
"""The environment variables that the package reads, and the meaning of each."""

_RELATED = ("cffi", "pyopencl", "pocl-binary-distribution", "intel-opencl-rt", "nvidia-cuda-nvrtc",
            "nvidia-cuda-nvrtc-cu12")  # fmt: skip


def versions() -> dict[str, str]:
    """{distribution: version} of the package and its dependencies, without distributions that are not installed."""
    from importlib import metadata

    found = {"gemm": VERSION, "python": platform.python_version(), "numpy": np.__version__}
    for name in _RELATED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if blas := registry.backend("numpy").devices()[0].driver:
        found["numpy's BLAS"] = blas
    return found


def machine() -> dict[str, Any]:
    """Operating system, architecture, name of the CPU, and the number of hardware threads that this process may use."""
    system, architecture = platform.platform(), platform.machine()
    return {"system": system, "architecture": architecture, "cpu": engine.cpu_name(), "cpus": threads.affinity()}


def commit() -> str | None:
    """The git commit of the checkout that contains the package, with "-dirty" appended if files are changed.

    If the environment variable GEMM_COMMIT is set, the result is its value. The variable is for copies of a checkout
    without its git folder, such as those on devices under test. If it is not set, the result is None outside of a
    checkout, without git, and before the first commit.
    """
    import subprocess

    root = _PACKAGE.parent
    copied = os.environ.get("GEMM_COMMIT")
    if copied or not (root / ".git").exists():
        return copied
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):  # git is not installed, or there is no commit yet
        return None
    return done.stdout.strip()


def _pathless(word: str) -> str:
    """A command-line argument FILE or NAME=FILE, without the folders of an absolute path. The folders would identify
    the machine.
    """
    name, equals, path = word.rpartition("=")
    return f"{name}{equals}{Path(path).name}" if os.path.isabs(path) else word


def head() -> dict[str, Any]:
    """The first fields of every recorded result: date, command, commit, versions, machine and environment."""
    from datetime import datetime, timezone

    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    command = [_pathless(word) for word in sys.argv[1:]]
    return {
        "date": now, "command": command, "commit": commit(), "versions": versions(), "machine": machine(),
        "environment": environment,
    }  # fmt: skip


def device_facts(device: Device) -> dict[str, Any]:
    """The fields of a Device, for JSON."""
    names = "key", "backend", "name", "platform", "driver", "kind", "unified"
    own = {name: getattr(device, name) for name in names}
    return {**own, "features": sorted(device.features), "limits": dict(device.limits)}


def cache_facts() -> dict[str, Any]:
    """The cache's folder (None if there is no usable folder), number of entries, size in bytes, and age of the probe's
    results in seconds.
    """
    folder = disk_cache.cache_dir()
    if folder is None:
        return {"folder": None, "entries": 0, "bytes": 0, "probe_age": None}
    sizes, age = [], None
    for file in folder.iterdir():
        try:
            status = file.stat()
        except OSError:  # another process has just replaced the file
            continue
        if file.is_file() and not file.name.startswith("."):
            sizes.append(status.st_size)
        if file.name == probe.entry():
            age = max(0.0, time.time() - status.st_mtime)
    return {"folder": str(folder), "entries": len(sizes), "bytes": sum(sizes), "probe_age": age}


def backend_facts(name: str) -> dict[str, Any]:
    """A backend's devices, or the cause and the remedy if the backend is not available. Loads the backend."""
    try:
        devices = probe.devices(name)
    except BackendUnavailable as error:
        return {"available": False, "cause": error.cause, "remedy": error.remedy, "broken": [], "devices": []}
    found, broken = [device_facts(device) for device in devices], registry.backend(name).broken()
    return {"available": True, "cause": "", "remedy": "", "broken": broken, "devices": found}


def kernel_facts() -> list[dict[str, Any]]:
    """The status of each catalog row on this machine. Loads every backend."""
    return [
        {"name": k.name, "backend": k.backend, "target": k.target, "dtype": k.dtype, "ordered": k.row.ordered,
         "available": k.available, "devices": list(k.devices), "reason": k.reason,
         "untrusted": dict(k.untrusted), "about": k.row.about}
        for k in kernels()
    ]  # fmt: skip


def facts() -> dict[str, Any]:
    """All facts, for JSON."""
    return {
        **head(),
        "cache": cache_facts(), "backends": {name: backend_facts(name) for name in BACKENDS},
        "kernels": kernel_facts(),
    }  # fmt: skip


def sections(*, every: bool = True) -> Iterator[str]:
    """The text of `gemm info`, in pieces.

    Args:
        every: True: list all kernels. False: give only the number of kernels that each device can run, and at most five
            kernels that failed verification.
    """
    built = versions()
    here = machine()
    at = f" ({revision[:12]}{'-dirty' if revision.endswith('-dirty') else ''})" if (revision := commit()) else ""
    yield f"gemm {built.pop('gemm')}{at} in {_PACKAGE}"
    yield f"Python {built.pop('python')} ({sys.executable}); " + ", ".join(f"{n} {v}" for n, v in built.items())
    yield f"{here['cpu']}, {here['cpus']} hardware threads; {here['system']}"
    for name, meaning in VARIABLES.items():
        if name in os.environ:
            yield f"{name}={os.environ[name]}: {meaning}"
    yield _cache_text(cache_facts())
    if disturbance := probe.disturbance():
        yield disturbance
    yield "\nBackends"
    for name in BACKENDS:
        yield from _backend_text(name, backend_facts(name))
    yield "\nKernels" if every else "\nKernels that can run here (each by name, and why others cannot: gemm info --all)"
    rows = kernel_facts()
    for key, count in Counter(key for row in rows for key in row["devices"]).items():
        types = dict.fromkeys(row["dtype"] for row in rows if key in row["devices"])
        yield f"  {key:9} {count:3} of {len(rows)}: {', '.join(types)}"
    failed = [row for row in rows if row["untrusted"]]
    for row in rows if every else failed[:5]:
        mark, where = ("+", ", ".join(row["devices"])) if row["available"] else ("-", row["reason"])
        if row["reason"].startswith(f"{row['backend']}: "):
            where = f"{row['backend']} is not available, see above"
        yield f"  {mark} {row['name']:32} {row['dtype']:8} {where}"
        for device, cause in row["untrusted"].items():
            yield f"      not chosen on {device} unless named: {cause.splitlines()[0]}"
    if len(failed) > 5 and not every:
        yield f"  and {len(failed) - 5} more that are not chosen unless named"


def show(*, every: bool) -> None:
    """Print `sections`, wrapped at the width of the terminal.

    Each piece is printed immediately. If a driver aborts the process, the earlier pieces are already visible.
    """
    from gemm.core.text import wrapped  # imported here: `import gemm` needs no text

    for section in sections(every=every):
        print(wrapped(section), flush=True)


def show_config() -> None:
    """Print what `gemm info` prints: versions, devices, kernels and caches of this installation, for bug reports."""
    show(every=False)


def on_this_cpu(backend: str, kind: str) -> bool:
    """Whether a driver runs the kernels of a device of this backend and kind on the cores of the cpu backend."""
    return kind == "cpu" and backend not in HOST_BACKENDS


def _cache_text(cache: dict[str, Any]) -> str:
    from gemm.core.text import duration

    if cache["folder"] is None:
        return "Cache: none; kernels are compiled anew in each process (see the log for the cause)"
    age = cache["probe_age"]
    known = "devices not looked for yet" if age is None else f"devices looked for {duration(age)} ago"
    count = "1 entry" if cache["entries"] == 1 else f"{cache['entries']} entries"
    return f"Cache: {cache['folder']}, {count}, {cache['bytes'] / 1024:.0f} KiB; {known}"


def _backend_text(name: str, facts: dict[str, Any]) -> Iterator[str]:
    if not facts["available"]:
        yield f"  - {name}: {facts['cause']}"
        if facts["remedy"]:
            yield f"      to get it: {facts['remedy']} ({link(name)})"
    for driver in facts["broken"]:
        yield f"  - {name}: a driver does not load: {driver}"
    for device in facts["devices"]:
        origin = ", ".join(text for text in (device["platform"], device["driver"]) if text)
        kind = "this computer's CPU" if on_this_cpu(name, device["kind"]) else device["kind"]
        limits = device["limits"]
        threads = f", {limits['threads']} threads" if "threads" in limits else ""
        yield f"  + {device['key']}: {device['name']}{f' ({origin})' if origin else ''}, {kind}{threads}"
        if device["features"]:
            yield f"      {' '.join(device['features'])}"
