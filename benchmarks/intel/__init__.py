"""The parts of benchmarks/intel_static.py: analysis of Intel GPU code on a machine without an Intel GPU."""
