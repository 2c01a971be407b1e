/* out = alpha * a * b + beta * c on the matrix units of AMD GPUs: RDNA 3 (gfx11) and RDNA 4 (gfx12). One instruction,
 * wmma, multiplies 16 rows of a by 16 columns of b over 16 elements along k and adds the products to 16 x 16 sums. A
 * sub-group (wave) has 32 work-items (lanes). matrix.clh describes the tiles and the packed operands.
 *
 * In a panel of b, the elements of a column are adjacent, like those of a row of a: 32 bytes, then the next column.
 *
 *     gfx12: lanes 0 .. 15 have the first 16 bytes of a row of a, lanes 16 .. 31 the second 16 bytes; columns of b alike
 *     gfx11: lanes 0 .. 15 have a row of a each, and lanes 16 .. 31 the same rows once more; columns of b alike
 *
 * With PRECISION 8, these 32 bytes are the operands of two instructions. Each takes half of every lane's bytes. It does
 * not matter which elements along k these are, because they are the same ones for a and b.
 *
 * Each instruction exists for one of the two generations. The compiler defines __GFX12__ for the second. float16 and
 * bfloat16 need gfx12, because sums of small integers are not exact on gfx11: docs/amd.md.
 */

#ifndef PRECISION
#define PRECISION 16
#endif
#include "gemm.clh"

#ifndef TM        /* rows of out per sub-group, a multiple of 16 */
#define TM 32
#endif
#ifndef TN        /* columns of out per sub-group, a multiple of 16 */
#define TN 32
#endif
#ifndef GH        /* sub-groups per work-group along m */
#define GH 2
#endif
#ifndef GW        /* sub-groups per work-group along n */
#define GW 2
#endif
#ifndef BK        /* step along k of the main loop, a multiple of 16, or 32 with PRECISION 8 */
#define BK 16
#endif
#ifndef A_UNSIGNED /* with PRECISION 8. 1: the elements of a are unsigned */
#define A_UNSIGNED 0
#endif
#define LANES 32
#define LANE (get_local_id(0) % LANES)
#define BLOCK_M 16
#define BLOCK_N 16
#define COLUMN (LANE % 16)
#define position ulong

#ifdef __GFX12__
#define ROW(r) (8 * (LANE / 16) + (r))
#define rows int4
#define LANE_OFFSET (32 * (LANE % 16) + 16 * (LANE / 16))
#define WMMA_I32 __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12
#else
#define ROW(r) (2 * (r) + LANE / 16)
#define rows int8
#define LANE_OFFSET (32 * (LANE % 16))
#define WMMA_I32 __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32
#endif
#define columns rows
#define READ_A(p) (*(global const rows *)(p))
#define READ_B READ_A

accum8 MULTIPLY(rows a, columns b, accum8 sums)
{
#if PRECISION == 8
    sums = WMMA_I32(!A_UNSIGNED, a.lo, true, b.lo, sums, false);
    return WMMA_I32(!A_UNSIGNED, a.hi, true, b.hi, sums, false);
#elif !defined(__GFX12__)
#error "float16 and bfloat16 need gfx12"
#elif BFLOAT16
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(as_short8(a), as_short8(b), sums);
#else
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(as_half8(a), as_half8(b), sums);
#endif
}

#include "matrix.clh"

__attribute__((reqd_work_group_size(LANES * GW, GH, 1)))
kernel void gemm_amd_wmma(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    int i0 = (get_group_id(1) * GH + get_local_id(1)) * TM;
    int j0 = (get_group_id(0) * GW + get_local_id(0) / LANES) * TN;

    SUMS;
    EACH_BLOCK(i, j) { EACH_ROW(BEGIN, i, j) }
    const int p0 = add_panels(sum, a, a_at, b, b_at, z, i0, j0, m, size.s2, k0, k);

    /* p0 is k, so the next line adds 0. This keeps the final addresses out of the loop's registers: see
     * gemm_intel_L3_SIMD. */
    i0 += p0 - k, j0 += p0 - k;
    EACH_BLOCK(i, j) { EACH_ROW(STORE, i, j) }
}
