"""What benchmarks/cuda_vs_cublas.py is made of: products, contestants, the clock, errors, transfers."""
