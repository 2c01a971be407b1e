"""The parts of benchmarks/arm_static.py: analysis of AArch64 code on a machine without an Arm core."""
