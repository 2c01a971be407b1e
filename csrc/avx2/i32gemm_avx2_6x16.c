/* int32 and uint32: the low halves of the products. */
#include <immintrin.h>

#define KERNEL i32gemm_avx2_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2")))
#endif
#define A uint32_t
#define B uint32_t
#define C uint32_t
#define SUM uint32_t
#define PA uint32_t
#define PB uint32_t
#define SAME 1
#define MR 6
#define NV 2
#define VL 8
#define K_GROUP 1
#define ACC __m256i
#define X __m256i
#define Y __m256i
#define ZERO _mm256_setzero_si256()
#define GET(p) _mm256_loadu_si256((const __m256i *)(p))
#define PUT(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define SPLAT(p) _mm256_set1_epi32((int)*(p))
#define ROW(p) _mm256_loadu_si256((const __m256i *)(p))
#define STEP(acc, x, y) _mm256_add_epi32(acc, _mm256_mullo_epi32(x, y))
#include "../wrap.h"
