/* out = alpha * (the sum of the parts of K) + beta * c. Runs after a product's kernel with SPLIT (see gemm.clh).
 *
 * `raw` contains m x n row-major partial sums for each part s of each matrix z, part after part. The parts are added in
 * order on every device, so that equal splits give equal results. Adjacent work-items have adjacent j.
 */

#include "gemm.clh"

kernel void sum_parts(
    global const accum *raw, int parts, global const result *c, long4 c_at, global result *out, long4 out_at,
    int4 size /* m, n; s2 and s3 are unused */, JOIN(accum, 2) scale)
{
    const int j = get_global_id(0), i = get_global_id(1), m = size.s0, n = size.s1;
    if (j >= n) return;
    const long z = get_global_id(2), whole = (long)m * n;
    const accum alpha = scale.s0, beta = scale.s1;
    raw += z * parts * whole + (long)i * n + j;
    accum sum = raw[0];
    for (int s = 1; s < parts; ++s) sum += raw[s * whole];
    PUT(EPILOGUE(accum, sum, GET(AT(c, z, i, j))), AT(out, z, i, j));
}
