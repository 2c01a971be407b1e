/* out = alpha * a * b + beta * c on Intel GPUs. a and b are images. A work-group is one sub-group of 8 work-items
 * (lanes), which together read blocks of a and b. A work-item computes TM x TN elements of out: 32 x 2 in the drawing;
 * the kernel also supports 32 x 1, 4 x 2 and 4 x 1. In the drawing, the sub-group computes a 32 x 16 tile of out.
 *
 *                  lane 0..7  lane 0..7              block_read8 at (x, y) of an R32 image reads rows y to y + 7;
 *                +----------+----------+             lane l gets the element at x + l of each row.
 *           8 k  |    b0    |    b1    |             b0 (b1): lane l holds 8 elements of column l (8 + l) of b.
 *                +----------+----------+             rows: lane l holds column l (one k) of 8 rows of a;
 *        8 k                                               a shuffle copies the column of one lane to all lanes.
 *      +-----+   +----------+----------+
 *    8 |     |   |  sum0[0] | sum1[0]  |             a: image, texel (p, z * a_rows + i) = a[z][i][p]
 *    8 | rows|   |  sum0[1] | sum1[1]  |             b: image, texel (j, z * b_rows + p) = b[z][p][j]
 *    8 |     |   |  sum0[2] | sum1[2]  |             out, c: buffers, element (z, i, j) at
 *    8 |     |   |  sum0[3] | sum1[3]  |               offset + z * batch + i * row + j * col
 *      +-----+   +----------+----------+
 *
 * (This algorithm was published for column-major matrices, for which the kernel computes b' a' = (a b)'.) a is padded
 * to a multiple of TM rows, b to a multiple of 8 TN columns, and both along K to a multiple of 8; `k` is the padded
 * size. Block reads outside an image return garbage on some runtimes, so the kernel never reads there. Texels have 4
 * bytes, the largest size for which block reads are defined; the x coordinate of a block read counts BYTES. Along K, a
 * is padded with -0.0 and b with +0.0: adding their product, -0.0, changes no sum, not even -0.0.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out per work-item: 4 or 32 */
#define TM 32
#endif
#ifndef TN        /* columns of out per work-item: 1, or 2 at a distance of SG columns */
#define TN 2
#endif
#ifndef SG        /* work-items per sub-group, and per work-group */
#define SG 8
#endif
#if (TM != 32 && TM != 4) || (TN != 1 && TN != 2) || SG != 8
#error "the tile is written out for TM = 32 or 4, TN = 1 or 2, SG = 8"
#endif

/* A block read of a gives each lane a `part`: one element of each of 8 rows (TM 32) or of 4 rows (TM 4). */
#if TM == 32
#define PARTS 4
typedef float8 part;
#define READ_PART(image, x, y) as_float8(intel_sub_group_block_read8(image, (int2)((x) * 4, y)))
#define EACH_ROW(DO, q) DO(q, 0) DO(q, 1) DO(q, 2) DO(q, 3) DO(q, 4) DO(q, 5) DO(q, 6) DO(q, 7)
#define EACH(DO) EACH_ROW(DO, 0) EACH_ROW(DO, 1) EACH_ROW(DO, 2) EACH_ROW(DO, 3)
#else
#define PARTS 1
typedef float4 part;
#define READ_PART(image, x, y) as_float4(intel_sub_group_block_read4(image, (int2)((x) * 4, y)))
#define EACH(DO) DO(0, 0) DO(0, 1) DO(0, 2) DO(0, 3)
#endif
#define READ8(image, x, y) as_float8(intel_sub_group_block_read8(image, (int2)((x) * 4, y)))
#define EACH_K(DO, q) DO(q, 0) DO(q, 1) DO(q, 2) DO(q, 3) DO(q, 4) DO(q, 5) DO(q, 6) DO(q, 7)

__attribute__((reqd_work_group_size(SG, 1, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void sgemm_intel_block_read(IMAGE(a), IMAGE(b), RESULT)
{
    UNPACK
    const int matrix = get_group_id(2); /* z as an int, which takes fewer registers */
    int i0 = get_group_id(1) * TM, j0 = get_group_id(0) * SG * TN;
    const int ya = matrix * a_rows + i0, yb = matrix * b_rows;
    const int lane = get_sub_group_local_id();

    part sum0[PARTS];
#if TN == 2
    part sum1[PARTS];
#endif
#define BEGIN0(q, e) sum0[q].s##e = START(matrix, i0 + 8 * q + e, j0 + lane);
#define BEGIN1(q, e) sum1[q].s##e = START(matrix, i0 + 8 * q + e, j0 + lane + SG);
    EACH(BEGIN0)
#if TN == 2
    EACH(BEGIN1)
#endif

    int pos = 0;
    for (; pos < k; pos += 8) {
        const float8 b0 = READ8(b, j0, yb + pos);
#if TN == 2
        const float8 b1 = READ8(b, j0 + SG, yb + pos);
#endif
#pragma unroll
        for (int q = 0; q < PARTS; ++q) {
            const part rows = READ_PART(a, pos, ya + 8 * q);
#if TN == 2
#define STEP(q, p)                                                                                        \
    {                                                                                                     \
        const part ap = intel_sub_group_shuffle(rows, p);                                                 \
        sum0[q] = MAC(ap, (part)(b0.s##p), sum0[q]);                                                      \
        sum1[q] = MAC(ap, (part)(b1.s##p), sum1[q]);                                                      \
    }
#else
#define STEP(q, p) sum0[q] = MAC(intel_sub_group_shuffle(rows, p), (part)(b0.s##p), sum0[q]);
#endif
            EACH_K(STEP, q)
        }
    }

    /* pos is k here, so the next line adds 0. This keeps the final addresses out of the loop's registers: see
     * gemm_intel_L3_SIMD. */
    i0 += pos - k, j0 += pos - k;
#define STORE0(q, e) FINISH(sum0[q].s##e, matrix, i0 + 8 * q + e, j0 + lane)
#define STORE1(q, e) FINISH(sum1[q].s##e, matrix, i0 + 8 * q + e, j0 + lane + SG)
    EACH(STORE0)
#if TN == 2
    EACH(STORE1)
#endif
}
