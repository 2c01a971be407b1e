/* out = alpha * a * b + beta * c on Intel GPUs: a and b through the L3 cache, a's elements shared in the
 * sub-group by shuffles; TM x TN outputs a work-item, GH x SG work-items a group, each row of them a sub-group.
 *
 *                   lane 0    lane 1  ...               Lane l loads element p0 + l of each of the TM rows: 8
 *                  +---------+---------+                neighbours. A shuffle hands one lane's to all.
 *            8 k   | TN cols | TN cols |                The TN columns of a lane are neighbours: one vector.
 *                  +---------+---------+                BARRIER: the group waits for itself every 8 k, so that
 *         8 k      | TM x TN | TM x TN |                its sub-groups read the same lines of b at a time.
 *       +------+   | outputs | outputs |
 *       |TM    |   |         |         |                a, b: padded buffers, row-major; a to TM GH rows, b to
 *       | rows |   |         |         |                SG TN columns, both along K to SG. `k` is the padded one.
 *       +------+   +---------+---------+
 *
 * (The method was published for column-major matrices, where this is the product b' a' = (a b)'.)
 * a is padded with -0.0 and b with +0.0 along K: their product -0.0 is what addition leaves every sum unchanged
 * by, a sum of -0.0 too. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out a work-item */
#define TM 8
#endif
#ifndef TN        /* columns of out a work-item: 2 or 4 */
#define TN 4
#endif
#ifndef SG        /* work-items of a sub-group, and of a group along n */
#define SG 8
#endif
#ifndef GH        /* work-items of a group along m */
#define GH 8
#endif
#ifndef BARRIER
#define BARRIER 0
#endif

#if TN == 2
typedef float2 vec;
#define VLOAD(p) vload2(0, p)
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1)
#elif TN == 4
typedef float4 vec;
#define VLOAD(p) vload4(0, p)
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
#else
#error "TN must be 2 or 4"
#endif

__attribute__((reqd_work_group_size(SG, GH, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void sgemm_intel_L3_SIMD(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const int lane = get_sub_group_local_id();
    const int i0 = get_global_id(1) * TM, j0 = (get_group_id(0) * SG + lane) * TN;
    a = AT(a, z, i0, lane);
    b = AT(b, z, 0, j0);
    const int a_row = a_at.s1, b_row = b_at.s1;

    vec sum[TM];
#define BEGIN(r, e) sum[r].s##e = START(z, i0 + r, j0 + e);
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(BEGIN, r)
    }

    for (int p0 = 0; p0 < k; p0 += SG, a += SG, b += (long)SG * b_row) {
        vec row[SG];
#pragma unroll
        for (int p = 0; p < SG; ++p) row[p] = VLOAD(b + p * b_row);
#pragma unroll
        for (int r = 0; r < TM; ++r) {
            const float mine = a[r * a_row];
#pragma unroll
            for (int p = 0; p < SG; ++p) sum[r] = MAC((vec)(intel_sub_group_shuffle(mine, p)), row[p], sum[r]);
        }
#if BARRIER
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }

#define STORE(r, e) FINISH(sum[r].s##e, z, i0 + r, j0 + e)
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(STORE, r)
    }
}
