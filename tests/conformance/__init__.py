"""One conformance suite for every kernel of the catalog: checks.py, chain.py and system.py, run by test_kernels.py.

A check is a function of a Subject, something that multiplies like `gemm.gemm`; it knows neither pytest nor dispatch,
so that test_mutants.py can show what each check catches.
"""

from conformance import chain, checks, system
from conformance.subject import CHAIN_CHECKS, CHECKS

__all__ = ["ALL_CHECKS", "CHAIN_CHECKS", "CHECKS", "chain", "checks", "system"]

ALL_CHECKS = {**CHECKS, **CHAIN_CHECKS}
