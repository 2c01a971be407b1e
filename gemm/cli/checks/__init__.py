"""What is wrong with an installation and how to put it right: `gemm doctor`.

A check is a function in a module here that yields findings; CHECKS is the list of them. Drivers are loaded in child
processes only.
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
"""What is examined, in this order."""


class Report(NamedTuple):
    """What came of the checks: {check: its findings}."""

    found: dict[str, list[Finding]]

    @property
    def wrong(self) -> int:
        """How many findings call for something to be done; notes do not."""
        return sum(finding.severity != "note" for findings in self.found.values() for finding in findings)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        found = {check: [finding.document() for finding in findings] for check, findings in self.found.items()}
        return {"wrong": self.wrong, "checks": found}


def examine(checks: Mapping[str, Check] | None = None) -> Report:
    """Carry out `checks`, CHECKS by default. Takes seconds: drivers are loaded in children."""
    return Report({name: list(check()) for name, check in (CHECKS if checks is None else checks).items()})
