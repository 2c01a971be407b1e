"""Checks of the installation: environment variables, versions, cache folders, the C engine, the CPUs it may use."""

from __future__ import annotations

import difflib
import importlib
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gemm.backends.cpu import CpuBackend
from gemm.catalog import KERNELS
from gemm.cli.checks import Finding
from gemm.core import VERSION, disk_cache
from gemm.core import threads as granting
from gemm.core.engine import REMEDY, features, get_num_threads
from gemm.core.engine import engine as load
from gemm.core.errors import BackendUnavailable
from gemm.frontend.inventory import VARIABLES
from gemm.select import calibration, worker

OTHERS = ("GEMM_COMMIT", "GEMM_BUILD_MACHINE", "GEMM_CI_CACHE", "GEMM_EMULATE_AMX", "GEMM_TEST_EFFORT",
          "GEMM_TEST_REQUIRE")  # fmt: skip
"""Variables that are valid as well: those that only the build and the tests read, and GEMM_COMMIT, which replaces the
git commit in recorded results (gemm.frontend.inventory)."""
LEAST = 64 << 20
"""Bytes that should be free in the cache folder. The compiled kernels of an H200 take about ten MiB."""
UNPICKLING = ("pyopencl", "pytools")
"""Libraries that have folders in the user's cache folder and unpickle the files in them."""


def variables() -> Iterator[Finding]:
    """Find GEMM_ variables that the package does not read, and invalid values of variables that it reads."""
    known, meant = (*VARIABLES, *OTHERS), {name.removeprefix("GEMM_"): name for name in VARIABLES}
    for name in sorted(name for name in os.environ if name.startswith("GEMM_") and name not in known):
        like = difflib.get_close_matches(name.removeprefix("GEMM_"), meant, 1)
        remedy = f"Set {meant[like[0]]} instead" if like else f"Unset it; these are read: {', '.join(VARIABLES)}"
        yield Finding("error", f"{name} is set, but nothing reads it", "it has no effect", remedy,
                      "variables")  # fmt: skip
    for read in (granting.granted, worker.timeout, calibration.adapts):
        try:
            read()
        except ValueError as error:
            yield Finding("error", str(error).partition(" (")[0], "no product is computed", "Correct or unset it",
                          "variables")  # fmt: skip
    for name in ("GEMM_LIBCUDA", "GEMM_LIBNVRTC"):
        path = os.environ.get(name, "")
        if os.sep in path and not Path(path).is_file():
            yield Finding("error", f"{name} names {path}, which is not a file", "the cuda backend is not available",
                          "Correct or unset it", "variables")  # fmt: skip
    if set_ones := [name for name in ("GEMM_CPU_ISA", "GEMM_CPU_CACHES") if os.environ.get(name)]:
        try:
            CpuBackend().devices()
        except (BackendUnavailable, ValueError) as error:
            # Other checks report other causes.
            if isinstance(error, BackendUnavailable) and any(name in error.cause for name in set_ones):
                yield Finding("error", error.cause, "the cpu backend is not available", error.remedy, "variables")


def versions() -> Iterator[Finding]:
    """Find dependencies that are missing or too old, and installed metadata that belongs to another version."""
    try:
        here, requirements = metadata.version("gemm"), metadata.requires("gemm") or []
    except metadata.PackageNotFoundError:
        yield Finding("warning", "the package is not installed", "its dependencies are unknown",
                      "Install it with pip", "versions")  # fmt: skip
        return
    if here != VERSION:
        yield Finding("warning", f"gemm {VERSION} runs, but {here} is installed", "two versions are mixed",
                      "Reinstall it: pip install .", "versions")  # fmt: skip
    for line in requirements:
        found = re.match(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?[^;]*(;.*)?$", line)
        if not found or "extra" in (found[3] or ""):
            continue
        name, least = found[1], found[2] or "0"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            # gemm requires this package only on some platforms. The package is pyopencl; the check `devices`
            # (drivers.py) reports what is missing without it.
            if found[3]:
                continue
            yield Finding(
                "error", f"{name} is not installed", f"gemm needs {line}", f'pip install "{line}"', "versions"
            )
            continue
        if _numbers(version) < _numbers(least):
            yield Finding("error", f"{name} {version} is too old", f"gemm needs {line}", f'pip install -U "{line}"',
                          "versions")  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, without trailing zeros."""
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[a-z+-]", version, maxsplit=1)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def cache() -> Iterator[Finding]:
    """Find a cache folder that cannot be used, is full, or has damaged entries."""
    folder = disk_cache.chosen_folder()
    refused = disk_cache.refusal(folder)
    if refused is not None:
        why = "each process searches for devices and compiles kernels again"
        yield Finding("error", f"the cache is not used: {refused[0]}", why, refused[1], "cache")
        return
    free = shutil.disk_usage(folder).free
    if free < LEAST:
        yield Finding("warning", f"{folder} has {free >> 20} MiB left", "there may be no space for compiled kernels",
                      "Free some space, or set GEMM_CACHE_DIR to a larger disk", "cache")  # fmt: skip
    name = f"check-{os.getpid()}"
    try:
        disk_cache.store(name, b"written")
        if disk_cache.load(name) != b"written":
            yield Finding("error", f"nothing can be stored in {folder}", "the disk is full, or a quota is reached",
                          "Free some space, or set GEMM_CACHE_DIR to another disk", "cache")  # fmt: skip
    finally:
        (folder / name).unlink(missing_ok=True)
    if damaged := disk_cache.damaged():
        names = " ".join(map(str, damaged[:3])) + " ..." * (len(damaged) > 3)
        yield Finding("warning", f"{len(damaged)} entries of {folder} are damaged or of another version",
                      "gemm ignores them", f"rm {names}", "cache")  # fmt: skip


def caches_of_others() -> Iterator[Finding]:
    """Find cache folders of UNPICKLING that other users may write to. Unpickling a file can run code from the file."""
    if os.name != "posix":
        return
    for name in UNPICKLING:
        folder = Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache", name)
        try:
            facts = folder.stat()
        except OSError:
            continue
        if facts.st_mode & 0o022 or facts.st_uid not in (0, os.geteuid()):
            yield Finding("error", f"others may write to {folder}", f"{name} runs what it finds there",
                          f"rm -r {folder}", "cache")  # fmt: skip


def engine() -> Iterator[Finding]:
    """Find C extensions that are missing, do not load or are too old; and CPUs that no vector kernel supports."""
    try:
        lib, able = load().lib, features()
    except BackendUnavailable as error:
        yield Finding("error", error.cause, "the cpu backend is not available", error.remedy, "engine")
        return
    # A free-threaded Python has no gemm._memo, which relies on the GIL.
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    for name in () if free_threaded else ("gemm._memo",):
        try:
            importlib.import_module(name)
        except ImportError as error:
            yield Finding("error", f"the C extension {name} does not load ({error})",
                          "repeated products take a slower path", REMEDY, "engine")  # fmt: skip
    rows = [row for row in KERNELS if row.backend == "cpu" and set(row.needs) <= able]
    missing = [row.name for row in rows if not hasattr(lib, row.name)]
    if missing:
        yield Finding("error", f"the engine lacks {', '.join(missing)}", "it is older than these kernels", REMEDY,
                      "engine")  # fmt: skip
    if all(row.target == "scalar" for row in rows):
        yield Finding("note", f"no vector kernel supports this CPU ({platform.machine()})",
                      "the kernels in plain C are used", "", "engine")  # fmt: skip


def threads() -> Iterator[Finding]:
    """Find limits that keep the engine from using all CPUs."""
    every = os.cpu_count() or 1
    usable, cores = granting.affinity(), granting.cores()
    if usable < every:
        yield Finding("note", f"this process may run on {usable} of {every} CPUs", "its CPU affinity is limited", "",
                      "threads")  # fmt: skip
    if cores < usable:
        yield Finding("note", f"a control group grants the time of {cores} of {usable} CPUs",
                      "more threads would only wait", "Raise the container's quota for more", "threads")  # fmt: skip
    try:
        wish = int(os.environ.get("GEMM_NUM_THREADS") or cores)
        count = get_num_threads()
    except (ValueError, BackendUnavailable):  # other checks report these errors
        return
    if wish > cores:
        yield Finding("warning", f"GEMM_NUM_THREADS={wish}, but {cores} CPUs are granted", f"{cores} threads are used",
                      "Unset it; gemm.set_num_threads sets any number", "threads")  # fmt: skip
    elif count == 1 < cores and wish > 1:
        yield Finding("warning", f"products use one thread, {cores} are granted",
                      "this process has set the limit", "gemm.set_num_threads(None)", "threads")  # fmt: skip
