/* out = alpha * a * b + beta * c on the matrix units (XMX) of Intel GPUs. One instruction, dpas, multiplies 8 rows of a
 * by SG columns of b over STEP elements along k and adds the products to 8 x SG sums
 * (cl_intel_subgroup_matrix_multiply_accumulate). matrix.clh describes the tiles and the packed operands.
 *
 * In a panel of b, the D elements of a word are adjacent (a word is 4 bytes: D = 2 halves or 4 bytes), then the words of
 * SG columns, then the words of the next D rows. Each block is read by one block read: each lane gets its words in the
 * order that dpas requires. docs/intel.md says what is known about the rounding of dpas.
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
#if SG == 8
#define position uint /* these GPUs add 64-bit addresses in several steps, and can address buffers by 32-bit offsets */
#else
#define position ulong
#endif
#define BLOCK_M 8
#define BLOCK_N SG
#define ROW(r) (r)
#define COLUMN get_sub_group_local_id()
#define LANE_OFFSET 0

/* rows: a lane's part of a block of a. It has a word of each of the 8 rows (SG 8), or half a word (SG 16). */
#if SG == 8
#define rows JOIN(JOIN(A_SIGN, int), 8)
#define READ_A(p) JOIN(as_, rows)(intel_sub_group_block_read8((global const uint *)(p)))
#else
#define rows JOIN(JOIN(A_SIGN, short), 8)
#define READ_A(p) JOIN(as_, rows)(intel_sub_group_block_read_us8((global const ushort *)(p)))
#endif
#define columns int8
#define READ_B(p) as_int8(intel_sub_group_block_read8((global const uint *)(p)))
#if PRECISION == 8 && A_UNSIGNED
#define A_SIGN u
#define MULTIPLY intel_sub_group_u8_i8_matrix_mad_k32
#else
#define A_SIGN
#if PRECISION == 8
#define MULTIPLY intel_sub_group_i8_i8_matrix_mad_k32
#elif BFLOAT16
#define MULTIPLY intel_sub_group_bf16_bf16_matrix_mad_k16
#else
#define MULTIPLY intel_sub_group_f16_f16_matrix_mad_k16
#endif
#endif
/* Some compilers implement MULTIPLY but do not declare it. */
accum8 __attribute__((overloadable)) MULTIPLY(rows a, columns b, accum8 sums);

#include "matrix.clh"

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

__attribute__((reqd_work_group_size(SG * GW, GH, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void gemm_intel_dpas(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const int group = get_sub_group_id();
    int i0 = (get_group_id(1) * GH + group / GW) * TM, j0 = (get_group_id(0) * GW + group % GW) * TN, p0 = 0;

    SUMS;
    EACH_BLOCK(i, j) { EACH_ROW(BEGIN, i, j) }
#if BLOCK_IO
    const uint size_of = sizeof(real);
    global void *left_from = (global void *)AT(a, z, 0, 0), *right_from = (global void *)AT(b, z, 0, 0);
    const int left_wide = size_of * size.s2, left_pitch = size_of * (int)a_at.s1;
    const int right_wide = (size_of * n + 63) / 64 * 64, right_pitch = size_of * (int)b_at.s1;
    for (; p0 < k; p0 += BK) {
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
        for (int s = 0; s < BK / STEP; ++s) EACH_BLOCK(i, j) sum[i][j] = MULTIPLY(LEFT(s, i), RIGHT(s, j), sum[i][j]);
    }
#else
    p0 = add_panels(sum, a, a_at, b, b_at, z, i0, j0, m, size.s2, k0, k);
#endif

    /* p0 is k here, so the next line adds 0. This keeps the final addresses out of the loop's registers: see
     * gemm_intel_L3_SIMD. */
    i0 += p0 - k, j0 += p0 - k;
    EACH_BLOCK(i, j) { EACH_ROW(STORE, i, j) }
}
