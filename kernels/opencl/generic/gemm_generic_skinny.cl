/* out = alpha * a * b + beta * c for few rows of a: one pass over b, at the speed of memory.
 *
 *                 TN columns per work-item
 *                +----+----+----+----+----+      A work-group has WGN adjacent work-items along n, with TM x TN
 *           k    |    |    | b  |    |    |      outputs each in registers. A work-item loads b directly into
 *                +----+----+----+----+----+      registers, TN adjacent elements at once, and uses each element
 *         k                                      for TM multiply-adds. a's rows are in local memory, BK columns
 *       +----+   +----+----+----+----+----+      at a time; all work-items read the same element at the same time.
 *    TM | a  |   |    |    |out |    |    |
 *       +----+   +----+----+----+----+----+      There are few work-items along n, so groups share K (see SPLIT).
 *
 * a may have any strides. b has unit stride along n, its rows start at multiples of TN elements, and it is padded to a
 * multiple of TN columns. Nothing is padded along K. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out per work-item: all of them, or as many as registers can hold */
#define TM 16
#endif
#ifndef TN        /* columns of out per work-item: one vector */
#define TN 4
#endif
#ifndef WGN       /* work-items per group, along n */
#define WGN 128
#endif
#ifndef BK        /* columns of a in local memory, a multiple of 4 */
#define BK 64
#endif
#if TN != 4
#error "the vectors are written out for TN = 4"
#endif

__attribute__((reqd_work_group_size(WGN, 1, 1)))
kernel void gemm_generic_skinny(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local accum a_tile[BK][TM] __attribute__((aligned(32)));

    const int id = get_local_id(0), i0 = get_global_id(1) * TM, j0 = get_global_id(0) * TN;
    const int inside = j0 < n;
    const int b_row = b_at.s1;
    a = AT(a, z, i0, k0);
    b = AT(b, z, k0, inside ? j0 : 0); /* work-items beyond the last column read the first columns and store nothing */

    accum4 sum[TM];
#pragma unroll
    for (int r = 0; r < TM; ++r) sum[r] = START4(z, i0 + r, j0);

    for (int p0 = 0; p0 < k; p0 += BK) {
        const int depth = min(BK, k - p0);
        for (uint t = id; t < BK * TM; t += WGN) {
            const int r = t / BK, p = t % BK;
            a_tile[p][r] = p < depth && i0 + r < m ? LOAD(a + r * a_at.s1 + (p0 + p) * a_at.s2) : (accum)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int p = 0; p < depth; ++p, b += b_row) {
            const accum4 row = LOAD4(b);
#if TM % 4
#pragma unroll
            for (int r = 0; r < TM; ++r) sum[r] = MAC((accum4)(a_tile[p][r]), row, sum[r]);
#else
#pragma unroll
            for (int r = 0; r < TM; r += 4) {
                const accum4 ap = *(local const accum4 *)&a_tile[p][r];
                sum[r] = MAC((accum4)(ap.x), row, sum[r]);
                sum[r + 1] = MAC((accum4)(ap.y), row, sum[r + 1]);
                sum[r + 2] = MAC((accum4)(ap.z), row, sum[r + 2]);
                sum[r + 3] = MAC((accum4)(ap.w), row, sum[r + 3]);
            }
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#pragma unroll
    for (int r = 0; r < TM; ++r) {
        FINISH4(sum[r], z, i0 + r, j0)
    }
}
