/* bfloat16 with the tiles of sgemm_avx2_6x16. Integer instructions widen to float and round floats to bfloat16. */
#include "avx2.h"
#include "group.h"
#include "opaque.h"
#include "panel_compiler.h"

#define HALVES AVX2
#undef TARGET
#define TARGET HALVES

AVX2_INLINE __m256 low(__m256i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

AVX2_INLINE __m256 high(__m256i bits) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_set1_epi32(0xFFFF), bits));
}

AVX2_INLINE __m256 widened(__m128i halves) {
    return low(_mm256_cvtepu16_epi32(halves));
}

AVX2_INLINE __m256 load(const uint16_t *p) {
    return widened(_mm_loadu_si128((const __m128i *)p));
}

AVX2_INLINE __m256 splat(uint16_t x) {
    return low(_mm256_set1_epi16((short)x));
}

AVX2_INLINE void store(uint16_t *p, __m256 v) {
    const __m256i bits = _mm256_castps_si256(v), one = _mm256_set1_epi32(opaque(1));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(opaque(0x7FFF))));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(opaque(0x400000))); /* a NaN stays a NaN */
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

#define BFLOAT16
#define CATALOG_ROW bgemm_avx2_6x16
#include "halves.h"
