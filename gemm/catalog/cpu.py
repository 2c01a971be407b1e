"""The CPU's micro-kernels. A micro-kernel has MR x NR accumulators in registers. The driver that calls it splits m, k
and n into cache blocks of MC, KC and NC (csrc/driver/block_sizes.c), unless a row has these parameters.
"""

from __future__ import annotations

from typing import Any

from .kernel import Kernel, typed_row


def _row(name: str, about: str, gflops: float, *needs: str, file: str = "", **rest: Any) -> Kernel:
    """A row. `name` ends in MR x NR.

    Args:
        file: the stem of the source file, if it differs from `name`.
    """
    target, tile = name.split("_")[1], name.rpartition("_")[2]
    mr, nr = map(int, tile.split("x"))
    source = f"csrc/{target}/{file or name}.c"
    return typed_row(name, "cpu", source, about, needs=needs, gflops=gflops, MR=mr, NR=nr, **rest)


_SME: dict[str, Any] = {"MC": 256, "KC": 512, "NC": 4096, "suits": "m >= MR and n >= NR"}
"""Parameters of the rows for Arm's SME. The kernels have only run in an emulator: blocks and GFLOP/s are guesses.
`suits` leaves small products to other rows, because a kernel takes as long for a part of a tile as for the whole tile.
Because of `suits`, dispatch uses these rows only on machines where the probe has measured them.
"""

CPU: tuple[Kernel, ...] = (
    _row("sgemm_avx512_12x32", "24 zmm accumulators; 6x64 and others unpacked", 80, "avx512f"),
    _row("dgemm_avx512_6x32", "24 zmm accumulators", 40, "avx512f"),
    _row("sgemm_avx2_6x16", "12 ymm accumulators", 70, "avx2", "fma"),
    _row("dgemm_avx2_6x8", "12 ymm accumulators", 35, "avx2", "fma"),
    _row("sgemm_sme_32x32", "fmopa on 4 squares of ZA", 100, "sme", **_SME),
    _row("dgemm_sme_16x32", "fmopa on 8 squares of ZA", 25, "sme", "smef64f64", **_SME),
    _row("sgemm_neon_8x12", "24 accumulators; 6x16 and others unpacked", 20, "neon"),
    _row("dgemm_neon_6x8", "24 accumulators; 3x16 and others unpacked", 10, "neon"),
    _row("sgemm_neon_4x4", "4x4 block, sixteen lane FMAs a step of four k", 8, "neon"),
    _row("dgemm_neon_4x4", "the 4x4 block in float64x2", 4, "neon"),
    _row("sgemm_neon_1x4", "row kernel: four outputs, A a scalar", 4, "neon"),
    _row("dgemm_neon_1x4", "row kernel: four outputs, A a scalar", 2, "neon"),
    _row("sgemm_armv7_6x8", "32-bit; NEON there flushes subnormals: not ordered", 4, "neon", "vfpv4",
         ordered_needs=("denorms",)),
    *(_row(f"{letter}gemm_scalar_4x4", "plain C, any CPU", 3, file="gemm_scalar_4x4")
      for letter in "sd"),
    # AMX's and SME's rows have their own block sizes: the rule of block_sizes.c is about vector registers.
    # Narrow floats (with sums in float), complex numbers, integers modulo a power of two, and integers with wider sums.
    _row("bgemm_amx_32x32", "tdpbf16ps, which makes subnormal sums zero", 700, "amxbf16", precision="high",
         MC=256, KC=1024, NC=4096),
    _row("bgemm_amx_checked_32x32", "bgemm_amx_32x32; AVX-512 for products with tiny numbers", 600, "amxbf16",
         file="bgemm_amx_32x32", ordered=False, prepares=False, suits="m >= 16 and n >= 16", MC=256, KC=1024, NC=4096),
    _row("i8gemm_amx_32x32", "tdpbuud", 1200, "amxint8", MC=256, KC=2048, NC=4096),
    _row("s8s32gemm_amx_32x32", "tdpbssd", 1200, "amxint8", MC=256, KC=2048, NC=4096),
    _row("u8s32gemm_amx_32x32", "tdpbusd", 1200, "amxint8", MC=256, KC=2048, NC=4096),
    _row("hgemm_avx512_6x64", "by sgemm's tiles, converted while packed or read", 80, "avx512f", "avx512bw"),
    _row("bgemm_avx512_6x64", "by sgemm's tiles, converted while packed or read", 80, "avx512f", "avx512bw"),
    _row("bgemm_avx512_bf16_12x32", "vdpbf16ps, which makes subnormal sums zero", 90, "avx512f", "avx512bw",
         "avx512bf16", precision="high"),
    _row("cgemm_avx512_6x32", "12 + 12 zmm accumulators, real and imaginary", 20, "avx512f"),
    _row("zgemm_avx512_6x16", "12 + 12 zmm accumulators, real and imaginary", 10, "avx512f"),
    _row("i8gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _row("i8gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _row("i16gemm_avx512_vnni_12x32", "vpdpwssd", 150, "avx512f", "avx512bw", "avx512vnni"),
    _row("i16gemm_avx512_12x32", "vpmaddwd", 120, "avx512f", "avx512bw"),
    _row("i32gemm_avx512_12x32", "vpmulld", 60, "avx512f"),
    _row("i64gemm_avx512_12x16", "vpmullq", 20, "avx512f", "avx512dq"),
    _row("s8s32gemm_avx512_vnni_12x32", "vpdpbusd, a offset by 128", 300, "avx512f", "avx512bw", "avx512vnni"),
    _row("s8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _row("u8s32gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _row("u8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _row("hgemm_avx2_6x16", "by sgemm's tiles, converted while packed or read", 65, "avx2", "fma", "f16c"),
    _row("bgemm_avx2_6x16", "by sgemm's tiles, converted while packed or read", 65, "avx2", "fma"),
    _row("cgemm_avx2_6x8", "6 + 6 ymm accumulators, real and imaginary", 17, "avx2", "fma"),
    _row("zgemm_avx2_6x4", "6 + 6 ymm accumulators, real and imaginary", 8, "avx2", "fma"),
    _row("i8gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _row("i8gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _row("i16gemm_avx2_6x16", "vpmaddwd", 100, "avx2"),
    _row("i32gemm_avx2_6x16", "vpmulld", 55, "avx2"),
    _row("i64gemm_avx2_4x4", "vpmuludq and vpmulld, summed separately", 12, "avx2"),
    _row("s8s32gemm_avx2_vnni_5x16", "vpdpbusd, a offset by 128", 180, "avx2", "avxvnni"),
    _row("s8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _row("u8s32gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _row("u8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _row("bgemm_sme_bfmopa_32x32", "bfmopa, which makes subnormal sums zero", 200, "sme", precision="high", **_SME),
    _row("hgemm_sme_32x32", "by sgemm's tile, converted while packed", 95, "sme", **_SME),
    _row("bgemm_sme_32x32", "by sgemm's tile, converted while packed", 95, "sme", **_SME),
    _row("i8gemm_sme_32x32", "umopa", 400, "sme", **_SME),
    _row("s8s32gemm_sme_32x32", "smopa", 400, "sme", **_SME),
    _row("u8s32gemm_sme_32x32", "usmopa", 400, "sme", **_SME),
    _row("hgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _row("bgemm_neon_bfmmla_8x8", "bfmmla, which makes subnormal sums zero", 60, "neon", "bf16", precision="high"),
    _row("bgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _row("s8s32gemm_neon_smmla_8x8", "smmla", 120, "neon", "i8mm"),
    _row("s8s32gemm_neon_sdot_8x12", "sdot", 70, "neon", "dotprod"),
    _row("s8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _row("u8s32gemm_neon_usmmla_8x8", "usmmla", 120, "neon", "i8mm"),
    _row("u8s32gemm_neon_usdot_8x12", "usdot", 70, "neon", "i8mm"),
    _row("u8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _row("hgemm_scalar_4x4", "plain C, any CPU", 3),
    _row("bgemm_scalar_4x4", "plain C, any CPU", 3),
    _row("cgemm_scalar_2x4", "plain C, any CPU", 1),
    _row("zgemm_scalar_2x4", "plain C, any CPU", 1),
    _row("i8gemm_scalar_4x4", "plain C, any CPU", 3),
    _row("i16gemm_scalar_4x4", "plain C, any CPU", 3),
    _row("i32gemm_scalar_4x4", "plain C, any CPU", 3),
    _row("i64gemm_scalar_4x4", "plain C, any CPU", 3),
    _row("s8s32gemm_scalar_4x4", "plain C, any CPU", 3),
    _row("u8s32gemm_scalar_4x4", "plain C, any CPU", 3),
)  # fmt: skip
