/* half.h for 16 halves (float16 or bfloat16), as floats in a zmm. The kernel's file defines load, load_part and
 * rounded, and low and high, which widen the lower and the upper halves of 16 elements of 32 bits. */
TARGET static inline void store(uint16_t *p, __m512 v) {
    _mm256_storeu_si256((__m256i *)p, rounded(v));
}

TARGET static inline void store_part(uint16_t *p, __mmask16 part, __m512 v) {
    _mm256_mask_storeu_epi16(p, part, rounded(v));
}

/* tile.h's TRANSPOSE, for two halves at a time. */
TARGET INLINE void transpose(__m512 *transposed, const uint16_t *x, int64_t rs, int count) {
    __m512 pairs[4];
    avx512_transpose(pairs, x, rs * (int64_t)sizeof *x, count);
    EACH(p, 4) {
        const __m512i bits = _mm512_castps_si512(pairs[p]);
        transposed[2 * p] = low(bits), transposed[2 * p + 1] = high(bits);
    }
}

#undef TARGET
#define VECTORS "avx512/half_vectors.h"
#include "half_vectors.h"
#define RUN 16
#define WIDEN_RUN(to, x) _mm512_storeu_ps(to, load(x))
#define TRANSPOSE_GROUPS avx512_transpose_groups
#define TRANSPOSED_ROWS 16
#include "half.h"
