"""The parts of benchmarks/intel_static.py: what can be said of Intel GPU code without running it on one."""
