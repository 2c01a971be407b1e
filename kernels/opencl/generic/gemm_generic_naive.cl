/* out = alpha * a * b + beta * c, one output per work-item, directly from global memory.
 *
 *           n  ->  get_global_id(0)                Every operand is a strided stack of matrices:
 *        +-----------+                             element (z, i, j) is at index
 *      m |           |  work-item (j, i, z):         offset + z * batch + i * row + j * col
 *      | |     o     |  one row of a times one     of its buffer. Strides may have any value,
 *      v |           |  column of b                also negative or zero.
 *  id(1) +-----------+
 */

#include "gemm.clh"

#ifndef WGM       /* preferred work-group: WGN work-items along n, WGM along m */
#define WGM 8
#endif
#ifndef WGN
#define WGN 16
#endif

__attribute__((work_group_size_hint(WGN, WGM, 1)))
kernel void gemm_generic_naive(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const int j = get_global_id(0), i = get_global_id(1);
    if (i >= m || j >= n) return;
    a = AT(a, z, i, 0);
    b = AT(b, z, 0, j);

    accum sum = START(z, i, j);
    for (int p = 0; p < k; ++p) sum = MAC(LOAD(a + p * a_at.s2), LOAD(b + p * b_at.s1), sum);
    FINISH(sum, z, i, j)
}
