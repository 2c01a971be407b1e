"""CUDA's kernels, compiled by NVRTC at run time; one tuple a family."""

from __future__ import annotations

from typing import Any

from .kernel import Kernel
from .kernel import typed_row as _row

SM_80, SM_90A = ("sm_80",), ("sm_90a",)


def _cuda(op: str, form: str, source: str, about: str, **rest: Any) -> Kernel:
    """A row of a source that serves several types: <op>gemm_cuda_<form> of csrc/cuda/gemm_cuda_<source>.cu."""
    return _row(f"{op}gemm_cuda_{form}", "cuda", f"csrc/cuda/gemm_cuda_{source}.cu", about, fuses=True, **rest)


FFMA: tuple[Kernel, ...] = ()
"""float32 and float64 on the ordinary units: register tiles by cp.async, or held in registers on the way."""

FFMA_TMA: tuple[Kernel, ...] = ()
"""float32 on the ordinary units: register tiles that the copy engine (TMA) feeds."""


def _wgmma(op: str, bm: int, bn: int, stages: int, *, multicast: int = 1, resident: int = 1, gflops: float) -> Kernel:
    """A row of gemm_cuda_wgmma: `stages` of a ring, `resident` blocks a multiprocessor."""
    return _cuda(
        op, f"wgmma_{bm}x{bn}", "wgmma", "wgmma fed by TMA, loading and multiplying warpgroups", needs=SM_90A,
        ordered=False, gflops=gflops, BM=bm, BN=bn, BK=64, STAGES=stages, MULTICAST=multicast,
        THREADS=2 * bm + 128, RESIDENT=resident, B_WIDTH=64 if bn % 64 else 128,
        maps=3, a_box_k=64, a_box_m=bm, b_box_k=64, b_box_n=bn // multicast, a_swizzle=128,
        blocks=resident, parts=8 // multicast,
        derived={"shared": "STAGES * ((BM + BN) * BK * 2 + 16) + BM // 16 * 2560 + 1024", "b_swizzle": "B_WIDTH"},
    )  # fmt: skip


WGMMA: tuple[Kernel, ...] = (
    *(_wgmma(op, 128, 256, 4, multicast=2, gflops=780000) for op in "bh"),
    *(_wgmma(op, 128, 192, 5, multicast=2, gflops=720000) for op in ("b", "h", "b32", "h32")),
    *(_wgmma(op, 192, 96, 5, gflops=600000) for op in "bh"),
    *(_wgmma(op, 64, 192, 3, resident=2, gflops=600000) for op in ("b", "h", "b32", "h32")),
    *(_wgmma(op, 64, 128, 4, resident=2, gflops=500000) for op in ("b", "h", "b32", "h32")),
    *(_wgmma(op, 64, 64, 6, resident=2, gflops=400000) for op in ("b", "h", "b32", "h32")),
)
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
