/* out = alpha * a * b + beta * c, one output a work-item, straight from memory.
 *
 *           n  ->  get_global_id(0)                Every operand is a strided stack of matrices:
 *        +-----------+                             element (z, i, j) lies at
 *      m |           |  work-item (j, i, z):         offset + z * batch + i * row + j * col
 *      | |     o     |  one row of a times one     elements after its buffer's start. Any strides,
 *      v |           |  column of b                negative and zero ones too.
 *  id(1) +-----------+
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
#ifndef WGM       /* preferred work-group: WGN work-items along n, WGM along m */
#define WGM 8
#endif
#ifndef WGN
#define WGN 16
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma(x, y, sum)
#else
#define MAC(x, y, sum) ((x) * (y) + (sum))
#endif

__attribute__((work_group_size_hint(WGN, WGM, 1)))
kernel void gemm_generic_naive(
    global const REAL *a, long a_offset, long a_row, long a_col, long a_batch,
    global const REAL *b, long b_offset, long b_row, long b_col, long b_batch,
    global const REAL *c, long c_offset, long c_row, long c_col, long c_batch,
    global REAL *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, REAL alpha, REAL beta, int resume, int finish)
{
    const long j = get_global_id(0), i = get_global_id(1), z = get_global_id(2);
    if (i >= m || j >= n) return;
    a += a_offset + z * a_batch + i * a_row;
    b += b_offset + z * b_batch + j * b_col;
    out += out_offset + z * out_batch + i * out_row + j * out_col;

    REAL sum = resume ? *out : (REAL)0;
    for (int p = 0; p < k; ++p) sum = MAC(a[p * a_col], b[p * b_row], sum);

    if (finish) {
        sum = alpha * sum;
        if (beta != 0) sum = fma(beta, c[c_offset + z * c_batch + i * c_row + j * c_col], sum);
    }
    *out = sum;
}
