"""The names by which gemm.dispatch.summa knows gemm.dispatch.split_launch; this module goes with it."""

from gemm.dispatch.split_launch import Side, at_once, make_up, ranges

__all__ = ["Side", "at_once", "make_up", "ranges"]
