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
#ifndef GH        /* work-items of a group along m */
#define GH 8
#endif
#ifndef GW        /* and along n */
#define GW 16
#endif
#define T 8       /* rows and columns of out a work-item, and the step along k */

#if ORDERED || FUSED
#define MAC(x, y, sum) fma((float8)(x), y, sum)
#else
#define MAC(x, y, sum) ((float8)(x) * (y) + (sum))
#endif

#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

__attribute__((reqd_work_group_size(GW, GH, 1)))
kernel void sgemm_intel_slm(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    global const float *b, long b_offset, long b_row, long b_col /* 1 */, long b_batch,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    local float a_tile[T][T * GH];

    const int tx = get_local_id(0), ty = get_local_id(1), id = ty * GW + tx;
    const long row0 = (long)get_group_id(1) * T * GH, i0 = row0 + T * ty, j0 = (long)get_global_id(0) * T;
    const long z = get_global_id(2);
    a += a_offset + z * a_batch + row0 * a_row;
    b += b_offset + z * b_batch + j0;
    c += c_offset + z * c_batch;
    out += out_offset + z * out_batch;

#define OUT(i, j) out[(i) * out_row + (j) * out_col]
#define START(i, j) (resume && (i) < m && (j) < n ? OUT(i, j) : 0.0f)
#define STARTS(r)                                                                                         \
    float8 sum##r = (float8)(START(i0 + r, j0), START(i0 + r, j0 + 1), START(i0 + r, j0 + 2),             \
                             START(i0 + r, j0 + 3), START(i0 + r, j0 + 4), START(i0 + r, j0 + 5),         \
                             START(i0 + r, j0 + 6), START(i0 + r, j0 + 7));
    EACH(STARTS)

    for (int p0 = 0; p0 < k; p0 += T) {
        for (int t = id; t < 2 * T * GH; t += GH * GW) { /* two float4 of each row, a row's side by side */
            const float4 four = vload4(0, a + t / 2 * a_row + p0 + t % 2 * 4);
            local float *to = &a_tile[t % 2 * 4][t / 2];
            to[0] = four.x, to[T * GH] = four.y, to[2 * T * GH] = four.z, to[3 * T * GH] = four.w;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int p = 0; p < T; ++p) {
            const float8 bp = vload8(0, b + (p0 + p) * b_row), ap = vload8(0, &a_tile[p][T * ty]);
#define STEP(r) sum##r = MAC(ap.s##r, bp, sum##r);
            EACH(STEP)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#define PUT(value, i, j)                                                                                  \
    if ((i) < m && (j) < n) {                                                                             \
        float result = value;                                                                             \
        if (finish) {                                                                                     \
            result = alpha * result;                                                                      \
            if (beta != 0) result = fma(beta, c[(i) * c_row + (j) * c_col], result);                      \
        }                                                                                                 \
        OUT(i, j) = result;                                                                               \
    }
#define STORE(r)                                                                                          \
    PUT(sum##r.s0, i0 + r, j0) PUT(sum##r.s1, i0 + r, j0 + 1) PUT(sum##r.s2, i0 + r, j0 + 2)              \
    PUT(sum##r.s3, i0 + r, j0 + 3) PUT(sum##r.s4, i0 + r, j0 + 4) PUT(sum##r.s5, i0 + r, j0 + 5)          \
    PUT(sum##r.s6, i0 + r, j0 + 6) PUT(sum##r.s7, i0 + r, j0 + 7)
    EACH(STORE)
}
