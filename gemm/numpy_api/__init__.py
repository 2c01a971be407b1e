"""NumPy's product functions, computed by gemm."""
