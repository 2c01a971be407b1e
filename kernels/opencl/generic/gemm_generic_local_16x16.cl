/* out = alpha * a * b + beta * c through tiles of a and b in local memory, one output per work-item.
 *
 *                     BN                A work-group computes a BM x BN tile of out and steps along K by BK.
 *                 +--------+            In each step it copies a BM x BK tile of a and a BK x BN tile of b,
 *              BK | b_tile |            synchronizes, multiplies the tiles, and synchronizes again.
 *                 +--------+
 *          BK                           Element (z, i, j) of an operand is at index
 *       +------+  +--------+              offset + z * batch + i * row + j * col
 *    BM | a_   |  |  out   |            of its buffer. Strides may have any value. The copies read along the
 *       | tile |  |        |            axis that has unit stride, so that adjacent work-items read adjacent
 *       +------+  +--------+            elements, whether the operand is transposed or not.
 */

#include "gemm.clh"

#ifndef BM        /* rows of the tile of out; also work-items along m */
#define BM 16
#endif
#ifndef BN        /* columns of the tile of out; also work-items along n */
#define BN 16
#endif
#ifndef BK        /* step along k */
#define BK 16
#endif

__attribute__((reqd_work_group_size(BN, BM, 1)))
kernel void gemm_generic_local_16x16(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    /* The additional element per row avoids bank conflicts when a copy writes along the columns of a tile. */
    local accum a_tile[BM][BK + 1], b_tile[BK][BN + 1];

    const int tx = get_local_id(0), ty = get_local_id(1), id = ty * BN + tx;
    const int row0 = get_group_id(1) * BM, col0 = get_group_id(0) * BN, i = row0 + ty, j = col0 + tx;
    const int a_turned = a_at.s1 == 1, b_turned = b_at.s1 == 1;
    a = AT(a, z, row0, 0);
    b = AT(b, z, 0, col0);

    accum sum = START(z, i, j);
    for (int p0 = 0; p0 < k; p0 += BK) {
        const int depth = min(BK, k - p0);
        /* Outside of a and b the tiles are 0. No product with this padding affects a stored output: sums of rows and
         * columns outside are not stored, and the loop over p stops at `depth`. */
        for (int t = id; t < BM * BK; t += BM * BN) {
            const int r = a_turned ? t % BM : t / BK, p = a_turned ? t / BM : t % BK;
            a_tile[r][p] = row0 + r < m && p < depth ? LOAD(a + r * a_at.s1 + (p0 + p) * a_at.s2) : (accum)0;
        }
        for (int t = id; t < BK * BN; t += BM * BN) {
            const int s = b_turned ? t / BK : t % BN, p = b_turned ? t % BK : t / BN;
            b_tile[p][s] = col0 + s < n && p < depth ? LOAD(b + (p0 + p) * b_at.s1 + s * b_at.s2) : (accum)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (depth == BK) { /* a constant trip count, so that the compiler unrolls the loop */
            for (int p = 0; p < BK; ++p) sum = MAC(a_tile[ty][p], b_tile[p][tx], sum);
        } else {
            for (int p = 0; p < depth; ++p) sum = MAC(a_tile[ty][p], b_tile[p][tx], sum);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    FINISH(sum, z, i, j)
}
