"""What `gemm tune` does: search for the parameters of kernels, and calibrate the cost model."""
