"""The conformance suite: every check on every kernel of the catalog, on every device that can run it.

Select with -k: a kernel ("sgemm_neon_4x4"), a check ("small_sizes") or both.
"""

from conformance import ALL_CHECKS


def test_kernel(subject, check):
    ALL_CHECKS[check](subject)
