/* float16 with tiles of float. One instruction widens or rounds a whole vector. */
#include "avx512.h"
#include "panel_compiler.h"

#ifdef __GNUC__
#define HALVES __attribute__((target("avx512f,avx512bw,avx512vl,fma")))
#else
#define HALVES
#endif
#undef TARGET
#define TARGET HALVES

TARGET static inline __m512 load(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

TARGET static inline __m512 load_part(const uint16_t *p, __mmask16 part) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part, p));
}

TARGET static inline __m256i rounded(__m512 v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

TARGET static inline __m512 low(__m512i bits) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
}

TARGET static inline __m512 high(__m512i bits) {
    return low(_mm512_srli_epi32(bits, 16));
}

TARGET static inline __m512 splat(uint16_t x) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)x));
}

#define CATALOG_ROW hgemm_avx512_6x64
#include "halves.h"
