"""The parts of benchmarks/adreno_static.py: run the compiler (tool.py) and read the peers' kernels (peers.py)."""
