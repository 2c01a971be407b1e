"""What a check has found."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from gemm.core.errors import link


class Finding(NamedTuple):
    """One thing that a check says.

    Attributes:
        severity: "error": something does not work; "warning": it works less well, or not safely; "note": nothing is
            wrong, but it may not be known.
        what: what is so, in a line. why: what that means. remedy: what to do, or "".
        about: a key of gemm.core.errors.PAGES: where the documentation says more.
    """

    severity: Literal["error", "warning", "note"]
    what: str
    why: str
    remedy: str
    about: str

    def document(self) -> dict[str, Any]:
        """For JSON; `docs` instead of `about`."""
        return {"severity": self.severity, "what": self.what, "why": self.why, "remedy": self.remedy,
                "docs": link(self.about)}  # fmt: skip
