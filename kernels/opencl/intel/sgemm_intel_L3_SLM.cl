/* out = alpha * a * b + beta * c on Intel GPUs: a's rows are staged in shared local memory, and b goes through the L3
 * cache. TM x TN = 8 x 8 outputs per work-item and GH x GW work-items per group: a tile of 8 GH x 8 GW.
 *
 *                      vload8 of a row of b       a_tile: BK x 8 GH in local memory, transposed, so that a
 *                     +----------------------+    work-item's 8 rows at one p are adjacent: one vload8.
 *             BK p    |        8 columns     |
 *                     +----------------------+    a, b: row-major buffers, padded to multiples: a of 8 GH rows,
 *        BK p         |  8 x 8 outputs       |    b of 8 GW columns, both of BK along K. `k` is the padded size.
 *       +------+      |  float8 sum[8]       |    (The method was published for column-major matrices, for which
 *       |a_tile|      |                      |    the same kernel computes b' a' = (a b)'.)
 *       +------+      +----------------------+
 *
 * Along K, a is padded with -0.0 and b with +0.0: adding their product, -0.0, changes no sum, not even -0.0. out and c
 * are not padded.
 */

#include "gemm.clh"

#ifndef GH        /* work-items per group along m */
#define GH 8
#endif
#ifndef GW        /* work-items per group along n */
#define GW 16
#endif
#ifndef BK        /* step along k, a multiple of 4 */
#define BK 16
#endif
#ifndef TM        /* rows of out per work-item */
#define TM 8
#endif
#ifndef TN        /* columns of out per work-item */
#define TN 8
#endif
#if TM != 8 || TN != 8
#error "the tile is written out for TM = TN = 8"
#endif
#define T 8
#define ABREAST (GH * GW / (BK / 4)) /* rows of a that the group loads at a time, one float4 per work-item */
#if GH * GW % (BK / 4) || T * GH % ABREAST
#error "the work-items must share the float4 of a's tile evenly"
#endif

/* The address of row r. `from` is the address of row 0 in this iteration, and `row` is the distance between rows in
 * bytes. See gemm_intel_L3_SIMD. */
#define ROW(from, r, row) ((global const float *)((from) + (r) * (row)))

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

__attribute__((reqd_work_group_size(GW, GH, 1)))
kernel void sgemm_intel_L3_SLM(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local float a_tile[BK][T * GH];

    const uint tx = get_local_id(0), ty = get_local_id(1), id = ty * GW + tx;
    const int row0 = get_group_id(1) * T * GH, col0 = get_group_id(0) * T * GW;
    int i0 = row0 + T * ty, j0 = col0 + T * tx;
    a = AT(a, z, row0, 0);
    b = AT(b, z, 0, col0);
    const int a_row = 4 * (int)a_at.s1, b_row = 4 * (int)b_at.s1; /* bytes: see ROW */
    const int turn = id / (BK / 4), p4 = id % (BK / 4) * 4;

#define STARTS(r) float8 sum##r = (float8)(START4(z, i0 + r, j0), START4(z, i0 + r, j0 + 4));
    EACH(STARTS)

    ulong a_pos = turn * a_row + 4 * p4, b_pos = 4 * T * tx;
    int p0 = 0;
    for (; p0 < k; p0 += BK, a_pos += 4 * BK, b_pos += BK * (long)b_row) {
        global const char *a_from = (global const char *)a + a_pos, *b_from = (global const char *)b + b_pos;
#pragma unroll
        for (int r = 0; r < T * GH; r += ABREAST) {
            const float4 four = LOAD4(ROW(a_from, r, a_row));
            local float *to = &a_tile[p4][turn + r];
            to[0] = four.x, to[T * GH] = four.y, to[2 * T * GH] = four.z, to[3 * T * GH] = four.w;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            const float8 bp = vload8(0, ROW(b_from, p, b_row)), ap = vload8(0, &a_tile[p][T * ty]);
#define STEP(r) sum##r = MAC((float8)(ap.s##r), bp, sum##r);
            EACH(STEP)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    /* p0 is k here, so the next line adds 0. This keeps the final addresses out of the loop's registers: see
     * gemm_intel_L3_SIMD. */
    i0 += p0 - k, j0 += p0 - k;
#define STORE(r)                                                                                        \
    FINISH4(sum##r.lo, z, i0 + r, j0)                                                                   \
    FINISH4(sum##r.hi, z, i0 + r, j0 + 4)
    EACH(STORE)
}
