/* out = alpha * a * b + beta * c for OpenCL on CPUs, where a work-item has a whole core. A work-item computes TM x TN
 * outputs in vector registers. A work-group is one work-item.
 *
 *                       TN columns
 *                      +----------+      b: a buffer of panels. A panel has TN columns for all k, row after row, so
 *               all k  |  panel   |         that a work-item reads one stream of memory.
 *                      +----------+      a: a row-major buffer. A work-item reads TM rows, one element at a
 *        all k                              time, and multiplies each element by a row of the panel.
 *      +---------+     +----------+
 *   TM |         |     | TM x TN  |      Consecutive work-items have different rows of a and the same panel, so
 *      +---------+     +----------+      that the panel stays in the cache while all of a is read.
 *
 * b is padded to a multiple of TN columns; nothing is padded along K. For rows below the last row of a, the kernel
 * reads the last row again and does not store the sums. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out per work-item */
#define TM 4
#endif
#ifndef VEC       /* elements per vector: 4, 8 or 16 */
#define VEC 8
#endif
#ifndef NV        /* vectors per row of a work-item's outputs */
#define NV 3
#endif
#ifndef TN        /* columns of out per work-item: NV * VEC */
#define TN 24
#endif
#define vec JOIN(accum, VEC)
#define LOAD_VEC JOIN(LOAD, VEC)
#define STORE_VEC JOIN(vstore, VEC)

__attribute__((reqd_work_group_size(1, 1, 1)))
kernel void gemm_generic_panel(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const size_t wide = get_global_size(0), tall = get_global_size(1);
    const size_t at = get_global_id(1) * wide + get_global_id(0);
    const int panel = at / tall, i0 = (int)(at - panel * tall) * TM, j0 = panel * TN;
    const int cols = min(TN, n - j0);
    global const real *line[TM];
#pragma unroll
    for (int r = 0; r < TM; ++r) line[r] = AT(a, z, min(i0 + r, m - 1), 0);
    b = AT(b, z, 0, 0) + (long)panel * k * TN;

    vec sum[TM * NV];
#pragma unroll
    for (int t = 0; t < TM * NV; ++t) {
        sum[t] = (vec)(0);
        if (resume) {
            accum before[VEC];
            for (int j = 0; j < VEC; ++j) before[j] = START(z, i0 + t / NV, j0 + t % NV * VEC + j);
            sum[t] = JOIN(vload, VEC)(0, before);
        }
    }

    for (int p = 0; p < k; ++p, b += TN) {
        vec row[NV];
#pragma unroll
        for (int v = 0; v < NV; ++v) row[v] = LOAD_VEC(b + v * VEC);
#pragma unroll
        for (int r = 0; r < TM; ++r) {
            const vec ap = (vec)(LOAD(line[r] + p));
#pragma unroll
            for (int v = 0; v < NV; ++v) sum[r * NV + v] = MAC(ap, row[v], sum[r * NV + v]);
        }
    }

    const int whole = out_at.s2 == 1 && cols == TN && finish && beta == 0 && PRECISION >= 32;
#pragma unroll
    for (int t = 0; t < TM * NV; ++t) {
        const int i = i0 + t / NV, j = j0 + t % NV * VEC;
        if (i >= m) break;
#if PRECISION >= 32
        if (whole) {
            STORE_VEC(alpha * sum[t], 0, AT(out, z, i, j));
            continue;
        }
#endif
        accum after[VEC];
        STORE_VEC(sum[t], 0, after);
        for (int e = 0; e < VEC; ++e) {
            FINISH(after[e], z, i, j + e)
        }
    }
}
