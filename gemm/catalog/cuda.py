"""The CUDA kernels, which NVRTC compiles at run time; one tuple per family.

This is how the host (gemm/backends/cuda/launch_plan.py) reads the parameters of a catalog row. A block is a thread
block. Uppercase parameters are -D macros of the kernel; the host itself reads only these:

    BM BN BK    a block computes a tile of BM x BN elements of out, in steps of BK along k
    THREADS     threads of the one-dimensional block; default BM * BN
    MULTICAST   number of blocks of a cluster that share b; they compute tiles that are adjacent along m; default 1
    STACK       number of products of a batch per block; default 1. The grid's y is ceil(batch / STACK)
    OUT_BOXES   default 0. More than 0: the kernel also gets a tensor map of out with boxes of 16 rows by 128 bytes.
                Each warp has staging memory for OUT_BOXES boxes. g.mapped says whether out can be stored through the
                map; if not, the host passes the map of a instead

Lowercase parameters are for the host only; their default is 0:

    shared      bytes of dynamic shared memory (often `derived`)
    blocks      more than 0: the grid is persistent, with at most this many blocks per multiprocessor. The blocks step
                through tiles and batch by themselves, and the grid's y is 1. 0: one block per tile and product
    shares      1: if fewer tiles are left for the last round than blocks run at once, all blocks that run at once
                compute these tiles together, each on a part of k. With reproducible=True they never do that
    ptxas       optimization level of ptxas; default 3
    waits       1: the kernel has no pipeline, so each step along k takes one `startup`
    alone       1: a block uses so many registers that it has a multiprocessor for itself. A launch may then start
                before the previous launch has ended. k is nevertheless split as if a multiprocessor held two blocks,
                because this was measured to be fastest
    gathers     1: the kernel copies an operand that is contiguous along k to shared memory one element at a time.
                `gflops` was measured with such an operand a; the time of these copies is therefore included
    streams     1: the kernel reads an operand, or stores the result, once from end to end at the speed of memory
                (gpu_model.py)
    parts       the most parts of k per tile (split-K). On sm_90 and newer, the blocks of the parts are a cluster
                (parts * MULTICAST <= 8). Before sm_90, sums are joined through memory, see join.cuh. 0 or 1: k is never
                split
    a_lies, b_lies    the layouts of a or b that the kernel can read: 1 contiguous along k, 2 contiguous along m (b: n),
                3 layouts 1 and 2 (default), 7 any strides. gemm_cuda_pack first copies an operand with another layout.
                gemm_cuda_pack also copies an operand that TMA reads if its address or its strides are not multiples of
                16 bytes
    vector      bytes of the widest load from a and b (a_vector: only from a; b_vector: only from b). The kernel gets
                A_VECTOR and B_VECTOR: the number of elements in that many bytes, or 1 if the address or a stride
                (except the unit stride) is not a multiple of that many bytes. 0: the kernel gets neither macro
    pointers    1: the kernel gets the macro POINTERS, which is 1 for a pointer batch (Problem.apart), else 0
    ordered_form    1: the kernel gets the macro ORDERED, which is 1 for reproducible=True, else 0. With ORDERED 1, k is
                not split, whatever `parts` is
    maps        operands that are read through tensor maps: 1 a, 2 b, 3 both. The kernel's parameters are g (struct
                Gemm) and the maps
    a_box_k a_box_m b_box_k b_box_n    boxes of these maps in elements. The host limits the contiguous axis of a box to
                the width of the swizzle; the kernel then loads several boxes per step
    a_swizzle b_swizzle    swizzle in bytes: 0, 32, 64 or 128
    tf32        1: the tensor maps of float32 operands round to TF32
    planes      number of planes into which gemm_cuda_split first splits the operands: 3 of bfloat16 or 2 of float16. A
                plane is a matrix of narrower numbers; the sum of an operand's planes, scaled by an exponent for each
                row of a and each column of b, approximates the operand. A_TYPE and B_TYPE are the types of the planes.
                g.memory and g.arrivals point to the exponents (int) of a's rows and b's columns
    MODULI      more than 0: a float64 product by residues (csrc/cuda/residues.cuh). gemm_cuda_residues replaces each
                operand by MODULI planes of int8, the kernel multiplies each pair of planes, and gemm_cuda_combine
                computes out from the results. A_TYPE and B_TYPE are int8, OUT_TYPE is uint8
    widen       1: gemm_cuda_pack first converts fp8 operands to float16; A_TYPE and B_TYPE are then float16

`swap` says for which products the host computes out^T = b^T a^T: the kernel's m is then the caller's n. A row without
`swap` computes the transposed product if out is closer to column-major than to row-major. For each combination of
types, the last row is `tile`. It computes products with k = 0 and products that are too large for the other rows.

A tensor map has three axes: the contiguous axis, the other axis, and batch * planes + plane. An operand that is the
same for the whole batch has a_batch (b_batch) = 0 and one matrix in its map; its batch coordinate is always 0. TMA
reads 0 outside of the operand. Maps describe elements as unsigned integers of the same width (except with tf32), so TMA
changes no bit.

A kernel is compiled once for each set of values (each form) of A_TYPE, B_TYPE, OUT_TYPE and these macros:

    A_TURNED    1: a is contiguous along m; 0: along k. The kernel gets this macro if a_lies is 3 or the kernel has
                vectors. With a_lies 7 and A_VECTOR 1, strides are arbitrary
    B_TURNED    1: b is contiguous along k; 0: along n. The conditions are the same, with b_lies and B_VECTOR
    A_VECTOR B_VECTOR ORDERED POINTERS    see above
    EPILOGUE    1: the kernel adds the bias and applies the activation

Grid: a group of parts * MULTICAST blocks (a cluster on sm_90 and newer) computes a tile of BM * MULTICAST by BN
outputs. Block x computes strip x % MULTICAST (BM rows) of tile x / (MULTICAST * parts), for part x / MULTICAST % parts
of k. If the batch exceeds 65535 (the limit of the grid's y), or has more than one batch axis, the host makes several
launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .kernel import Kernel
from .kernel import typed_row as _row

SM_75, SM_80, SM_90A = ("sm_75",), ("sm_80",), ("sm_90a",)


def _cuda(op: str, form: str, source: str, about: str, **rest: Any) -> Kernel:
    """The catalog's row <op>gemm_cuda_<form>. Its source csrc/cuda/gemm_cuda_<source>.cu serves several types."""
    return _row(f"{op}gemm_cuda_{form}", "cuda", f"csrc/cuda/gemm_cuda_{source}.cu", about, fuses=True,
                lazy_verify=True, **rest)  # fmt: skip


def inbox(tile: int, members: int, parts: int) -> int:
    """The maximum number of bytes that a block of a cluster receives in the exchange of partial sums (exchange.cuh).

    The block of each part of k adds up one slice of the tile. The tile's sums consist of runs; a run is 16 bytes for
    each thread. Each slice has ceil(runs / parts) runs, except that the last slices may have fewer. The maximum is over
    all numbers of parts of k from 1 to `parts`.

    Args:
        tile: bytes of the tile's sums.
        members: number of threads that hold the sums.
        parts: the maximum number of parts of k.
    """
    runs = tile // (16 * members)
    return max(-(-runs // cut) * cut for cut in range(1, parts + 1)) * 16 * members


def _ring(stage: str, boxes: int) -> dict[str, str]:
    """The expression for the parameter `shared`. It adds up STAGES stages of `stage` bytes with their barriers, the
    staging memory of the warps (STAGING in deliver.cuh), and the bytes that alignment may skip.

    Args:
        stage: the expression for the bytes of a stage.
        boxes: OUT_BOXES.
    """
    staging, aligned = (2560, 3072, 4096)[boxes], 1008 if boxes else 0
    return {"shared": f"STAGES * ({stage} + 16) + BM // 16 * {staging} + {1040 + aligned}"}


_FITS = ("shared <= shared_memory_optin",)  # cheaper GPUs, and GPUs newer than Hopper, have less shared memory


class Blocks(NamedTuple):
    """The thread blocks of a kernel, and the kernel's rate.

    Attributes:
        bm, bn: BM and BN.
        stages: STAGES, the number of steps along k that are in shared memory at the same time.
        multicast: MULTICAST.
        resident: the number of blocks for each multiprocessor.
        boxes: OUT_BOXES.
        gflops, startup: as in Kernel.
    """

    bm: int
    bn: int
    stages: int
    multicast: int
    resident: int
    boxes: int
    gflops: float
    startup: float


def _rows(row: Callable[[str, Blocks], Kernel], *table: tuple[Any, ...]) -> tuple[Kernel, ...]:
    """The catalog's rows for `table`. Each line of the table is (types, *Blocks) and gives one row for each type."""
    return tuple(row(op, Blocks(*blocks)) for ops, *blocks in table for op in ops)


_INT8, _HALVES, _SUMS = ("s8s32", "u8s32"), ("b", "h"), ("b32", "h32")
_NARROW = _HALVES + _SUMS
_FP8 = tuple(pair + out for pair in ("e4m3", "e4m3e5m2", "e5m2e4m3", "e5m2") for out in "bs")


def _ffma(op: str, shape: tuple[int, int, int], sums: tuple[int, int], *, stages: int = 4, resident: int,
          groups: int = 1, **rest: Any) -> Kernel:  # fmt: skip
    """A row of gemm_cuda_ffma.

    Args:
        shape: BM, BN and BK.
        sums: TM and TN; a thread computes TM x TN sums.
        groups: number of groups of threads; each group multiplies BK / groups of a stage's elements of k.
    """
    (bm, bn, bk), (tm, tn) = shape, sums
    size = 8 if op == "d" else 4
    tile, workers = bm * bn * size, bm * bn // (tm * tn)
    shared = max(stages * bk * ((bm + bn) * size + 32), tile * (groups - 1), inbox(tile, workers, 8))
    about = "register tiles fed by cp.async" + (f", {groups} groups of threads a tile" if groups > 1 else "")
    return _cuda(
        op, f"ffma_{'groups_' * (groups > 1)}{bm}x{bn}", "ffma", about, needs=SM_80, ordered=groups == 1, gathers=1,
        BM=bm, BN=bn, BK=bk, TM=tm, TN=tn, STAGES=stages, GROUPS=groups, THREADS=workers * groups,
        RESIDENT=resident, vector=16, parts=8, shared=shared, legal=_FITS, **rest,
    )  # fmt: skip


FFMA: tuple[Kernel, ...] = (
    _ffma("s", (128, 256, 16), (8, 16), resident=1, gflops=40500, startup=8.0),
    _ffma("s", (128, 128, 16), (8, 8), resident=1, gflops=45200, startup=6.0),
    _ffma("s", (64, 128, 32), (8, 8), stages=3, groups=2, resident=1, gflops=42600, startup=5.0),
    _ffma("s", (64, 64, 32), (8, 8), groups=4, resident=1, gflops=35500, startup=3.0),
    _ffma("s", (64, 128, 16), (8, 4), resident=2, gflops=38900, startup=4.0),
    _ffma("s", (64, 64, 16), (8, 4), resident=4, gflops=37700, startup=3.0),
    _ffma("s", (32, 128, 16), (4, 8), resident=4, gflops=38800, startup=2.4, scattered=1.0, swap="m > n"),
    _ffma("s", (32, 64, 32), (4, 4), resident=4, gflops=33200, startup=2.2),
    _ffma("s", (16, 256, 16), (4, 8), resident=3, gflops=29900, startup=1.4, scattered=1.0, swap="m > n"),
    _ffma("d", (64, 64, 16), (4, 4), resident=2, gflops=21000, startup=6.0),
    _cuda("s", "ffma_held_64x64", "ffma_held", "register tiles; operands pass through registers to shared memory",
          gflops=33000, startup=4.0, excluded_features=SM_80, parts=8,
          BM=64, BN=64, BK=16, TM=8, TN=4, THREADS=128),
    _cuda("d", "ffma_held_32x64", "ffma_held", "register tiles; operands pass through registers to shared memory",
          gflops=22000, startup=4.0, excluded_features=SM_80, parts=8,
          BM=32, BN=64, BK=16, TM=4, TN=4, THREADS=128),
)  # fmt: skip
"""Kernels for float32 and float64 with fused multiply-adds: register tiles, fed by cp.async or through registers."""


def _ffma_tma(form: str, lies: int, gflops: float, **rest: Any) -> Kernel:
    """A row of gemm_cuda_ffma_tma for one layout of a. `lies` is the row's a_lies."""
    return _cuda(
        "s", f"ffma_tma_{form}", "ffma_tma", "register tiles fed by TMA, persistent, last tiles shared",
        needs=SM_90A, gflops=gflops, startup=5.0, BM=128, BN=128, BK=32, TM=8, TN=8, STAGES=4, THREADS=384,
        A_TURNED=int(lies == 2), a_lies=lies, b_lies=2,
        maps=3, a_box_k=32, a_box_m=128, a_swizzle=128, b_box_k=32, b_box_n=128, blocks=1, parts=8, shares=1,
        derived={"shared": "STAGES * (BK * (BM + BN) * 4 + 16) + 1040"}, legal=_FITS, **rest,
    )  # fmt: skip


FFMA_TMA: tuple[Kernel, ...] = (
    _ffma_tma("128x128", 2, 53000),
    # At the default level 3, ptxas schedules the loads for four values of k so late that the multiply-adds wait.
    _ffma_tma("128x128_along_k", 1, 51800, ptxas=1),
)
"""Kernels for float32 with fused multiply-adds: register tiles, loaded by TMA."""


def _wgmma(op: str, blocks: Blocks) -> Kernel:
    """A row of gemm_cuda_wgmma. For fp8 operands, the row has `widen`: they are first converted to float16."""
    bm, bn, stages, multicast, resident, boxes, gflops, startup = blocks
    more: dict[str, Any] = {"widen": 1, "a_lies": 1, "b_lies": 2} if op in _FP8 else {}
    about = "wgmma fed by TMA, loading and multiplying warpgroups" + "; operands widened to float16" * bool(more)
    if bn == 32:
        more |= {"swap": "m < n", "streams": 1}
    # Storing a float32 element takes 0.6 ns. A 16-bit element takes 0.2 ns, because two elements are stored at a time,
    # and 0.13 ns in blocks of 192 x 192, because their twelve warps have more stores in flight than eight warps.
    scattered = 0.6 if op.endswith(("32", "s")) else 0.13 if (bm, bn) == (192, 192) else 0.2
    return _cuda(
        op, f"wgmma_{bm}x{bn}{'_pairs' * (resident == multicast == 2)}", "wgmma", about, needs=SM_90A,
        ordered=False, scattered=scattered, gflops=gflops, startup=startup,
        BM=bm, BN=bn, BK=64, STAGES=stages, MULTICAST=multicast, THREADS=2 * bm + 128,
        RESIDENT=resident, B_WIDTH=64 if bn % 64 else 128, OUT_BOXES=boxes,
        maps=3, a_box_k=64, a_box_m=bm, b_box_k=64, b_box_n=bn // multicast, a_swizzle=128,
        blocks=resident, parts=8 // multicast, **more,
        derived={**_ring("(BM + BN) * BK * 2", boxes), "b_swizzle": "B_WIDTH"},
    )  # fmt: skip


WGMMA: tuple[Kernel, ...] = _rows(
    _wgmma,
    # types   BM   BN  STAGES MULTICAST resident OUT_BOXES gflops startup
    (_HALVES,  128, 256, 4, 2, 1, 2, 810000, 6.0),
    (_NARROW,  128, 192, 5, 2, 1, 0, 780000, 8.0),
    (_HALVES,  192, 192, 4, 1, 1, 0, 680000, 8.0),
    (_HALVES,  192,  96, 5, 1, 1, 0, 640000, 6.0),
    (_NARROW,   64, 192, 3, 1, 2, 0, 530000, 5.0),
    (_HALVES,  128, 128, 6, 2, 1, 0, 650000, 6.0),
    (_HALVES,   64, 128, 4, 1, 2, 1, 570000, 2.8),
    (_HALVES,   64, 128, 4, 2, 2, 1, 600000, 2.2),
    (_SUMS,     64, 128, 4, 1, 2, 0, 520000, 3.6),
    (_NARROW,   64,  32, 8, 1, 2, 0, 190000, 3.6),
    (_HALVES,   64,  64, 6, 1, 2, 1, 480000, 2.2),
    (_SUMS,     64,  64, 6, 1, 2, 0, 440000, 2.4),
    (_FP8,     128, 192, 5, 2, 1, 0, 700000, 8.0),
    (_FP8,      64,  64, 6, 1, 2, 0, 340000, 2.4),
)  # fmt: skip
"""Kernels for float16 and bfloat16 on Hopper's tensor cores, and for fp8 with the accuracy of float16 products."""


def _emulated(form: str, bn: int, stages: int, gflops: float) -> Kernel:
    """A row of gemm_cuda_emulated: products of 3 planes of bfloat16 (bf16x6) or 2 planes of float16 (fp16x3)."""
    planes = 3 if form == "bf16x6" else 2
    return _cuda(
        "s", f"emulated_{form}_128x{bn}", "emulated", "planes of narrower numbers by wgmma, sums in float32",
        needs=SM_90A, precision="high", gflops=gflops, startup=5.0, planes=planes, PLANES=planes,
        BM=128, BN=bn, BK=32, STAGES=stages, MULTICAST=2, THREADS=384,
        maps=3, a_box_k=32, a_box_m=128, b_box_k=32, b_box_n=bn // 2, a_swizzle=64, b_swizzle=64, blocks=1, parts=4,
        derived=_ring("PLANES * (BM + BN) * BK * 2", 0),
    )  # fmt: skip


EMULATED: tuple[Kernel, ...] = (
    _emulated("fp16x3", 192, 5, 215000),
    _emulated("fp16x3", 128, 6, 200000),
    _emulated("bf16x6", 192, 3, 130000),
    _emulated("bf16x6", 128, 4, 126000),
)
"""Kernels that compute float32 products from products of narrower types on tensor cores."""


def _kmajor(op: str, blocks: Blocks) -> Kernel:
    """A row of gemm_cuda_kmajor, whose stages hold 128 bytes along k. op "s" is for TF32, other ops for int8 or fp8."""
    bm, bn, stages, multicast, resident, boxes, gflops, startup = blocks
    tf32, fp8 = op == "s", op.startswith("e")
    about = "TF32" if tf32 else "fp8, sums promoted to float32 every 128" if fp8 else "exact sums in int32"
    bk = 32 if tf32 else 128
    # `turns` says whether a may also be contiguous along m. This layout requires boxes of a that are 128 bytes wide,
    # and enough registers for the fragments of a.
    turns = bm < 256 and bm % bk == 0
    few = op in _INT8 and (bm, bn) == (128, 64)
    return _cuda(
        op, f"kmajor_{'tf32_' * tf32}{bm}x{bn}", "kmajor", f"wgmma fed by TMA: {about}", needs=SM_90A, ordered=False,
        swap="b == 'N' and (a != 'T' or m < n)" if turns else "", gflops=gflops, startup=startup,
        precision="medium" if tf32 or fp8 else "highest",
        scattered=0.2 if op.endswith("b") else 0.4 if few else 0.6,  # two 16-bit results are stored at a time
        BM=bm, BN=bn, BK=bk, STAGES=stages, MULTICAST=multicast, THREADS=2 * bm + 128,
        RESIDENT=resident, PROMOTE=int(fp8), PIECE=128 if fp8 and bn > 192 else bn, OUT_BOXES=boxes,
        a_lies=3 if turns else 1, b_lies=1, maps=3, a_box_k=bk, a_box_m=bm, b_box_k=bk, b_box_n=bn // multicast,
        a_swizzle=128, b_swizzle=128, tf32=int(tf32), blocks=resident,
        parts=4 if bm == 256 else 8 // multicast, derived=_ring("(BM + BN) * 128", boxes),
    )  # fmt: skip


KMAJOR: tuple[Kernel, ...] = _rows(
    _kmajor,
    # types BM  BN STAGES MULTICAST resident OUT_BOXES gflops startup
    ("s",   128, 256, 4, 2, 1, 2, 395000, 8.0),
    ("s",   256, 128, 3, 1, 1, 0, 350000, 8.0),
    ("s",   192, 128, 4, 1, 1, 0, 361000, 8.0),
    ("s",   128,  64, 3, 1, 2, 0, 258000, 5.2),
    ("s",    64, 128, 4, 1, 2, 0, 250000, 5.2),
    ("s",    64,  64, 6, 1, 2, 1, 200000, 3.4),
    (_INT8, 128, 256, 4, 2, 1, 2, 1570000, 6.0),
    (_FP8,  128, 256, 4, 2, 1, 2, 1413000, 6.0),
    (_INT8, 128, 192, 5, 2, 1, 0, 1430000, 7.0),
    (_FP8,  128, 192, 5, 2, 1, 0, 1287000, 7.0),
    (_INT8, 128,  64, 3, 1, 2, 0, 870000, 4.0),
    # With two blocks per multiprocessor there are not enough registers for the two sets of sums that fp8 needs.
    (_FP8,  128,  64, 6, 1, 1, 0, 870000, 4.0),
    (_INT8,  64,  64, 6, 1, 2, 1, 650000, 2.2),
    (_FP8,   64,  64, 6, 1, 2, 1, 585000, 2.2),
)  # fmt: skip
"""Kernels for TF32, int8 and fp8 on tensor cores, whose instructions need both operands contiguous along k."""


def _residues(bn: int, stages: int, rate: float, startup: float) -> Kernel:
    """A row of gemm_cuda_kmajor for float64 by residues.

    rate, startup: those of the row for int8 with the same tile, a prediction. `rate` is in GFLOP/s of int8.
    """
    return _cuda(
        "d", f"kmajor_residues_128x{bn}", "kmajor", "int8 residues modulo 14 numbers, combined exactly", needs=SM_90A,
        precision="high", gflops=rate / 14, startup=startup, MODULI=14,
        BM=128, BN=bn, BK=128, STAGES=stages, MULTICAST=2, THREADS=384, RESIDENT=1, PROMOTE=0, PIECE=bn, OUT_BOXES=0,
        a_lies=1, b_lies=1, maps=3, a_box_k=128, a_box_m=128, b_box_k=128, b_box_n=bn // 2,
        a_swizzle=128, b_swizzle=128, blocks=1, parts=1,
        derived=_ring("(BM + BN) * 128", 0), suits="batch <= 16",
        # Below this k, the sums of residues are exact. The planes take 14 bytes for each element, padding included: at
        # most 30 GB.
        legal=("k < 131072", "(m + n + 63) * (k + 15) + m * (n + 63) < 2147483648"),
    )  # fmt: skip


RESIDUES: tuple[Kernel, ...] = (_residues(256, 4, 1400000, 7.0), _residues(192, 5, 1340000, 8.0))
"""Kernels for float64 on the tensor cores for int8, by the Chinese remainder theorem."""


def _dmma(bm: int, bn: int, tm: int, gflops: float, startup: float) -> Kernel:
    """A row of gemm_cuda_dmma: a block has four warps, each with tm x 32 outputs."""
    return _cuda(
        "d", f"dmma_{bm}x{bn}", "dmma", f"tensor cores, fed by cp.async, {tm}x32 outputs a warp", needs=SM_80,
        ordered=False, gflops=gflops, startup=startup,
        BM=bm, BN=bn, BK=16, TM=tm, TN=32, STAGES=4, THREADS=128,
        BLOCKS=2, vector=16, parts=8, derived={"shared": "STAGES * (BM + BN) * BK * 8"},
    )  # fmt: skip


DMMA: tuple[Kernel, ...] = (
    _dmma(128, 64, 64, 62000, 10.0), _dmma(64, 64, 32, 59000, 4.6), _dmma(32, 64, 16, 52000, 3.4),
    _dmma(32, 128, 32, 51500, 3.2), _dmma(16, 128, 16, 44000, 2.2),
)  # fmt: skip
"""Kernels for float64 on tensor cores."""


def _gemv(op: str, bn: int, bk: int) -> Kernel:
    """The catalog row for gemm_cuda_gemv with `bn` columns of out per pass over a.

    `gflops` assumes that a is read at 4300 GB/s.
    """
    size, one = {"s": 4, "d": 8}.get(op, 2), bn == 1
    return _cuda(
        op, f"gemv_{bn}", "gemv", f"one pass over A for {bn} column{'s' * (bn > 1)}", needs=SM_75,
        gflops=(11000 if one else bn * 8600) / size, startup=1.5 if one else 3.0, swap="m < n",
        BM=64, BN=bn, BK=bk, THREADS=256,
        a_lies=7, b_lies=7, a_vector=16, parts=8, ordered_form=1, alone=1,
    )  # fmt: skip


GEMV: tuple[Kernel, ...] = (
    *(_gemv("s", bn, 256) for bn in (1, 2, 4)),
    _gemv("s", 8, 128),
    _gemv("d", 1, 128),
    *(_gemv(op, 1, 512) for op in ("h", "b", "h32", "b32")),
    *(_gemv(op, 8, 256) for op in ("h32", "b32")),
)
"""Kernels for products with few columns or few rows, which read the larger operand once."""


def _small(op: str, shape: tuple[int, int, int], sums: tuple[int, int], *, stack: int, resident: int,
           gflops: float) -> Kernel:  # fmt: skip
    """A row of gemm_cuda_small with `stack` products per block; `shape` and `sums` as in `_ffma`."""
    (bm, bn, bk), (tm, tn) = shape, sums
    form = f"small_{bm}x{bn}" + f"x{bk}" * (bk > bm)
    return _cuda(
        op, form, "small", "many small products, a group of threads each", startup=1.8, gflops=gflops,
        BM=bm, BN=bn, BK=bk, TM=tm, TN=tn, STACK=stack, THREADS=stack * bm * bn // (tm * tn), RESIDENT=resident,
        a_lies=7, b_lies=7, vector=16, pointers=1, waits=1,
    )  # fmt: skip


SMALL: tuple[Kernel, ...] = (
    *(_small(op, (16, 16, 16), (2, 4), stack=4, resident=8, gflops=15000) for op in "shb"),
    _small("s", (16, 16, 32), (2, 4), stack=4, resident=6, gflops=16000),
    *(_small(op, (32, 32, 32), (4, 4), stack=2, resident=6, gflops=25000) for op in "shb"),
    *(_small(op, (64, 64, 32), (8, 4), stack=1, resident=4, gflops=30000) for op in "shb"),
    _small("d", (16, 16, 16), (2, 4), stack=4, resident=6, gflops=7000),
)
"""Kernels for batches of small products. A group of 32, 64 or 128 threads computes a product."""


def _outer(op: str, bm: int, bn: int, depth: int, *, resident: int, **rest: Any) -> Kernel:
    """A row of gemm_cuda_outer, which loads `depth` elements of k at a time into shared memory."""
    return _cuda(
        op, f"outer_{bm}x{bn}", "outer", "small k: limited by storing the result", startup=2.6,
        BM=bm, BN=bn, BK=4, TM=4, TN=bn // 32, DEPTH=depth, THREADS=256, RESIDENT=resident,
        a_lies=7, b_lies=7, streams=1, suits="k <= DEPTH", **rest,
    )  # fmt: skip


OUTER: tuple[Kernel, ...] = (
    *(_outer(op, 128, 128, 32, resident=4, gflops=32000, scattered=0.17) for op in ("s", "h32", "b32")),
    *(_outer(op, 128, 128, 32, resident=4, gflops=24000, scattered=0.17) for op in ("s8s32", "u8s32")),
    *(_outer(op, 256, 128, 8, resident=3, gflops=30000, scattered=0.1) for op in "hb"),
    _outer("d", 128, 64, 16, resident=4, gflops=15500, scattered=0.3),
)
"""Kernels for products with a small k and a large result, which take as long as storing the result."""

_TILE = {"c": 2600, "i32": 2000}
"""GFLOP/s of the `tile` rows of these types; the `tile` rows of other types have 6000."""
TILE: tuple[Kernel, ...] = tuple(
    _cuda(op, "tile", "tile", "tiles of A and B in shared memory, one output a thread",
          gflops=_TILE.get(op, 6000), startup=2, BM=32, BN=32, BK=32, a_lies=7, b_lies=7)
    for op in ("s", "d", "h", "b", "c", "z", "i8", "i16", "i32", "i64", "s8s32", "u8s32", "h32", "b32", *_FP8)
)  # fmt: skip
"""The simple kernel, for any GPU and any strides. It is the fallback of every type and therefore the last row of each
type.
"""

CUDA: tuple[Kernel, ...] = (
    *FFMA_TMA,
    *FFMA,
    *WGMMA,
    *EMULATED,
    *KMAJOR,
    *RESIDUES,
    *DMMA,
    *GEMV,
    *SMALL,
    *OUTER,
    *TILE,
)
