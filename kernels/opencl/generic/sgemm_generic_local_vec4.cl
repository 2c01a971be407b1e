/* out = alpha * a * b + beta * c with tiles of a and b in local memory as float4, 4 x 4 outputs a work-item
 * and block: its rows are BS apart, its columns neighbours. UNROLL_M x UNROLL_N such blocks a work-item.
 *
 *                      UNROLL_N blocks of 4 BS columns
 *                     +---------------------------+     Tiles: BS float4 a row of b_tile and block, BS rows;
 *              BS p   |  b_tile: local float4     |     BS / 4 float4 a row of a_tile, 4 BS rows and block.
 *                     +---------------------------+     Work-item (tx, ty) multiplies the elements p of rows
 *        BS p         | ty     |  float4 tx  |    |     ty, BS + ty, 2 BS + ty, 3 BS + ty of a_tile by float4
 *      +------+       | BS + ty|      :      |    |     tx of row p of b_tile.
 *      |a_tile|       | 2BS+ty |      :      |    |
 *      | 4 BS |       | 3BS+ty |      :      |    |     a, b: padded buffers, row-major; a to 4 BS UNROLL_M
 *      +------+       +---------------------------+     rows, b to 4 BS UNROLL_N columns, both along K to BS.
 *
 * `k` is the padded one; a is padded with -0.0 and b with +0.0 along K: their product -0.0 is what addition
 * leaves every sum unchanged by, a sum of -0.0 too. out and c: element (z, i, j) at
 * offset + z * batch + i * row + j * col; not padded.
 * K in pieces: all but the first have resume = 1 and start from the raw sums in `out`; all but the last
 * have finish = 0 and leave raw sums there. c is read only if beta != 0; a and b only if k > 0.
 */

#ifndef ORDERED   /* 1: each sum is the chain acc = fma(a, b, acc), the same bits on every device */
#define ORDERED 0
#endif
#ifndef FUSED     /* 1: the device has fma in hardware; 0: it may be emulated and slow */
#define FUSED 1
#endif
#ifndef BS        /* work-items along each side of the group, and the step along k */
#define BS 16
#endif
#ifndef UNROLL_M
#define UNROLL_M 1
#endif
#ifndef UNROLL_N
#define UNROLL_N 1
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

__attribute__((reqd_work_group_size(BS, BS, 1)))
kernel void sgemm_generic_local_vec4(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    global const float *b, long b_offset, long b_row, long b_col /* 1 */, long b_batch,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    local float4 a_tile[4 * BS * UNROLL_M][BS / 4], b_tile[BS][BS * UNROLL_N];

    const int tx = get_local_id(0), ty = get_local_id(1), id = ty * BS + tx;
    const long row0 = (long)get_group_id(1) * 4 * BS * UNROLL_M, col0 = (long)get_group_id(0) * 4 * BS * UNROLL_N;
    const long z = get_global_id(2);
    a += a_offset + z * a_batch + row0 * a_row;
    b += b_offset + z * b_batch + col0;
    c += c_offset + z * c_batch;
    out += out_offset + z * out_batch;

#define ROW(u, r) (row0 + ((u) * 4 + (r)) * BS + ty)
#define COL(v) (col0 + ((v) * BS + tx) * 4)
    float4 sum[UNROLL_M * UNROLL_N * 4];
#pragma unroll
    for (int at = 0; at < UNROLL_M * UNROLL_N * 4; ++at) {
        const long i = ROW(at / (4 * UNROLL_N), at % 4), j = COL(at / 4 % UNROLL_N);
        sum[at] = resume && i < m && j < n ? gather(out + i * out_row + j * out_col, out_col, (int)min(n - j, 4L)) : (float4)(0);
    }

    for (int p0 = 0; p0 < k; p0 += BS) {
#pragma unroll
        for (int t = id; t < BS * BS * UNROLL_M; t += BS * BS)
            a_tile[t / (BS / 4)][t % (BS / 4)] = vload4(0, a + t / (BS / 4) * a_row + p0 + t % (BS / 4) * 4);
#pragma unroll
        for (int t = id; t < BS * BS * UNROLL_N; t += BS * BS)
            b_tile[t / (BS * UNROLL_N)][t % (BS * UNROLL_N)] =
                vload4(0, b + (p0 + t / (BS * UNROLL_N)) * b_row + t % (BS * UNROLL_N) * 4);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < BS; p += 4) {
#pragma unroll
            for (int v = 0; v < UNROLL_N; ++v) {
                const float4 b0 = b_tile[p][v * BS + tx], b1 = b_tile[p + 1][v * BS + tx];
                const float4 b2 = b_tile[p + 2][v * BS + tx], b3 = b_tile[p + 3][v * BS + tx];
#pragma unroll
                for (int r = 0; r < 4 * UNROLL_M; ++r) {
                    const float4 ai = a_tile[r * BS + ty][p / 4];
                    const int at = (r / 4 * UNROLL_N + v) * 4 + r % 4;
                    sum[at] = MAC(ai.x, b0, sum[at]);
                    sum[at] = MAC(ai.y, b1, sum[at]);
                    sum[at] = MAC(ai.z, b2, sum[at]);
                    sum[at] = MAC(ai.w, b3, sum[at]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#pragma unroll
    for (int at = 0; at < UNROLL_M * UNROLL_N * 4; ++at) {
        const long i = ROW(at / (4 * UNROLL_N), at % 4), j = COL(at / 4 % UNROLL_N);
        if (i < m && j < n) {
            const int cols = (int)min(n - j, 4L);
            float4 result = finish ? alpha * sum[at] : sum[at];
            if (finish && beta != 0) result = fma((float4)(beta), gather(c + i * c_row + j * c_col, c_col, cols), result);
            scatter(result, out + i * out_row + j * out_col, out_col, cols);
        }
    }
}
