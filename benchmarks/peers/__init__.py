"""The parts of benchmarks/cpu_vs_peers.py. The other libraries themselves are in gemm.bench.peers."""
