"""The OpenCL backend."""
