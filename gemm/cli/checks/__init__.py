"""Find faults of an installation, and their remedies: `gemm info --check`.

A check is a generator function in a module of this package that yields findings; gemm.cli.info lists the checks.
Drivers are loaded in worker processes only, because loading a driver can crash or hang the process.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from gemm.core.errors import link


class Finding(NamedTuple):
    """One finding of a check.

    Attributes:
        severity: "error": something does not work. "warning": something works less well, or unsafely. "note": nothing
            is wrong, but the user may not know this.
        what: the finding, in one line.
        why: the cause or the consequence of the finding.
        remedy: what to do, or "".
        about: a key of gemm.core.errors.PAGES, which selects the page of the documentation.
    """

    severity: Literal["error", "warning", "note"]
    what: str
    why: str
    remedy: str
    about: str

    def document(self) -> dict[str, Any]:
        """The finding as a JSON object, with the address `docs` instead of the key `about`."""
        return {"severity": self.severity, "what": self.what, "why": self.why, "remedy": self.remedy,
                "docs": link(self.about)}  # fmt: skip
