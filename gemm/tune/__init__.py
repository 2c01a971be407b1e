"""`gemm tune`: search for the best parameters of kernels, and calibrate the cost model."""
