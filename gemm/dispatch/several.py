"""The names by which gemm.sharded knows gemm.dispatch.split; this module goes with it."""

from gemm.dispatch.split import Bounds, bounds, devices, grids

__all__ = ["Bounds", "bounds", "devices", "grids"]
