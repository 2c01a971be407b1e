/* int64 and uint64 from 32-bit products: x * y = xl * yl + 2^32 (xl * yh + xh * yl) modulo 2^64, where xl and xh are
 * the low and high halves of x. One vpmuludq computes xl * yl. One vpmulld computes the other two products, with the
 * halves of y exchanged. The sums of the other two products stay separate, 32 bits each, until the end of the k loop.
 * Additions have a latency of one cycle, so 4 x 1 pairs of accumulators suffice. A larger tile spills registers. */
#include <immintrin.h>
#include <stdint.h>

#define KERNEL i64gemm_avx2_4x4
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2")))
#else
#define TARGET
#endif

typedef struct pair {
    __m256i low, cross;
} pair;

TARGET static inline pair get(const uint64_t *p) {
    return (pair){_mm256_loadu_si256((const __m256i *)p), _mm256_setzero_si256()};
}

TARGET static inline void put(uint64_t *p, pair v) {
    const __m256i cross = _mm256_slli_epi64(_mm256_add_epi32(v.cross, _mm256_srli_epi64(v.cross, 32)), 32);
    _mm256_storeu_si256((__m256i *)p, _mm256_add_epi64(v.low, cross));
}

TARGET static inline pair row(const uint64_t *p) {
    const __m256i y = _mm256_loadu_si256((const __m256i *)p);
    return (pair){y, _mm256_shuffle_epi32(y, 0xB1)};
}

TARGET static inline pair step(pair acc, __m256i x, pair y) {
    acc.low = _mm256_add_epi64(acc.low, _mm256_mul_epu32(x, y.low));
    acc.cross = _mm256_add_epi32(acc.cross, _mm256_mullo_epi32(x, y.cross));
    return acc;
}

#define A uint64_t
#define B uint64_t
#define C uint64_t
#define SUM uint64_t
#define PA uint64_t
#define PB uint64_t
#define FACTOR uint64_t
#define C_IS_SUM 1
#define MR 4
#define NV 1
#define VL 4
#define K_GROUP 1
#define ACC pair
#define X __m256i
#define Y pair
#define ZERO ((pair){_mm256_setzero_si256(), _mm256_setzero_si256()})
#define GET(p) get(p)
#define PUT(p, v) put(p, v)
#define SPLAT(p) _mm256_set1_epi64x((long long)*(p))
#define ROW(p) row(p)
#define STEP(acc, x, y) step(acc, x, y)
#include "wrap.h"
