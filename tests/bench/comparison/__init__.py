"""Tests of gemm.compare, by subject; `runs` has what they compare."""
