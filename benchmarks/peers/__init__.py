"""What benchmarks/cpu_vs_peers.py sets up and prints; the other libraries themselves: gemm.bench.peers."""
