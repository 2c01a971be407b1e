"""One conformance suite for every kernel of the catalog: checks.py, chain.py, engine.py and system.py, which
test_kernels.py runs.

A check is a function of a Subject, something that multiplies like `gemm.gemm`; it knows neither pytest nor dispatch,
so that test_mutants.py can show what each check catches.
"""

from conformance import chain, checks, engine, system
from conformance.subject import CHAIN_CHECKS, CHECKS

__all__ = ["ALL_CHECKS", "CHAIN_CHECKS", "CHECKS", "chain", "checks", "engine", "system"]

ALL_CHECKS = {**CHECKS, **CHAIN_CHECKS}
