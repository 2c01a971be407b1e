/* out = alpha * a * b + beta * c where a work-item has a whole core: OpenCL on CPUs. TM x 16 NV outputs a
 * work-item in float16 registers, one work-item a group.
 *
 *                       NV float16
 *                      +----------+      b: buffer of panels, each of its 16 NV columns for all k, one row
 *               all k  |  panel   |         after the other: what a work-item reads is one stream of memory.
 *                      +----------+      a: buffer, row-major; TM streams, an element each for all columns.
 *        all k
 *      +---------+     +----------+      Rows advance before panels do, so that a panel stays in the cache
 *   TM |         |     | TM x NV  |      while all of a passes by.
 *      +---------+     +----------+
 *
 * Padded: a's rows to TM, b's columns to 16 NV; along K nothing. out and c: element (z, i, j) at
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
#ifndef TM        /* rows of out a work-item */
#define TM 6
#endif
#ifndef NV        /* float16 in a row of them */
#define NV 1
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma((float16)(x), y, sum)
#else
#define MAC(x, y, sum) ((float16)(x) * (y) + (sum))
#endif

__attribute__((reqd_work_group_size(1, 1, 1)))
kernel void sgemm_generic_panel(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    global const float *b, long b_offset, long b_row /* 16 NV */, long b_col /* 1 */, long b_batch,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    const size_t wide = get_global_size(0), tall = get_global_size(1);
    const size_t at = get_global_id(1) * wide + get_global_id(0);
    const long i0 = at % tall * TM, panel = at / tall, j0 = panel * 16 * NV, z = get_global_id(2);
    const int rows = (int)min((long)TM, m - i0), cols = (int)min(16L * NV, n - j0);
    a += a_offset + z * a_batch + i0 * a_row;
    b += b_offset + z * b_batch + panel * k * 16 * NV;
    c += c_offset + z * c_batch + i0 * c_row + j0 * c_col;
    out += out_offset + z * out_batch + i0 * out_row + j0 * out_col;
    const int whole = out_col == 1 && cols == 16 * NV;

    float16 sum[TM * NV];
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        float line[16 * NV];
        for (int j = 0; j < 16 * NV; ++j)
            line[j] = resume && r < rows && j < cols ? out[r * out_row + j * out_col] : 0.0f;
#pragma unroll
        for (int v = 0; v < NV; ++v) sum[r * NV + v] = resume ? vload16(v, line) : (float16)(0);
    }

    for (int p = 0; p < k; ++p, b += 16 * NV) {
        float16 row[NV];
#pragma unroll
        for (int v = 0; v < NV; ++v) row[v] = vload16(v, b);
#pragma unroll
        for (int r = 0; r < TM; ++r) {
#pragma unroll
            for (int v = 0; v < NV; ++v) sum[r * NV + v] = MAC(a[r * a_row + p], row[v], sum[r * NV + v]);
        }
    }

    if (finish) {
#pragma unroll
        for (int t = 0; t < TM * NV; ++t) sum[t] = alpha * sum[t];
    }
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        if (r >= rows) break;
        if (whole && !(finish && beta != 0)) {
#pragma unroll
            for (int v = 0; v < NV; ++v) vstore16(sum[r * NV + v], v, out + r * out_row);
            continue;
        }
        float line[16 * NV];
#pragma unroll
        for (int v = 0; v < NV; ++v) vstore16(sum[r * NV + v], v, line);
        for (int j = 0; j < cols; ++j)
            out[r * out_row + j * out_col] =
                finish && beta != 0 ? fma(beta, c[r * c_row + j * c_col], line[j]) : line[j];
    }
}
