/* out = alpha * a * b + beta * c on the matrix units (XMX) of Intel GPUs. One instruction, dpas, multiplies 8 rows of a
 * by SG columns of b over STEP elements along k and adds the products to 8 x SG sums
 * (cl_intel_subgroup_matrix_multiply_accumulate). A sub-group of SG work-items (lanes) computes TM x TN outputs. A
 * work-group has GH x GW sub-groups.
 *
 *                   b: panels of SG columns              A word is 4 bytes: D = 2 halves or 4 bytes, which are adjacent
 *                     SG     SG                          along k. A row of a block of a, and a column of a block of b,
 *                   +------+------+                      has 8 words.
 *          STEP k   |block |block |
 *                   +------+------+                      a: panels of STEP columns, each row-major: the 8 rows of a
 *    a:    STEP k                                           block are adjacent.
 *        +------+   +------+------+                      b: panels of SG columns. In a panel, the D elements of a
 *     8  |block |   | sums | sums |                         word are adjacent, then the words of SG columns, then
 *        +------+   +------+------+  TM rows                the words of the next D rows.
 *     8  |block |   | sums | sums |
 *        +------+   +------+------+                      A block is contiguous in both, and is read by one block read:
 *                      TN columns                        each lane gets its words in the order that dpas requires.
 *
 * a is padded to a multiple of TM * GH rows, b to a multiple of TN * GW columns, and both along K to a multiple of BK;
 * `k` is that padded length. Along K, a is padded with -0.0 and b with +0.0: adding their product, -0.0, changes no
 * sum. out and c are not padded. docs/intel.md says what is known about the rounding of dpas.
 *
 * With BLOCK_IO, a and b are row-major. One message reads 32 rows of a, or two or four blocks of b, whose elements it
 * packs into words (cl_intel_subgroup_2d_block_io). Elements outside of a matrix become 0. Each matrix begins
 * at a multiple of 64 bytes, and each row at a multiple of 16 bytes. The length of a row is a multiple of 64 bytes.
 */

#ifndef PRECISION
#define PRECISION 16
#endif
#include "gemm.clh"

#ifndef SG        /* work-items per sub-group: 8 or 16, the number for which the device has dpas */
#define SG 8
#endif
#ifndef TM        /* rows of out per sub-group, a multiple of 8 */
#define TM 32
#endif
#ifndef TN        /* columns of out per sub-group, a multiple of SG */
#define TN 16
#endif
#ifndef GH        /* sub-groups per work-group along m */
#define GH 2
#endif
#ifndef GW        /* sub-groups per work-group along n */
#define GW 2
#endif
#ifndef BK        /* step along k of the main loop, a multiple of STEP */
#define BK 16
#endif
#ifndef A_UNSIGNED /* with PRECISION 8. 1: the elements of a are unsigned */
#define A_UNSIGNED 0
#endif
#ifndef BLOCK_IO  /* 1: messages read blocks of row-major matrices. Requires SG 16, TM 32 */
#define BLOCK_IO 0
#endif
#define D (32 / PRECISION) /* elements of k in a word */
#define STEP (8 * D)       /* elements of k in a block */
#if SG == 8
#define position uint /* these GPUs add 64-bit addresses in several steps, and can address buffers by 32-bit offsets */
#else
#define position ulong
#endif
#if TM % 8 || TN % SG || BK % STEP
#error "the tile must consist of whole blocks"
#endif

/* rows: a lane's part of a block of a. It has a word of each of the 8 rows (SG 8), or half a word (SG 16). */
#if SG == 8
#define rows JOIN(JOIN(A_SIGN, int), 8)
#define READ_A(p) JOIN(as_, rows)(intel_sub_group_block_read8((global const uint *)(p)))
#else
#define rows JOIN(JOIN(A_SIGN, short), 8)
#define READ_A(p) JOIN(as_, rows)(intel_sub_group_block_read_us8((global const ushort *)(p)))
#endif
#define READ_B(p) as_int8(intel_sub_group_block_read8((global const uint *)(p)))
#if PRECISION == 8 && A_UNSIGNED
#define A_SIGN u
#define DPAS intel_sub_group_u8_i8_matrix_mad_k32
#else
#define A_SIGN
#if PRECISION == 8
#define DPAS intel_sub_group_i8_i8_matrix_mad_k32
#elif BFLOAT16
#define DPAS intel_sub_group_bf16_bf16_matrix_mad_k16
#else
#define DPAS intel_sub_group_f16_f16_matrix_mad_k16
#endif
#endif
accum8 __attribute__((overloadable)) DPAS(rows a, int8 b, accum8 sums); /* some compilers implement but do not declare it */

/* READ_LEFT reads 32 rows of BK elements of a, as [BK / STEP][32] rows of blocks. READ_RIGHT reads DEEP * STEP rows of
 * b and the columns of WIDE blocks, as [WIDE][DEEP] blocks of 8 words. */
#if BLOCK_IO
#if PRECISION == 8
#define DEEP 1
#define WIDE (TN / SG)
#if BK == STEP
#define READ_LEFT intel_sub_group_2d_block_read_8b_32r32x1c
#else
#define READ_LEFT intel_sub_group_2d_block_read_8b_32r32x2c
#endif
#if TN == 32
#define READ_RIGHT intel_sub_group_2d_block_read_transform_8b_32r16x2c
#else
#define READ_RIGHT intel_sub_group_2d_block_read_transform_8b_32r16x4c
#endif
#else
#define DEEP (BK / STEP)
#define WIDE 2
#if BK == STEP
#define READ_LEFT intel_sub_group_2d_block_read_16b_32r16x1c
#define READ_RIGHT intel_sub_group_2d_block_read_transform_16b_16r16x2c
#else
#define READ_LEFT intel_sub_group_2d_block_read_16b_32r16x2c
#define READ_RIGHT intel_sub_group_2d_block_read_transform_16b_32r16x2c
#endif
#endif
#if SG != 16 || TM != 32 || BK > 2 * STEP || (TN != 32 && TN != 64)
#error "blocks are read for SG = 16, TM = 32, TN = 32 or 64, and at most two steps"
#endif
#endif

#define EACH_ROW(DO, i, j)                                                                              \
    DO(i, j, 0) DO(i, j, 1) DO(i, j, 2) DO(i, j, 3) DO(i, j, 4) DO(i, j, 5) DO(i, j, 6) DO(i, j, 7)

__attribute__((reqd_work_group_size(SG * GW, GH, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void gemm_intel_dpas(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const int lane = get_sub_group_local_id(), group = get_sub_group_id();
    int i0 = (get_group_id(1) * GH + group / GW) * TM, j0 = (get_group_id(0) * GW + group % GW) * TN;
    const uint size_of = sizeof(real);
#if BLOCK_IO
    global void *left_from = (global void *)AT(a, z, 0, 0), *right_from = (global void *)AT(b, z, 0, 0);
    const int left_wide = size_of * size.s2, left_pitch = size_of * (int)a_at.s1;
    const int right_wide = (size_of * n + 63) / 64 * 64, right_pitch = size_of * (int)b_at.s1;
#else
    const uint tall = (m + TM * GH - 1) / (TM * GH) * (TM * GH); /* rows of a, with padding */

    /* Positions are in bytes, relative to the kernel's arguments. */
    const uint panel = SG * size_of * size.s2;
    position a_pos = size_of * (position)(z * a_at.s3) + 32 * ((position)(k0 / STEP) * tall + i0);
    position b_pos = size_of * (position)(z * b_at.s3) + j0 / SG * (position)panel + SG * size_of * k0;
#endif

    accum8 sum[TM / 8][TN / SG];
#define BEGIN(i, j, r) sum[i][j].s##r = START(z, i0 + 8 * i + r, j0 + SG * j + lane);
#pragma unroll
    for (int i = 0; i < TM / 8; ++i) {
#pragma unroll
        for (int j = 0; j < TN / SG; ++j) {
            EACH_ROW(BEGIN, i, j)
        }
    }

    int p0 = 0;
    for (; p0 < k; p0 += BK) {
#if BLOCK_IO
        ushort left[BK / STEP * TM];
        uint right[BK / STEP / DEEP][TN / SG / WIDE][WIDE * DEEP * 8];
        READ_LEFT(left_from, left_wide, m, left_pitch, (int2)(k0 + p0, i0), left);
#pragma unroll
        for (int s = 0; s < BK / STEP; s += DEEP) {
#pragma unroll
            for (int j = 0; j < TN / SG; j += WIDE)
                READ_RIGHT(right_from, right_wide, size.s2, right_pitch, (int2)(j0 + SG * j, k0 + p0 + STEP * s),
                           right[s / DEEP][j / WIDE]);
        }
#define LEFT(s, i) JOIN(as_, rows)(vload8(0, left + TM * (s) + 8 * (i)))
#define RIGHT(s, j) as_int8(vload8(0, right[(s) / DEEP][(j) / WIDE] + 8 * ((j) % WIDE * DEEP + (s) % DEEP)))
#pragma unroll
        for (int s = 0; s < BK / STEP; ++s) {
#pragma unroll
            for (int i = 0; i < TM / 8; ++i) {
#pragma unroll
                for (int j = 0; j < TN / SG; ++j) sum[i][j] = DPAS(LEFT(s, i), RIGHT(s, j), sum[i][j]);
            }
        }
#else
#pragma unroll
        for (int p = 0; p < BK; p += STEP, a_pos += 32 * tall, b_pos += 32 * SG) {
            int8 columns[TN / SG];
#pragma unroll
            for (int j = 0; j < TN / SG; ++j) columns[j] = READ_B((global const char *)b + (b_pos + j * panel));
#pragma unroll
            for (int i = 0; i < TM / 8; ++i) {
                const rows block = READ_A((global const char *)a + (a_pos + 256 * i));
#pragma unroll
                for (int j = 0; j < TN / SG; ++j) sum[i][j] = DPAS(block, columns[j], sum[i][j]);
            }
        }
#endif
    }

    /* p0 is k here, so the next line adds 0. This keeps the final addresses out of the loop's registers: see
     * gemm_intel_L3_SIMD. */
    i0 += p0 - k, j0 += p0 - k;
#define STORE(i, j, r) FINISH(sum[i][j].s##r, z, i0 + 8 * i + r, j0 + SG * j + lane)
#pragma unroll
    for (int i = 0; i < TM / 8; ++i) {
#pragma unroll
        for (int j = 0; j < TN / SG; ++j) {
            EACH_ROW(STORE, i, j)
        }
    }
}
