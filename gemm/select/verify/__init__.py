"""Does a kernel compute the right thing on this device and driver? For the probe, the tuner and `gemm verify`.

This is the short check that a kernel must pass before `auto` may choose it; tests/conformance is the long one.
"""
