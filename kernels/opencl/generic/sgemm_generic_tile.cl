/* out = alpha * a * b + beta * c on large GPUs: a group computes BM x BN of out from tiles in local memory,
 * 8 x 8 outputs a work-item in registers.
 *
 *                      BN columns            Two tiles of each operand: while one is multiplied, the next is on
 *                  +----------------+        its way through registers into the other; one barrier a step.
 *            BK    |     b_tile     |        a_tile is turned, so that a work-item's rows are neighbours.
 *                  +----------------+
 *       BK         |  8 x 8         |        A work-item's outputs are 4 quarters: rows 4 y and BM / 2 + 4 y,
 *     +------+     |  outputs in    |        columns 4 x and BN / 2 + 4 x: a wavefront reads neighbouring float4.
 *  BM |a_tile|     |  4 quarters    |
 *     +------+     +----------------+        a, b: padded buffers, row-major; a to BM rows, b to BN columns, both
 *                                            along K to BK. `k` is the padded one.
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
#ifndef BM        /* rows of out a group */
#define BM 128
#endif
#ifndef BN        /* columns */
#define BN 128
#endif
#ifndef BK        /* step along k, a multiple of 4 */
#define BK 16
#endif
#define GX (BN / 8)         /* work-items of a group along n */
#define GY (BM / 8)         /* and along m */
#define ITEMS (GX * GY)
#define A_LOADS (BM * BK / 4 / ITEMS) /* float4 that a work-item brings, each step */
#define B_LOADS (BN * BK / 4 / ITEMS)
#if BM * BK / 4 % ITEMS || BN * BK / 4 % ITEMS
#error "the work-items must share the float4 of each tile evenly"
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma((float4)(x), y, sum)
#else
#define MAC(x, y, sum) ((float4)(x) * (y) + (sum))
#endif

/* Up to 4 neighbours of a row of c or out, of which `cols` exist. */
float4 gather(global const float *from, long step, int cols)
{
    if (step == 1 && cols >= 4) return vload4(0, from);
    return (float4)(from[0], cols > 1 ? from[step] : 0, cols > 2 ? from[2 * step] : 0, cols > 3 ? from[3 * step] : 0);
}

void scatter(float4 values, global float *to, long step, int cols)
{
    if (step == 1 && cols >= 4) {
        vstore4(values, 0, to);
        return;
    }
    to[0] = values.x;
    if (cols > 1) to[step] = values.y;
    if (cols > 2) to[2 * step] = values.z;
    if (cols > 3) to[3 * step] = values.w;
}

__attribute__((reqd_work_group_size(GX, GY, 1)))
kernel void sgemm_generic_tile(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    global const float *b, long b_offset, long b_row, long b_col /* 1 */, long b_batch,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    local float a_tile[2][BK][BM + 4]; /* 4: or the turned stores would meet in few banks */
    local float b_tile[2][BK][BN];

    const int x = get_local_id(0), y = get_local_id(1), id = y * GX + x;
    const long row0 = (long)get_group_id(1) * BM, col0 = (long)get_group_id(0) * BN, z = get_global_id(2);
    a += a_offset + z * a_batch + row0 * a_row;
    b += b_offset + z * b_batch + col0;
    c += c_offset + z * c_batch;
    out += out_offset + z * out_batch;

#define ROW(r) (row0 + (r) / 4 * (BM / 2) + 4 * y + (r) % 4)
#define COL(v) (col0 + (v) * (BN / 2) + 4 * x)
    float4 sum[8][2];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
        for (int v = 0; v < 2; ++v)
            sum[r][v] = resume && ROW(r) < m && COL(v) < n
                            ? gather(out + ROW(r) * out_row + COL(v) * out_col, out_col, (int)min(n - COL(v), 4L))
                            : (float4)(0);
    }

    float4 a_next[A_LOADS], b_next[B_LOADS];
#define BRING(p0)                                                                                         \
    _Pragma("unroll") for (int u = 0; u < A_LOADS; ++u) {                                                 \
        const int t = id + u * ITEMS;                                                                     \
        a_next[u] = vload4(0, a + t / (BK / 4) * a_row + (p0) + t % (BK / 4) * 4);                        \
    }                                                                                                     \
    _Pragma("unroll") for (int u = 0; u < B_LOADS; ++u) {                                                 \
        const int t = id + u * ITEMS;                                                                     \
        b_next[u] = vload4(0, b + ((p0) + t / (BN / 4)) * b_row + t % (BN / 4) * 4);                      \
    }
#define PLACE(which)                                                                                      \
    _Pragma("unroll") for (int u = 0; u < A_LOADS; ++u) {                                                 \
        const int t = id + u * ITEMS, p = t % (BK / 4) * 4, r = t / (BK / 4);                             \
        a_tile[which][p][r] = a_next[u].x, a_tile[which][p + 1][r] = a_next[u].y;                         \
        a_tile[which][p + 2][r] = a_next[u].z, a_tile[which][p + 3][r] = a_next[u].w;                     \
    }                                                                                                     \
    _Pragma("unroll") for (int u = 0; u < B_LOADS; ++u) {                                                 \
        const int t = id + u * ITEMS;                                                                     \
        vstore4(b_next[u], 0, &b_tile[which][t / (BN / 4)][t % (BN / 4) * 4]);                            \
    }

    if (k > 0) {
        BRING(0)
        PLACE(0)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p0 = 0, now = 0; p0 < k; p0 += BK, now ^= 1) {
        const int more = p0 + BK < k;
        if (more) {
            BRING(p0 + BK)
        }
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            const float4 a0 = vload4(0, &a_tile[now][p][4 * y]), a1 = vload4(0, &a_tile[now][p][BM / 2 + 4 * y]);
            const float4 b0 = vload4(0, &b_tile[now][p][4 * x]), b1 = vload4(0, &b_tile[now][p][BN / 2 + 4 * x]);
#define STEP(r, value) sum[r][0] = MAC(value, b0, sum[r][0]), sum[r][1] = MAC(value, b1, sum[r][1]);
            STEP(0, a0.x) STEP(1, a0.y) STEP(2, a0.z) STEP(3, a0.w)
            STEP(4, a1.x) STEP(5, a1.y) STEP(6, a1.z) STEP(7, a1.w)
        }
        if (more) {
            PLACE(now ^ 1)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
            const long i = ROW(r), j = COL(v);
            if (i < m && j < n) {
                const int cols = (int)min(n - j, 4L);
                float4 result = finish ? alpha * sum[r][v] : sum[r][v];
                if (finish && beta != 0)
                    result = fma((float4)(beta), gather(c + i * c_row + j * c_col, c_col, cols), result);
                scatter(result, out + i * out_row + j * out_col, out_col, cols);
            }
        }
    }
}
