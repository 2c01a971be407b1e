"""The conformance suite: every check on every kernel of the catalog, on every device that can run it.

Select with -k: a kernel ("sgemm_neon_4x4"), a check ("small_sizes") or both.
"""

from __future__ import annotations

import conformance.system  # noqa: F401  (adds its checks)
from conformance.chain import CHAIN_CHECKS
from conformance.checks import CHECKS
from conformance.subject import Subject


def test_kernel(subject: Subject, check: str) -> None:
    {**CHECKS, **CHAIN_CHECKS}[check](subject)
