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
 * by, a sum of -0.0 too. out and c: element (z, i, j) at offset + z * batch + i * row + j * col; not padded.
 * K in pieces: all but the first have resume = 1 and start from the raw sums in `out`; all but the last
 * have finish = 0 and leave raw sums there. c is read only if beta != 0; a and b only if k > 0.
 */

#ifndef ORDERED   /* 1: each sum is the chain acc = fma(a, b, acc), the same bits on every device */
#define ORDERED 0
#endif
#ifndef FUSED     /* 1: the device has fma in hardware; 0: it may be emulated and slow */
#define FUSED 1
#endif
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
#define LOAD(p) vload2(0, p)
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1)
#elif TN == 4
typedef float4 vec;
#define LOAD(p) vload4(0, p)
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
#else
#error "TN must be 2 or 4"
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma((vec)(x), y, sum)
#else
#define MAC(x, y, sum) ((vec)(x) * (y) + (sum))
#endif

__attribute__((reqd_work_group_size(SG, GH, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void sgemm_intel_simd(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    global const float *b, long b_offset, long b_row, long b_col /* 1 */, long b_batch,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    const int lane = get_sub_group_local_id();
    const long z = get_global_id(2), i0 = (long)get_global_id(1) * TM, j0 = ((long)get_group_id(0) * SG + lane) * TN;
    a += a_offset + z * a_batch + i0 * a_row + lane;
    b += b_offset + z * b_batch + j0;
    c += c_offset + z * c_batch;
    out += out_offset + z * out_batch;

    vec sum[TM];
#define FROM(i, j) (resume && (i) < m && (j) < n ? out[(i) * out_row + (j) * out_col] : 0.0f)
#define START(r, e) sum[r].s##e = FROM(i0 + r, j0 + e);
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(START, r)
    }

    for (int p0 = 0; p0 < k; p0 += SG) {
        vec row[SG];
#pragma unroll
        for (int p = 0; p < SG; ++p) row[p] = LOAD(b + (p0 + p) * b_row);
#pragma unroll
        for (int r = 0; r < TM; ++r) {
            const float mine = a[r * a_row + p0];
#pragma unroll
            for (int p = 0; p < SG; ++p) sum[r] = MAC(intel_sub_group_shuffle(mine, p), row[p], sum[r]);
        }
#if BARRIER
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }

#define STORE(r, e)                                                                                       \
    if (i0 + r < m && j0 + e < n) {                                                                       \
        float result = sum[r].s##e;                                                                       \
        if (finish) {                                                                                     \
            result = alpha * result;                                                                      \
            if (beta != 0) result = fma(beta, c[(i0 + r) * c_row + (j0 + e) * c_col], result);            \
        }                                                                                                 \
        out[(i0 + r) * out_row + (j0 + e) * out_col] = result;                                            \
    }
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(STORE, r)
    }
}
