/* out = alpha * a * b + beta * c for int8 with int32 sums. One instruction computes four products and their sum
 * (cl_khr_integer_dot_product). A work-group computes BM x BN of out from tiles in local memory, with TM x TN outputs
 * per work-item.
 *
 *                      BN columns            A word of a tile has four adjacent elements along k, of one row of a or
 *                  +----------------+        one column of b. A work-item loads blocks of 4 x 4 bytes: four reads
 *        BK / 4    |  b_tile: words |        along the axis that has unit stride. If that axis is not k, the block is
 *                  +----------------+        transposed in registers. Then four adjacent words are stored to the tile.
 *      BK / 4
 *     +------+     +----------------+        Operands are read in their original layout, with any strides, and are not
 *  BM |a_tile|     |  TM x TN       |        padded in memory; outside of the operands the tiles are 0. a_tile is
 *     +------+     +----------------+        transposed, so that the rows of a work-item are adjacent.
 */

#ifndef PRECISION
#define PRECISION 8
#endif
#include "gemm.clh"

#ifndef BM        /* rows of out per work-group */
#define BM 64
#endif
#ifndef BN        /* columns of out per work-group */
#define BN 64
#endif
#ifndef BK        /* step along k, a multiple of 4 */
#define BK 64
#endif
#ifndef TM        /* rows of out per work-item, a multiple of 4 */
#define TM 8
#endif
#ifndef TN        /* columns of out per work-item, a multiple of 4 */
#define TN 4
#endif
#define GX (BN / TN)        /* work-items per group along n */
#define GY (BM / TM)        /* work-items per group along m */
#define ITEMS (GX * GY)
#define A_BLOCKS (BM * BK / 16 / ITEMS) /* number of 4 x 4 blocks of a that a work-item loads per step */
#define B_BLOCKS (BN * BK / 16 / ITEMS)
#if BM * BK / 16 % ITEMS || BN * BK / 16 % ITEMS
#error "the work-items must share the blocks of each tile evenly"
#endif

/* Returns four bytes from x on, which are `step` apart. Only the first `left` exist; the others become 0. whole: `step`
 * is 1, and x is aligned to 4 bytes. */
char4 bytes(global const char *x, long step, int left, int whole)
{
    return whole && left >= 4 ? *(global const char4 *)x : convert_char4(four(x, step, left, 0));
}

/* Returns the 4 x 4 block of bytes at x as four words, each of four bytes along k. across, along: the strides across
 * and along k. width, depth: the number of elements that exist across and along k. deep: 1 to read the block along k, 0
 * across k. whole: see `bytes`. */
uint4 block(global const char *x, long across, long along, int width, int depth, int deep, int whole)
{
    const long step = deep ? along : across, next = deep ? across : along;
    const int left = deep ? depth : width, lines = deep ? width : depth;
    char4 line[4];
#pragma unroll
    for (int l = 0; l < 4; ++l) line[l] = l < lines ? bytes(x + l * next, step, left, whole) : (char4)(0);
    if (deep) return (uint4)(as_uint(line[0]), as_uint(line[1]), as_uint(line[2]), as_uint(line[3]));
    return (uint4)(as_uint((char4)(line[0].s0, line[1].s0, line[2].s0, line[3].s0)),
                   as_uint((char4)(line[0].s1, line[1].s1, line[2].s1, line[3].s1)),
                   as_uint((char4)(line[0].s2, line[1].s2, line[2].s2, line[3].s2)),
                   as_uint((char4)(line[0].s3, line[1].s3, line[2].s3, line[3].s3)));
}

__attribute__((reqd_work_group_size(GX, GY, 1)))
kernel void gemm_generic_packed(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local uint a_tile[BK / 4][BM + 4] __attribute__((aligned(16)));
    local uint b_tile[BK / 4][BN + 4] __attribute__((aligned(16)));

    const uint x = get_local_id(0), y = get_local_id(1), id = y * GX + x;
    const int row0 = get_group_id(1) * BM, col0 = get_group_id(0) * BN;
    const long a_row = a_at.s1, a_step = a_at.s2, b_row = b_at.s1, b_step = b_at.s2;
    const int a_deep = a_row != 1, b_deep = b_row == 1 && b_step != 1;
#define WHOLE(at, unit, pitch) ((unit) == 1 && !((at.s0 | (pitch) | at.s3) & 3))
    const int a_whole = WHOLE(a_at, a_deep ? a_step : a_row, a_deep ? a_row : a_step);
    const int b_whole = WHOLE(b_at, b_deep ? b_row : b_step, b_deep ? b_step : b_row);
    a = AT(a, z, row0, k0);
    b = AT(b, z, k0, col0);

#define ROW(r) (row0 + (r) / 4 * (4 * GY) + 4 * y + (r) % 4)
#define COL(v) (col0 + (v) * (4 * GX) + 4 * x)
    int4 sum[TM][TN / 4];
#pragma unroll
    for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int v = 0; v < TN / 4; ++v) sum[r][v] = START4(z, ROW(r), COL(v));
    }

/* Blocks are numbered along k first if the operand has unit stride along k, else across k first. Therefore adjacent
 * work-items read adjacent blocks. */
#define BRING(x, blocks, width, across, along, room)                                                    \
    _Pragma("unroll") for (int u = 0; u < blocks; ++u) {                                                \
        const uint t = id + u * ITEMS;                                                                  \
        const int q = (x##_deep ? t / (BK / 4) : t % (width / 4)) * 4;                                  \
        const int p = (x##_deep ? t % (BK / 4) : t / (width / 4)) * 4;                                  \
        *(local uint4 *)&x##_tile[p / 4][q] = block(x + q * across + (p0 + p) * along, across, along,   \
                                                    room - q, k - p0 - p, x##_deep, x##_whole);         \
    }
#define WORD4(tile, p, at) (*(local const uint4 *)&tile[p][at])
#define DOT4(left, right)                                                                               \
    (int4)(dot_4x8packed_ss_int(left, right.s0), dot_4x8packed_ss_int(left, right.s1),                  \
           dot_4x8packed_ss_int(left, right.s2), dot_4x8packed_ss_int(left, right.s3))

    for (int p0 = 0; p0 < k; p0 += BK) {
        BRING(a, A_BLOCKS, BM, a_row, a_step, m - row0)
        BRING(b, B_BLOCKS, BN, b_step, b_row, n - col0)
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int p = 0; p < BK / 4; ++p) {
            uint4 row[TN / 4];
#pragma unroll
            for (int v = 0; v < TN / 4; ++v) row[v] = WORD4(b_tile, p, v * (4 * GX) + 4 * x);
#pragma unroll
            for (int u = 0; u < TM / 4; ++u) {
                const uint4 ap = WORD4(a_tile, p, u * (4 * GY) + 4 * y);
#pragma unroll
                for (int v = 0; v < TN / 4; ++v) {
                    sum[4 * u][v] += DOT4(ap.s0, row[v]);
                    sum[4 * u + 1][v] += DOT4(ap.s1, row[v]);
                    sum[4 * u + 2][v] += DOT4(ap.s2, row[v]);
                    sum[4 * u + 3][v] += DOT4(ap.s3, row[v]);
                }
            }
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
