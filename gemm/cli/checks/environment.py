"""Checks of environment variables and of the versions of the package's dependencies."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gemm.backends.cpu import CpuBackend
from gemm.cli.checks.finding import Finding
from gemm.core import VERSION, threads
from gemm.core.errors import BackendUnavailable
from gemm.frontend.report import VARIABLES
from gemm.select import calibration, worker

OTHERS = ("GEMM_COMMIT", "GEMM_BUILD_MACHINE", "GEMM_CI_CACHE", "GEMM_EMULATE_AMX", "GEMM_TEST_EFFORT",
          "GEMM_TEST_REQUIRE")  # fmt: skip
"""Variables of the build and of the tests, which are valid, too."""


def variables() -> Iterator[Finding]:
    """Find GEMM_ variables that the package does not read, and invalid values of variables that it reads."""
    known, meant = (*VARIABLES, *OTHERS), {name.removeprefix("GEMM_"): name for name in VARIABLES}
    for name in sorted(name for name in os.environ if name.startswith("GEMM_") and name not in known):
        like = difflib.get_close_matches(name.removeprefix("GEMM_"), meant, 1)
        remedy = f"Set {meant[like[0]]} instead" if like else f"Unset it; these are read: {', '.join(VARIABLES)}"
        yield Finding("error", f"{name} is set, but nothing reads it", "it has no effect", remedy,
                      "variables")  # fmt: skip
    for read in (threads.granted, worker.timeout, calibration.adapts):
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
    if os.environ.get("GEMM_CPU_ISA"):
        try:
            CpuBackend().devices()
        except (BackendUnavailable, ValueError) as error:
            # Other causes are reported by other checks.
            if isinstance(error, BackendUnavailable) and "GEMM_CPU_ISA" in error.cause:
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
        found = re.match(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?[^;]*$", line)
        if not found:  # a requirement of an extra, or of another system
            continue
        name, least = found[1], found[2] or "0"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
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
