/* float16 by sgemm_avx2_6x16's tiles; F16C widens and rounds, 8 elements at a time. */
#include "avx2.h"
#include "floats.h"

#undef TARGET
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define TARGET
#endif

TARGET static inline __m256 load(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

TARGET static inline void store(uint16_t *p, __m256 v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

#include "halves.h"
#define KERNEL hgemm_avx2_6x16
#define NAME hgemm
#include "tile.h"
