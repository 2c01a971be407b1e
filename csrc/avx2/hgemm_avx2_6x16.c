/* float16 with the tiles of sgemm_avx2_6x16. F16C instructions widen and round 8 elements at a time. */
#include "avx2.h"
#include "group.h"
#include "panel_compiler.h"

#ifdef __GNUC__
#define HALVES __attribute__((target("avx2,fma,f16c")))
#else
#define HALVES
#endif
#undef TARGET
#define TARGET HALVES

TARGET static inline __m256 widened(__m128i halves) {
    return _mm256_cvtph_ps(halves);
}

TARGET static inline __m256 load(const uint16_t *p) {
    return widened(_mm_loadu_si128((const __m128i *)p));
}

TARGET static inline void store(uint16_t *p, __m256 v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

TARGET static inline __m256 high(__m256i bits) {
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    return widened(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08)));
}

TARGET static inline __m256 low(__m256i bits) {
    return high(_mm256_slli_epi32(bits, 16));
}

TARGET static inline __m256 splat(uint16_t x) {
    return widened(_mm_set1_epi16((short)x));
}

#define CATALOG_ROW hgemm_avx2_6x16
#include "halves.h"
