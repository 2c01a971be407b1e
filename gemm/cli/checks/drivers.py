"""Checks of device drivers: may this user open the device files, does the driver load, does the driver find a device.

A library is loaded in a worker process, `python -m gemm.cli.checks.drivers`, so that a crash or a hang affects only the
worker.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from gemm.cli.checks import Finding
from gemm.select import probe
from gemm.select.worker import Child, Line, serve, timeout

GPUS = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/kgsl-3d0", "/dev/mali0")
"""Device files of GPUs on Linux, which drivers open."""
VENDORS = "/etc/OpenCL/vendors"
PHONE = "/vendor/lib64"
"""The folder of a phone's own OpenCL library."""
WRONG = ("cannot be imported", "newer than PoCL's compiler", "NVRTC")
"""Parts of messages. If the cause of a failure contains a part, the user must act, even on a machine without a GPU."""
WHEELS = ("x86_64", "AMD64", "aarch64", "arm64")
"""The machines on which gemm requires pyopencl, except on Android: see pyproject.toml."""


def permissions() -> Iterator[Finding]:
    """Find GPU device files that this user may not open."""
    for file in (file for pattern in GPUS for file in sorted(glob.glob(pattern))):
        if not os.access(file, os.R_OK | os.W_OK):
            group = _group(file)
            remedy = (
                f"usermod -aG {group} $USER, then log in again" if group not in ("", "root") else f"chmod a+rw {file}"
            )
            yield Finding(
                "error", f"this user may not open {file}", "its driver finds no device", remedy, "permissions"
            )


def _group(file: str) -> str:
    import grp  # not at the top of the file, because Windows lacks this module (and the device files)

    try:
        return grp.getgrgid(os.stat(file).st_gid).gr_name
    except (KeyError, OSError):
        return ""


def android() -> Iterator[Finding]:
    """Find missing folders in Termux's library path, without which the phone's driver does not load."""
    prefix = os.environ.get("PREFIX", "")
    if "com.termux" not in prefix:
        return
    path = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [folder for folder in (PHONE, f"{prefix}/lib") if folder not in path]
    if not Path(PHONE, "libOpenCL.so").exists():
        yield Finding("note", f"there is no {PHONE}/libOpenCL.so", "this phone has no OpenCL library for apps", "",
                      "android")  # fmt: skip
    elif wanted:
        yield Finding("error", f"LD_LIBRARY_PATH lacks {' and '.join(wanted)}", "its OpenCL driver is not found",
                      f"export LD_LIBRARY_PATH={PHONE}:$PREFIX/lib", "android")  # fmt: skip


def installed() -> Iterator[Finding]:
    """Find broken registrations of OpenCL drivers: unreadable or empty files, and libraries that do not load."""
    place = Path(os.environ.get("OCL_ICD_VENDORS") or VENDORS)
    if os.environ.get("OCL_ICD_VENDORS") and not place.exists():
        yield Finding("error", f"OCL_ICD_VENDORS names {place}, which does not exist", "OpenCL finds no driver",
                      "Correct or unset it", "drivers")  # fmt: skip
        return
    for file in [place] if place.is_file() else sorted(place.glob("*.icd")):
        library = str(file)  # OCL_ICD_VENDORS may also name a library directly
        if file.suffix == ".icd":
            try:
                library = file.read_text(encoding="utf-8", errors="replace").strip()
            except OSError as error:
                yield Finding("error", f"{file} cannot be read: {error.strerror}", "its driver is not found",
                              f"chmod a+r {file}", "drivers")  # fmt: skip
                continue
        if not library:
            yield Finding("error", f"{file} is empty", "it should name a driver's library", f"rm {file}", "drivers")
        elif cause := load(library):
            yield Finding("error", f"{file}: {library} does not load", cause,
                          f"Reinstall that driver, or remove it: rm {file}", "drivers")  # fmt: skip


def requires_pyopencl() -> bool:
    """Whether gemm requires pyopencl on this machine.

    Only Python for Android has sys.getandroidapilevel. (Before Python 3.13, sys.platform is "linux" on Android, too.)
    """
    return platform.machine() in WHEELS and not hasattr(sys, "getandroidapilevel")


def devices() -> Iterator[Finding]:
    """Find backends for which the probe's worker process has no device.

    A missing device is an error only if the machine has a GPU for the backend, if the driver crashed the worker
    process, or if the cause contains one of the texts WRONG. It is never an error that pyopencl is not installed where
    gemm does not require it.
    """
    files = [file for pattern in GPUS for file in sorted(glob.glob(pattern))]
    for line in probe.look().lines:
        if line["step"] != "unavailable":
            continue
        backend, deadly = line["backend"], bool(line.get("deadly"))
        cause = str(line.get("why", line["cause"])).removeprefix(f"{backend}: ")
        unused = [file for file in files if backend != "cuda" or "nvidia" in file]
        wrong = deadly or unused or any(words in cause for words in WRONG)
        why = "this machine seems to have no device that needs it"
        if wrong:
            why = f"{', '.join(unused[:3])} is not used" if unused else "the backend is not available"
        if "No module named 'pyopencl'" in cause and not requires_pyopencl():
            wrong, why = False, "gemm does not require it on this platform"
        remedy = line.get("remedy", "") if wrong else ""
        if deadly:
            remedy = "Remove or update it; GEMM_PROBE_TIMEOUT gives a slow one more time"
        about = "misbehaving" if deadly else "cpus" if "PoCL" in cause else backend
        yield Finding("error" if wrong else "note", f"{backend}: {cause}", why, remedy, about)


def verification() -> Iterator[Finding]:
    """Find kernels that failed verification on a device, in the probe or when they were first chosen."""
    for facts in (probe.recalled[probe.entry()], probe.recalled[probe.entry("verified")]):
        failed: dict[str, list[str]] = {}
        for (kernel, device), record in facts.kernels.items() if facts else ():
            if not record["ok"]:
                failed.setdefault(device, []).append(f"{kernel}: {record['error'].splitlines()[0]}")
        for device, errors in failed.items():
            yield Finding("warning", f"{len(errors)} kernels fail on {device}; {errors[0]}", "they are never chosen",
                          f"Update its driver; gemm verify --device {device} says more", "misbehaving")  # fmt: skip


def answer(request: Line) -> Iterator[Line]:
    """Try to load the library that the request names."""
    try:
        ctypes.CDLL(request["library"])
        yield {"step": "loaded", "cause": ""}
    except OSError as error:
        yield {"step": "failed", "cause": str(error)}


def load(library: str) -> str:
    """Try to load `library` in a worker process. Returns the cause of the failure, or "" if the library loads."""
    with Child(__name__) as process:
        lines = list(process.ask({"library": library}, timeout()))
    line = lines[-1]  # the last line has the outcome
    return f"its process {line['cause']}" if line["step"] == "died" else str(line["cause"])


if __name__ == "__main__":
    serve(answer)
