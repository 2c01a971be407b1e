"""The parts of benchmarks/arm_static.py: what can be said of AArch64 code without running it on an Arm core."""
