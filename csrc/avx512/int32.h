/* wrap.h's parameters for 16 int32 sums in a zmm, 2 vectors per row. Registers: 24 accumulators, 2 for b, 1 for a; the
 * other 5 of 32 are free for intermediate products. */
#ifndef MR
#define MR 12
#endif
#define NV 2
#define VL 16
#define SUM uint32_t
#define ACC __m512i
#define X __m512i
#define Y __m512i
#define ZERO _mm512_setzero_si512()
#define GET(p) _mm512_loadu_si512(p)
#define PUT(p, v) _mm512_storeu_si512(p, v)
#define SPLAT(p) _mm512_set1_epi32(group_of(p))
#define ROW(p) _mm512_loadu_si512(p)
#define TRANSPOSE_GROUPS avx512_transpose_groups
#define TRANSPOSED_ROWS 16
#define GROUP_LINES(to, x, step) \
    ((K_GROUP) == 4 ? avx2_interleave_bytes(to, x, step) : avx2_interleave_shorts(to, x, step))
#include "group.h"
#include "wrap.h"
