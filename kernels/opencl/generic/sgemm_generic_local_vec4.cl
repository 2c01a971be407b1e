/* out = alpha * a * b + beta * c with tiles of a and b in local memory as float4. A work-item computes UNROLL_M x
 * UNROLL_N blocks of 4 x 4 outputs. The rows of a block are BS apart, and its columns are adjacent.
 *
 *                      UNROLL_N blocks of 4 BS columns
 *                     +---------------------------+     b_tile: BS rows; a row has BS float4 per block.
 *              BS p   |  b_tile: local float4     |     a_tile: 4 BS rows per block; a row has BS / 4 float4.
 *                     +---------------------------+     Work-item (tx, ty) multiplies the elements p of rows
 *        BS p         | ty     |  float4 tx  |    |     ty, BS + ty, 2 BS + ty, 3 BS + ty of a_tile by float4
 *      +------+       | BS + ty|      :      |    |     tx of row p of b_tile.
 *      |a_tile|       | 2BS+ty |      :      |    |     a, b: row-major buffers, padded to multiples: a of
 *      | 4 BS |       | 3BS+ty |      :      |    |     4 BS UNROLL_M rows, b of 4 BS UNROLL_N columns, both
 *      +------+       +---------------------------+     of BS along K.
 *
 * `k` is the padded size. Along K, a is padded with -0.0 and b with +0.0: adding their product, -0.0, changes no sum,
 * not even -0.0. out and c are not padded: element (z, i, j) is at index offset + z * batch + i * row + j * col.
 */

#include "gemm.clh"

#ifndef BS        /* work-items along each side of the group; also the step along k */
#define BS 16
#endif
#ifndef TM        /* rows of out per work-item, a multiple of 4 */
#define TM 4
#endif
#ifndef TN        /* columns of out per work-item, a multiple of 4 */
#define TN 4
#endif
#define UNROLL_M (TM / 4)
#define UNROLL_N (TN / 4)

__attribute__((reqd_work_group_size(BS, BS, 1)))
kernel void sgemm_generic_local_vec4(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local float4 a_tile[4 * BS * UNROLL_M][BS / 4], b_tile[BS][BS * UNROLL_N];

    const uint tx = get_local_id(0), ty = get_local_id(1), id = ty * BS + tx;
    const int row0 = get_group_id(1) * 4 * BS * UNROLL_M, col0 = get_group_id(0) * 4 * BS * UNROLL_N;
    a = AT(a, z, row0, 0);
    b = AT(b, z, 0, col0);
    const int a_row = a_at.s1, b_row = b_at.s1;

#define ROW(u, r) (row0 + ((u) * 4 + (r)) * BS + ty)
#define COL(v) (col0 + ((v) * BS + tx) * 4)
    float4 sum[UNROLL_M * UNROLL_N * 4];
#pragma unroll
    for (int at = 0; at < UNROLL_M * UNROLL_N * 4; ++at)
        sum[at] = START4(z, ROW(at / (4 * UNROLL_N), at % 4), COL(at / 4 % UNROLL_N));

    for (int p0 = 0; p0 < k; p0 += BS, a += BS, b += (long)BS * b_row) {
#pragma unroll
        for (uint t = id; t < BS * BS * UNROLL_M; t += BS * BS)
            a_tile[t / (BS / 4)][t % (BS / 4)] = LOAD4(a + t / (BS / 4) * a_row + t % (BS / 4) * 4);
#pragma unroll
        for (uint t = id; t < BS * BS * UNROLL_N; t += BS * BS)
            b_tile[t / (BS * UNROLL_N)][t % (BS * UNROLL_N)] =
                LOAD4(b + t / (BS * UNROLL_N) * b_row + t % (BS * UNROLL_N) * 4);
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
                    sum[at] = MAC((float4)(ai.x), b0, sum[at]);
                    sum[at] = MAC((float4)(ai.y), b1, sum[at]);
                    sum[at] = MAC((float4)(ai.z), b2, sum[at]);
                    sum[at] = MAC((float4)(ai.w), b3, sum[at]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#pragma unroll
    for (int at = 0; at < UNROLL_M * UNROLL_N * 4; ++at) {
        FINISH4(sum[at], z, ROW(at / (4 * UNROLL_N), at % 4), COL(at / 4 % UNROLL_N))
    }
}
