"""The CUDA backend: runs the CUDA kernels of the catalog on NVIDIA GPUs. Its class is in backend.py."""
