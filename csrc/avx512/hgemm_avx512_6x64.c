/* float16 by sgemm_avx512_6x64's tiles; conversions are instructions. */
#include "avx512.h"
#include "floats.h"

#undef TARGET
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,fma")))
#else
#define TARGET
#endif

TARGET static inline __m512 load(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

TARGET static inline __m512 load_part(const uint16_t *p, __mmask16 part) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part, p));
}

TARGET static inline __m256i rounded(__m512 v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

TARGET static inline void store(uint16_t *p, __m512 v) {
    _mm256_storeu_si256((__m256i *)p, rounded(v));
}

TARGET static inline void store_part(uint16_t *p, __mmask16 part, __m512 v) {
    _mm256_mask_storeu_epi16(p, part, rounded(v));
}

#define LOAD_C(p) load(p)
#define STORE_C(p, v) store(p, v)
#define LOAD_C_PART(p, part) load_part(p, part)
#define STORE_C_PART(p, part, v) store_part(p, part, v)
#define RUN 16
#define WIDEN_RUN(to, x) _mm512_storeu_ps(to, load(x))
#define MR 6
#define NV 4
#include "half.h"
#define KERNEL hgemm_avx512_6x64
#define NAME hgemm
#include "tile.h"
