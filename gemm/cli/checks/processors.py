"""Checks of the C engine and of the CPUs that it may use."""

from __future__ import annotations

import importlib
import os
import platform
import sysconfig
from collections.abc import Iterator

from gemm.catalog import KERNELS
from gemm.cli.checks.finding import Finding
from gemm.core import threads as granting
from gemm.core.engine import REMEDY, features, get_num_threads
from gemm.core.engine import engine as load
from gemm.core.errors import BackendUnavailable


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
