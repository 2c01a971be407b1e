"""The CPU's micro-kernels: MR x NR accumulators in registers. MC, KC and NC are the cache blocks of the driver around
them.
"""

from __future__ import annotations

from .kernel import TYPES, Kernel
from .kernel import typed_row as _row


def _cpu(name: str, about: str, gflops: float, *needs: str, precision: str = "highest",
         mc: int = 144, kc: int = 256) -> Kernel:  # fmt: skip
    """A CPU row for float16, bfloat16, complex or integer types. `name` is also the file's name and ends in MR x NR."""
    op, target, _ = name.split("_", 2)
    dtype, inputs = TYPES[op.removesuffix("gemm")]
    mr, nr = map(int, name.rpartition("_")[2].split("x"))
    rows = mc // 2 if dtype == "complex128" else mc  # these rows stay in the L2 cache
    params = {"MR": mr, "NR": nr, "MC": rows // mr * mr, "KC": kc, "NC": 4096 // nr * nr}
    ordered = "float" in dtype and precision == "highest"
    return Kernel(name, "cpu", target, dtype, f"csrc/{target}/{name}.c", needs, params, ordered=ordered,
                  gflops=gflops, about=about, inputs=inputs, precision=precision)  # fmt: skip


CPU: tuple[Kernel, ...] = (
    _row("sgemm_avx512_6x64", "cpu", "csrc/avx512/sgemm_avx512_6x64.c", "24 zmm accumulators",
         needs=("avx512f",), gflops=80, MR=6, NR=64, MC=192, KC=384, NC=4096),
    _row("dgemm_avx512_8x24", "cpu", "csrc/avx512/dgemm_avx512_8x24.c", "24 zmm accumulators",
         needs=("avx512f",), gflops=40, MR=8, NR=24, MC=192, KC=256, NC=4080),
    _row("sgemm_avx2_6x16", "cpu", "csrc/avx2/sgemm_avx2_6x16.c", "12 ymm accumulators",
         needs=("avx2", "fma"), gflops=70, MR=6, NR=16, MC=96, KC=512, NC=2048),
    _row("dgemm_avx2_6x8", "cpu", "csrc/avx2/dgemm_avx2_6x8.c", "12 ymm accumulators",
         needs=("avx2", "fma"), gflops=35, MR=6, NR=8, MC=48, KC=512, NC=1024),
    _row("sgemm_neon_8x12", "cpu", "csrc/neon/sgemm_neon_8x12.c", "24 accumulators; 6x16 and others unpacked",
         needs=("neon",), gflops=20, MR=8, NR=12, MC=128, KC=512, NC=3072),
    _row("dgemm_neon_6x8", "cpu", "csrc/neon/dgemm_neon_6x8.c", "24 accumulators; 3x16 and others unpacked",
         needs=("neon",), gflops=10, MR=6, NR=8, MC=96, KC=320, NC=3072),
    _row("sgemm_neon_4x4", "cpu", "csrc/neon/sgemm_neon_4x4.c", "4x4 block, sixteen lane FMAs a step of four k",
         needs=("neon",), gflops=8, MR=4, NR=4, MC=128, KC=256, NC=4096),
    _row("dgemm_neon_4x4", "cpu", "csrc/neon/dgemm_neon_4x4.c", "the 4x4 block in float64x2",
         needs=("neon",), gflops=4, MR=4, NR=4, MC=64, KC=256, NC=4096),
    _row("sgemm_neon_1x4", "cpu", "csrc/neon/sgemm_neon_1x4.c", "row kernel: four outputs, A a scalar",
         needs=("neon",), gflops=4, MR=1, NR=4, MC=128, KC=256, NC=4096),
    _row("dgemm_neon_1x4", "cpu", "csrc/neon/dgemm_neon_1x4.c", "row kernel: four outputs, A a scalar",
         needs=("neon",), gflops=2, MR=1, NR=4, MC=64, KC=256, NC=4096),
    _row("sgemm_armv7_6x8", "cpu", "csrc/armv7/sgemm_armv7_6x8.c", "32-bit; NEON there flushes subnormals: not ordered",
         needs=("neon", "vfpv4"), ordered_needs=("denorms",), gflops=4, MR=6, NR=8, MC=96, KC=256, NC=1024),
    _row("sgemm_scalar_4x4", "cpu", "csrc/scalar/gemm_scalar_4x4.c", "plain C, any CPU",
         gflops=3, MR=4, NR=4, MC=64, KC=256, NC=1024),
    _row("dgemm_scalar_4x4", "cpu", "csrc/scalar/gemm_scalar_4x4.c", "plain C, any CPU",
         gflops=3, MR=4, NR=4, MC=64, KC=256, NC=1024),
    # Narrow floats (with sums in float), complex numbers, integers modulo a power of two, and integers with wider sums.
    _cpu("bgemm_amx_32x32", "tdpbf16ps, which makes subnormal sums zero", 700, "amxbf16", precision="high",
         mc=256, kc=1024),
    _cpu("i8gemm_amx_32x32", "tdpbuud", 1200, "amxint8", mc=256, kc=2048),
    _cpu("s8s32gemm_amx_32x32", "tdpbssd", 1200, "amxint8", mc=256, kc=2048),
    _cpu("u8s32gemm_amx_32x32", "tdpbusd", 1200, "amxint8", mc=256, kc=2048),
    _cpu("hgemm_avx512_6x64", "by sgemm's tiles, converted while packed or read", 80, "avx512f", "avx512bw"),
    _cpu("bgemm_avx512_6x64", "by sgemm's tiles, converted while packed or read", 80, "avx512f", "avx512bw"),
    _cpu("bgemm_avx512_bf16_12x32", "vdpbf16ps, which makes subnormal sums zero", 90, "avx512f", "avx512bw",
         "avx512bf16", precision="high"),
    _cpu("cgemm_avx512_6x32", "12 + 12 zmm accumulators, real and imaginary", 20, "avx512f"),
    _cpu("zgemm_avx512_6x16", "12 + 12 zmm accumulators, real and imaginary", 10, "avx512f"),
    _cpu("i8gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("i8gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("i16gemm_avx512_vnni_12x32", "vpdpwssd", 150, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("i16gemm_avx512_12x32", "vpmaddwd", 120, "avx512f", "avx512bw"),
    _cpu("i32gemm_avx512_12x32", "vpmulld", 60, "avx512f"),
    _cpu("i64gemm_avx512_12x16", "vpmullq", 20, "avx512f", "avx512dq"),
    _cpu("s8s32gemm_avx512_vnni_12x32", "vpdpbusd, a offset by 128", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("s8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("u8s32gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("u8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("hgemm_avx2_6x16", "by sgemm's tiles, converted while packed or read", 65, "avx2", "fma", "f16c"),
    _cpu("bgemm_avx2_6x16", "by sgemm's tiles, converted while packed or read", 65, "avx2", "fma"),
    _cpu("cgemm_avx2_6x8", "6 + 6 ymm accumulators, real and imaginary", 17, "avx2", "fma"),
    _cpu("zgemm_avx2_6x4", "6 + 6 ymm accumulators, real and imaginary", 8, "avx2", "fma"),
    _cpu("i8gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _cpu("i8gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("i16gemm_avx2_6x16", "vpmaddwd", 100, "avx2"),
    _cpu("i32gemm_avx2_6x16", "vpmulld", 55, "avx2"),
    _cpu("i64gemm_avx2_4x4", "vpmuludq and vpmulld, summed separately", 12, "avx2"),
    _cpu("s8s32gemm_avx2_vnni_5x16", "vpdpbusd, a offset by 128", 180, "avx2", "avxvnni"),
    _cpu("s8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("u8s32gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _cpu("u8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("hgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _cpu("bgemm_neon_bfmmla_8x8", "bfmmla, which makes subnormal sums zero", 60, "neon", "bf16", precision="high"),
    _cpu("bgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _cpu("s8s32gemm_neon_smmla_8x8", "smmla", 120, "neon", "i8mm"),
    _cpu("s8s32gemm_neon_sdot_8x12", "sdot", 70, "neon", "dotprod"),
    _cpu("s8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _cpu("u8s32gemm_neon_usmmla_8x8", "usmmla", 120, "neon", "i8mm"),
    _cpu("u8s32gemm_neon_usdot_8x12", "usdot", 70, "neon", "i8mm"),
    _cpu("u8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _cpu("hgemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("bgemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("cgemm_scalar_2x4", "plain C, any CPU", 1),
    _cpu("zgemm_scalar_2x4", "plain C, any CPU", 1),
    _cpu("i8gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i16gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i32gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i64gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("s8s32gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("u8s32gemm_scalar_4x4", "plain C, any CPU", 3),
)  # fmt: skip
