"""The truth that every kernel is held to, computed without the package and without BLAS.

`exact` and `check_close` give α·A·B + β·C far beyond the result's precision and the componentwise bound; `wrapped`
gives that of integers;
`ordered` gives the one bit pattern of the ORDERED chain, and `chain` its sums; `fma` is the correctly rounded step they
are made of.
tests/test_oracle.py holds the oracle itself against rational arithmetic and libm.
"""

from oracle.exact import Reference, check_close, exact, finfo, is_narrow, wrapped
from oracle.fma import fma
from oracle.ordered import chain, check_same_bits, ordered

__all__ = [
    "Reference", "chain", "check_close", "check_same_bits", "exact", "finfo", "fma", "is_narrow", "ordered", "wrapped",
]  # fmt: skip
