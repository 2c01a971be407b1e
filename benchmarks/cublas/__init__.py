"""The parts of benchmarks/cuda_vs_cublas.py: products, contestants, timing, errors, transfers."""
