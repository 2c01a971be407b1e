/* out = alpha * a * b + beta * c through tiles of a and b in local memory, one output a work-item.
 *
 *                     BN                A work-group owns a BM x BN tile of `out` and walks along K in
 *                 +--------+            steps of BK: together it copies a BM x BK tile of a and a
 *              BK | b_tile |            BK x BN tile of b, waits, multiplies them, waits.
 *                 +--------+
 *          BK                           Element (z, i, j) of an operand lies at
 *       +------+  +--------+              offset + z * batch + i * row + j * col
 *    BM | a_   |  |  out   |            elements after its buffer's start; any strides. The copies run
 *       | tile |  |        |            along whichever axis has unit stride, so that neighbouring
 *       +------+  +--------+            work-items read neighbouring elements, transposed or not.
 *
 * K in pieces: all but the first have resume = 1 and start from the raw sums in `out`; all but the last
 * have finish = 0 and leave raw sums there. c is read only if beta != 0; a and b only if k > 0.
 */

#ifndef REAL      /* type of every element: float or double */
#define REAL float
#endif
#ifndef ORDERED   /* 1: each sum is the chain acc = fma(a, b, acc), the same bits on every device */
#define ORDERED 0
#endif
#ifndef FUSED     /* 1: the device has fma in hardware; 0: it may be emulated and slow */
#define FUSED 1
#endif
#ifndef BM        /* rows of the tile of out = work-items along m */
#define BM 16
#endif
#ifndef BN        /* columns of the tile of out = work-items along n */
#define BN 16
#endif
#ifndef BK        /* step along k */
#define BK 16
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma(x, y, sum)
#else
#define MAC(x, y, sum) ((x) * (y) + (sum))
#endif

__attribute__((reqd_work_group_size(BN, BM, 1)))
kernel void gemm_generic_local_16x16(
    global const REAL *a, long a_offset, long a_row, long a_col, long a_batch,
    global const REAL *b, long b_offset, long b_row, long b_col, long b_batch,
    global const REAL *c, long c_offset, long c_row, long c_col, long c_batch,
    global REAL *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, REAL alpha, REAL beta, int resume, int finish)
{
    /* One element more a row: a copy along the other axis would meet in one bank of local memory. */
    local REAL a_tile[BM][BK + 1], b_tile[BK][BN + 1];

    const int tx = get_local_id(0), ty = get_local_id(1), id = ty * BN + tx;
    const long row0 = get_group_id(1) * BM, col0 = get_group_id(0) * BN, z = get_global_id(2);
    const long i = row0 + ty, j = col0 + tx;
    const int inside = i < m && j < n;
    const int a_turned = a_row == 1, b_turned = b_row == 1;
    a += a_offset + z * a_batch + row0 * a_row;
    b += b_offset + z * b_batch + col0 * b_col;
    out += out_offset + z * out_batch + i * out_row + j * out_col;

    REAL sum = resume && inside ? *out : (REAL)0;
    for (int p0 = 0; p0 < k; p0 += BK) {
        const int depth = min(BK, k - p0);
        /* Outside of a and b the tiles hold 0: rows and columns there are never stored, and the sum
           stops at `depth`, so that no padded product touches a stored one. */
        for (int t = id; t < BM * BK; t += BM * BN) {
            const int r = a_turned ? t % BM : t / BK, p = a_turned ? t / BM : t % BK;
            a_tile[r][p] = row0 + r < m && p < depth ? a[r * a_row + (p0 + p) * a_col] : (REAL)0;
        }
        for (int t = id; t < BK * BN; t += BM * BN) {
            const int s = b_turned ? t / BK : t % BN, p = b_turned ? t % BK : t / BN;
            b_tile[p][s] = col0 + s < n && p < depth ? b[(p0 + p) * b_row + s * b_col] : (REAL)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (depth == BK) { /* a constant trip count, which compilers unroll */
            for (int p = 0; p < BK; ++p) sum = MAC(a_tile[ty][p], b_tile[p][tx], sum);
        } else {
            for (int p = 0; p < depth; ++p) sum = MAC(a_tile[ty][p], b_tile[p][tx], sum);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (!inside) return;

    if (finish) {
        sum = alpha * sum;
        if (beta != 0) sum = fma(beta, c[c_offset + z * c_batch + i * c_row + j * c_col], sum);
    }
    *out = sum;
}
