/* half.h's parameters for vectors of 16 16-bit numbers (float16 or bfloat16), which are widened to 16 floats in a zmm.
 * The kernel's file defines these functions:
 *
 *   load, load_part   convert 16 numbers from memory, or a part of them
 *   rounded           converts 16 floats to 16-bit numbers in a register
 *   low, high         convert the lower or the upper 16 bits of each of 16 elements of 32 bits
 */
TARGET static inline void store(uint16_t *p, __m512 v) {
    _mm256_storeu_si256((__m256i *)p, rounded(v));
}

TARGET static inline void store_part(uint16_t *p, __mmask16 part, __m512 v) {
    _mm256_mask_storeu_epi16(p, part, rounded(v));
}

/* tile.h's TRANSPOSE. Moves two adjacent 16-bit numbers of a row at a time, as one element of 32 bits. */
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
