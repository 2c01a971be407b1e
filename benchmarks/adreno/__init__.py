"""The parts of benchmarks/adreno_static.py: the compiler's answer (tool.py) and the peers' kernels (peers.py)."""
