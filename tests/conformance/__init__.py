"""One conformance suite for every kernel of the catalog: checks.py, chain.py and system.py, run by test_kernels.py.

A check is a function of a Subject, something that multiplies like `gemm.gemm`; it knows neither pytest nor the package,
so that test_mutants.py can show what each check catches.
"""
