"""CUDA's kernels, compiled by NVRTC at run time; one tuple a family."""

from __future__ import annotations

from typing import Any

from .kernel import Kernel
from .kernel import typed_row as _row

SM_80, SM_90A = ("sm_80",), ("sm_90a",)


def _cuda(op: str, form: str, source: str, about: str, **rest: Any) -> Kernel:
    """A row of a source that serves several types: <op>gemm_cuda_<form> of csrc/cuda/gemm_cuda_<source>.cu."""
    return _row(f"{op}gemm_cuda_{form}", "cuda", f"csrc/cuda/gemm_cuda_{source}.cu", about, **rest)


FFMA: tuple[Kernel, ...] = ()
"""float32 and float64 on the ordinary units: register tiles by cp.async, or held in registers on the way."""

FFMA_TMA: tuple[Kernel, ...] = ()
"""float32 on the ordinary units: register tiles that the copy engine (TMA) feeds."""

WGMMA: tuple[Kernel, ...] = ()
"""float16 and bfloat16 on Hopper's tensor cores."""

EMULATED: tuple[Kernel, ...] = ()
"""float32 out of products of narrower numbers on tensor cores."""

KMAJOR: tuple[Kernel, ...] = ()
"""TF32, int8 and fp8 on tensor cores, which want both operands contiguous along k."""

DMMA: tuple[Kernel, ...] = ()
"""float64 on tensor cores."""

GEMV: tuple[Kernel, ...] = ()
"""Few rows: one pass over b."""

SMALL: tuple[Kernel, ...] = ()
"""Batches of small products: a warp or a block each."""

TILE: tuple[Kernel, ...] = tuple(
    _cuda(op, "tile", "tile", "tiles of A and B in shared memory, one output a thread", BM=32, BN=32, BK=32)
    for op in "sd"
)
"""The readable start, for any GPU and any strides. It is the last resort of every type, and the last here."""

CUDA: tuple[Kernel, ...] = (*FFMA_TMA, *FFMA, *WGMMA, *EMULATED, *KMAJOR, *DMMA, *GEMV, *SMALL, *TILE)
