/* bfloat16 with tiles of float. Integer instructions widen to float and round floats to bfloat16. */
#include "avx512.h"
#include "opaque.h"
#include "panel_compiler.h"

#ifdef __GNUC__
#define HALVES __attribute__((target("avx512f,avx512bw,avx512vl,fma")))
#else
#define HALVES
#endif
#undef TARGET
#define TARGET HALVES

TARGET static inline __m512 widened(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

TARGET static inline __m512 load(const uint16_t *p) {
    return widened(_mm256_loadu_si256((const __m256i *)p));
}

TARGET static inline __m512 load_part(const uint16_t *p, __mmask16 part) {
    return widened(_mm256_maskz_loadu_epi16(part, p));
}

TARGET static inline __m256i rounded(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(opaque(1)));
    const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(opaque(0x7FFF))));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(opaque(0x400000))); /* a NaN stays a NaN */
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, nearest, quiet), 16));
}

TARGET static inline __m512 low(__m512i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

TARGET static inline __m512 high(__m512i bits) {
    return _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0xFFFF), bits));
}

TARGET static inline __m512 splat(uint16_t x) {
    return low(_mm512_set1_epi16((short)x));
}

#define BFLOAT16
#define CATALOG_ROW bgemm_avx512_6x64
#include "halves.h"
