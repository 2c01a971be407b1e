/* out = alpha * a * b + beta * c on Intel GPUs: a's rows staged in shared local memory, b through the L3 cache;
 * TM x TN = 8 x 8 outputs a work-item, GH x GW work-items a group: a tile of 8 GH x 8 GW.
 *
 *                      vload8 of a row of b       a_tile: BK x 8 GH in local memory, turned, so that a
 *                     +----------------------+    work-item's 8 rows at one p are neighbours: vload8.
 *              8 p    |        8 columns     |
 *                     +----------------------+    a, b: padded buffers, row-major; a to 8 GH rows, b to 8 GW
 *         8 p         |  8 x 8 outputs       |    columns, both along K to 8 (BK). `k` is the padded one.
 *       +------+      |  float8 sum[8]       |    (The method was published for column-major matrices, where
 *       |a_tile|      |                      |    this is the product b' a' = (a b)'.)
 *       +------+      +----------------------+
 *
 * a is padded with -0.0 and b with +0.0 along K: their product -0.0 is what addition leaves every sum unchanged
 * by, a sum of -0.0 too. out and c are not padded.
 */

#include "gemm.clh"

#ifndef GH        /* work-items of a group along m */
#define GH 8
#endif
#ifndef GW        /* and along n */
#define GW 16
#endif
#ifndef TM        /* rows of out a work-item, and the step along k */
#define TM 8
#endif
#ifndef TN        /* columns */
#define TN 8
#endif
#if TM != 8 || TN != 8
#error "the tile is written out for TM = TN = 8"
#endif
#define T 8

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

__attribute__((reqd_work_group_size(GW, GH, 1)))
kernel void sgemm_intel_L3_SLM(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local float a_tile[T][T * GH];

    const int tx = get_local_id(0), ty = get_local_id(1), id = ty * GW + tx;
    const int row0 = get_group_id(1) * T * GH, i0 = row0 + T * ty, j0 = get_global_id(0) * T;
    a = AT(a, z, row0, 0);
    b = AT(b, z, 0, j0);
    const int a_row = a_at.s1, b_row = b_at.s1;

#define STARTS(r) float8 sum##r = (float8)(START4(z, i0 + r, j0), START4(z, i0 + r, j0 + 4));
    EACH(STARTS)

    for (int p0 = 0; p0 < k; p0 += T, a += T, b += (long)T * b_row) {
        for (int t = id; t < 2 * T * GH; t += GH * GW) { /* two float4 of each row, a row's side by side */
            const float4 four = LOAD4(a + t / 2 * a_row + t % 2 * 4);
            local float *to = &a_tile[t % 2 * 4][t / 2];
            to[0] = four.x, to[T * GH] = four.y, to[2 * T * GH] = four.z, to[3 * T * GH] = four.w;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int p = 0; p < T; ++p) {
            const float8 bp = vload8(0, b + p * b_row), ap = vload8(0, &a_tile[p][T * ty]);
#define STEP(r) sum##r = MAC((float8)(ap.s##r), bp, sum##r);
            EACH(STEP)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#define STORE(r)                                                                                        \
    FINISH4(sum##r.lo, z, i0 + r, j0)                                                                   \
    FINISH4(sum##r.hi, z, i0 + r, j0 + 4)
    EACH(STORE)
}
