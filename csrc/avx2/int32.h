/* wrap.h's parameters for 8 int32 sums in a ymm, 2 vectors per row. */
#define NV 2
#define VL 8
#define SUM uint32_t
#define ACC __m256i
#define X __m256i
#define Y __m256i
#define ZERO _mm256_setzero_si256()
#define GET(p) _mm256_loadu_si256((const __m256i *)(p))
#define PUT(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define SPLAT(p) _mm256_set1_epi32(group_of(p))
#define ROW(p) _mm256_loadu_si256((const __m256i *)(p))
#define TRANSPOSE_GROUPS avx2_transpose_groups
#define TRANSPOSED_ROWS 8
#define GROUP_LINES(to, x, step) \
    ((K_GROUP) == 4 ? avx2_interleave_bytes(to, x, step) : avx2_interleave_shorts(to, x, step))
#include "group.h"
#include "wrap.h"
