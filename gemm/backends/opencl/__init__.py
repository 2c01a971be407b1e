"""The OpenCL backend: runs the OpenCL kernels of the catalog through pyopencl. Its class is in backend.py."""
