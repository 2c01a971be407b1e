"""Verification of kernels: does a kernel compute correct results on this device with this driver?

The probe, the tuner and `gemm verify` use this package. A kernel must pass the short checks here before `auto` may
choose the kernel. The thorough checks are in tests/conformance.
"""
