/* out = alpha * a * b + beta * c on large GPUs: a work-group computes BM x BN of out from tiles in local memory, with
 * TM x TN outputs per work-item in registers.
 *
 *                      BN columns            The tiles are double-buffered: while one is multiplied, the next one is
 *                  +----------------+        loaded into registers and then stored to the other buffer. This takes one
 *            BK    |     b_tile     |        barrier per step. a_tile is transposed, so that the rows of a work-item
 *                  +----------------+        are adjacent.
 *       BK         |  TM x TN       |
 *     +------+     |  outputs in    |        A work-item's outputs are TM / 4 x TN / 4 blocks of 4 x 4, distributed
 *  BM |a_tile|     |  4 x 4 blocks  |        over the tile so that adjacent work-items read adjacent float4.
 *     +------+     +----------------+
 *
 * a and b are padded row-major buffers: a is padded to a multiple of BM rows, b to a multiple of BN columns, and both
 * along K to a multiple of BK; `k` is the padded size. Along K, a is padded with -0.0 and b with +0.0: adding their
 * product, -0.0, changes no sum, not even -0.0. out and c are not padded.
 *
 * With DIRECT, nothing is padded in memory, and the operands may have any strides. Work-items read four adjacent
 * elements along the axis that has unit stride, as a vector if all four exist and are aligned, and pad in registers.
 * `k` is then the size of the product.
 */

#include "gemm.clh"

#ifndef BM        /* rows of out per work-group */
#define BM 64
#endif
#ifndef BN        /* columns of out per work-group */
#define BN 64
#endif
#ifndef BK        /* step along k, a multiple of 4 */
#define BK 16
#endif
#ifndef TM        /* rows of out per work-item, a multiple of 4 */
#define TM 8
#endif
#ifndef TN        /* columns of out per work-item, a multiple of 4 */
#define TN 4
#endif
#ifndef DIRECT    /* 1: reads a and b in their original layout */
#define DIRECT 0
#endif
#define GX (BN / TN)        /* work-items per group along n */
#define GY (BM / TM)        /* work-items per group along m */
#define ITEMS (GX * GY)
#define A_LOADS (BM * BK / 4 / ITEMS) /* number of float4 of a that a work-item loads per step */
#define B_LOADS (BN * BK / 4 / ITEMS)
#if BM * BK / 4 % ITEMS || BN * BK / 4 % ITEMS
#error "the work-items must share the float4 of each tile evenly"
#endif

__attribute__((reqd_work_group_size(GX, GY, 1)))
kernel void gemm_generic_tile(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    /* The 4 additional elements per row distribute the transposed stores over more banks. */
    local accum a_tile[2][BK][BM + 4] __attribute__((aligned(32)));
    local accum b_tile[2][BK][BN + 4 * DIRECT] __attribute__((aligned(32)));

    const uint x = get_local_id(0), y = get_local_id(1), id = y * GX + x;
    const int row0 = get_group_id(1) * BM, col0 = get_group_id(0) * BN;
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

    /* Work-items load a tile in vectors of four: along k (`deep`), or across k. Vector t starts at row Q of a or column
     * Q of b, and at step P. */
#if DIRECT
#define WHOLE(at, unit, pitch) ((unit) == 1 && !((at.s0 | (pitch) | at.s3) & 3))
    const long a_row = a_at.s1, a_step = a_at.s2, b_row = b_at.s1, b_step = b_at.s2;
    const int a_deep = a_row != 1, b_deep = b_row == 1 && b_step != 1;
    const int a_whole = row0 + BM <= m && WHOLE(a_at, a_deep ? a_step : a_row, a_deep ? a_row : a_step);
    const int b_whole = col0 + BN <= n && WHOLE(b_at, b_deep ? b_row : b_step, b_deep ? b_step : b_row);
#define FOUR(from, whole, step, left, pad) (whole && depth >= BK ? LOAD4(from) : four(from, step, left, pad))
#else
    const int a_row = a_at.s1, a_step = 1, b_row = b_at.s1, b_step = 1;
    enum { a_deep = 1, b_deep = 0 };
#define FOUR(from, whole, step, left, pad) LOAD4(from)
#endif
#define Q(width, deep) ((deep) ? t / (BK / 4) : t % (width / 4) * 4)
#define P(width, deep) ((deep) ? t % (BK / 4) * 4 : t / (width / 4))
#define FETCH(x, loads, width, across, along, room, pad)                                                \
    _Pragma("unroll") for (int u = 0; u < loads; ++u) {                                                 \
        const uint t = id + u * ITEMS;                                                                  \
        const int q = Q(width, x##_deep), p = P(width, x##_deep);                                       \
        x##_next[u] = FOUR(x + q * across + p * along, x##_whole, x##_deep ? along : across,            \
                           x##_deep ? (q < room ? depth - p : 0) : (p < depth ? room - q : 0), pad);    \
    }                                                                                                   \
    x += (long)BK * along;
#define STORE(x, loads, width, which)                                                                   \
    _Pragma("unroll") for (int u = 0; u < loads; ++u) {                                                 \
        const uint t = id + u * ITEMS;                                                                  \
        const int q = Q(width, x##_deep), p = P(width, x##_deep);                                       \
        if (x##_deep) {                                                                                 \
            x##_tile[which][p][q] = x##_next[u].s0, x##_tile[which][p + 1][q] = x##_next[u].s1;          \
            x##_tile[which][p + 2][q] = x##_next[u].s2, x##_tile[which][p + 3][q] = x##_next[u].s3;      \
        } else {                                                                                        \
            *(local accum4 *)&x##_tile[which][p][q] = x##_next[u];                                      \
        }                                                                                               \
    }
    accum4 a_next[A_LOADS], b_next[B_LOADS];
#define BRING(p0)                                                                                       \
    {                                                                                                   \
        const int depth = k - (p0);                                                                     \
        FETCH(a, A_LOADS, BM, a_row, a_step, m - row0, -(accum)0)                                       \
        FETCH(b, B_LOADS, BN, b_step, b_row, n - col0, (accum)0)                                        \
    }
#define PLACE(which)                                                                                    \
    STORE(a, A_LOADS, BM, which)                                                                        \
    STORE(b, B_LOADS, BN, which)
#define TILE4(tile, p, at) (*(local const accum4 *)&tile[p][at])

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
