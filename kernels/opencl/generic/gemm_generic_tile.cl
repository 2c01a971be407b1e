/* out = alpha * a * b + beta * c on large GPUs: a group computes BM x BN of out from tiles in local memory,
 * TM x TN outputs a work-item in registers.
 *
 *                      BN columns            Two tiles of each operand: while one is multiplied, the next is on
 *                  +----------------+        its way through registers into the other; one barrier a step.
 *            BK    |     b_tile     |        a_tile is turned, so that a work-item's rows are neighbours.
 *                  +----------------+
 *       BK         |  TM x TN       |        A work-item's outputs are blocks of 4 x 4, TM / 4 x TN / 4 of
 *     +------+     |  outputs in    |        them, spread over the tile: a wavefront reads neighbouring float4.
 *  BM |a_tile|     |  4 x 4 blocks  |
 *     +------+     +----------------+        a, b: padded buffers, row-major; a to BM rows, b to BN columns, both
 *                                            along K to BK. `k` is the padded one.
 *
 * a is padded with -0.0 and b with +0.0 along K: their product -0.0 is what addition leaves every sum unchanged
 * by, a sum of -0.0 too. out and c are not padded.
 */

#include "gemm.clh"

#ifndef BM        /* rows of out a group */
#define BM 64
#endif
#ifndef BN        /* columns */
#define BN 64
#endif
#ifndef BK        /* step along k, a multiple of 4 */
#define BK 16
#endif
#ifndef TM        /* rows of out a work-item, a multiple of 4 */
#define TM 8
#endif
#ifndef TN        /* columns */
#define TN 4
#endif
#define GX (BN / TN)        /* work-items of a group along n */
#define GY (BM / TM)        /* and along m */
#define ITEMS (GX * GY)
#define A_LOADS (BM * BK / 4 / ITEMS) /* float4 that a work-item brings, each step */
#define B_LOADS (BN * BK / 4 / ITEMS)
#if BM * BK / 4 % ITEMS || BN * BK / 4 % ITEMS
#error "the work-items must share the float4 of each tile evenly"
#endif

__attribute__((reqd_work_group_size(GX, GY, 1)))
kernel void gemm_generic_tile(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local accum a_tile[2][BK][BM + 4] __attribute__((aligned(32))); /* 4: or turned stores meet in few banks */
    local accum b_tile[2][BK][BN] __attribute__((aligned(32)));

    const uint x = get_local_id(0), y = get_local_id(1), id = y * GX + x;
    const int row0 = get_group_id(1) * BM, col0 = get_group_id(0) * BN;
    const int a_row = a_at.s1, b_row = b_at.s1;
    a = AT(a, z, row0, k0);
    b = AT(b, z, k0, col0);

#define ROW(r) (row0 + (r) / 4 * (4 * GY) + 4 * y + (r) % 4)
#define COL(v) (col0 + (v) * (4 * GX) + 4 * x)
    accum4 sum[TM][TN / 4];
#pragma unroll
    for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int v = 0; v < TN / 4; ++v) sum[r][v] = START4(z, ROW(r), COL(v));
    }

    accum4 a_next[A_LOADS], b_next[B_LOADS];
#define BRING                                                                                           \
    _Pragma("unroll") for (int u = 0; u < A_LOADS; ++u) {                                               \
        const uint t = id + u * ITEMS;                                                                  \
        a_next[u] = LOAD4(a + t / (BK / 4) * a_row + t % (BK / 4) * 4);                                 \
    }                                                                                                   \
    _Pragma("unroll") for (int u = 0; u < B_LOADS; ++u) {                                               \
        const uint t = id + u * ITEMS;                                                                  \
        b_next[u] = LOAD4(b + t / (BN / 4) * b_row + t % (BN / 4) * 4);                                 \
    }                                                                                                   \
    a += BK, b += (long)BK * b_row;
#define PLACE(which)                                                                                    \
    _Pragma("unroll") for (int u = 0; u < A_LOADS; ++u) {                                               \
        const uint t = id + u * ITEMS, p = t % (BK / 4) * 4, r = t / (BK / 4);                          \
        a_tile[which][p][r] = a_next[u].x, a_tile[which][p + 1][r] = a_next[u].y;                       \
        a_tile[which][p + 2][r] = a_next[u].z, a_tile[which][p + 3][r] = a_next[u].w;                   \
    }                                                                                                   \
    _Pragma("unroll") for (int u = 0; u < B_LOADS; ++u) {                                               \
        const uint t = id + u * ITEMS;                                                                  \
        *(local accum4 *)&b_tile[which][t / (BN / 4)][t % (BN / 4) * 4] = b_next[u];                    \
    }
#define TILE4(tile, p, at) (*(local const accum4 *)&tile[p][at])

    if (k > 0) {
        BRING
        PLACE(0)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p0 = 0, now = 0; p0 < k; p0 += BK, now ^= 1) {
        const int more = p0 + BK < k;
        if (more) {
            BRING
        }
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            accum4 row[TN / 4];
#pragma unroll
            for (int v = 0; v < TN / 4; ++v) row[v] = TILE4(b_tile[now], p, v * (4 * GX) + 4 * x);
#pragma unroll
            for (int u = 0; u < TM / 4; ++u) {
                const accum4 ap = TILE4(a_tile[now], p, u * (4 * GY) + 4 * y);
#pragma unroll
                for (int v = 0; v < TN / 4; ++v) {
                    sum[4 * u][v] = MAC((accum4)(ap.x), row[v], sum[4 * u][v]);
                    sum[4 * u + 1][v] = MAC((accum4)(ap.y), row[v], sum[4 * u + 1][v]);
                    sum[4 * u + 2][v] = MAC((accum4)(ap.z), row[v], sum[4 * u + 2][v]);
                    sum[4 * u + 3][v] = MAC((accum4)(ap.w), row[v], sum[4 * u + 3][v]);
                }
            }
        }
        if (more) {
            PLACE(now ^ 1)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#pragma unroll
    for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int v = 0; v < TN / 4; ++v) {
            FINISH4(sum[r][v], z, ROW(r), COL(v))
        }
    }
}
