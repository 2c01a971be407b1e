"""Find faults of an installation, and their remedies: `gemm info --check`.

A check is a generator function in a module of this package that yields findings; CHECKS lists the checks. Drivers are
loaded in worker processes only, because loading a driver can crash or hang the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gemm.cli.checks import drivers, environment, processors, storage
from gemm.cli.checks.finding import Finding

Check = Callable[[], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "variables": environment.variables,
    "versions": environment.versions,
    "cache": storage.cache,
    "pyopencl's caches": storage.caches_of_others,
    "engine": processors.engine,
    "threads": processors.threads,
    "permissions": drivers.permissions,
    "Android": drivers.android,
    "OpenCL drivers": drivers.installed,
    "devices": drivers.devices,
    "verification": drivers.verification,
}
"""The checks, in the order in which they run."""


class Report(NamedTuple):
    """The result of an examination: {check: its findings}."""

    found: dict[str, list[Finding]]

    @property
    def wrong(self) -> int:
        """The number of findings that require action; notes do not count."""
        return sum(finding.severity != "note" for findings in self.found.values() for finding in findings)

    def document(self) -> dict[str, Any]:
        """The report as a JSON document."""
        found = {check: [finding.document() for finding in findings] for check, findings in self.found.items()}
        return {"wrong": self.wrong, "checks": found}


def examine(checks: Mapping[str, Check] | None = None) -> Report:
    """Run `checks`, by default CHECKS. This takes seconds, because drivers are loaded in worker processes."""
    return Report({name: list(check()) for name, check in (CHECKS if checks is None else checks).items()})
