"""NumPy's products by gemm."""
