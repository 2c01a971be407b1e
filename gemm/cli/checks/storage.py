"""Checks of the package's cache folder, and of the cache folders of the libraries that the package loads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gemm.cli.checks.finding import Finding
from gemm.core import disk_cache

LEAST = 64 << 20
"""Bytes that should be free. The compiled kernels of an H200 take some ten MiB."""

UNPICKLING = ("pyopencl", "pytools")
"""Libraries that unpickle the files in their folders in the user's cache."""


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
    """Find cache folders of pyopencl and pytools that others may write to: unpickling a file can run code in it."""
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
