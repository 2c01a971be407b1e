"""The conformance suite: every check on every kernel of the catalog, on every device that can run it.

Select with -k: a kernel ("sgemm_neon_4x4"), a check ("small_sizes") or both.
"""

from __future__ import annotations

from conformance import ALL_CHECKS
from conformance.subject import Subject


def test_kernel(subject: Subject, check: str) -> None:
    ALL_CHECKS[check](subject)
