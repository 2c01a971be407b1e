/* half.h's parameters for vectors of 8 16-bit numbers (float16 or bfloat16), which are widened to 8 floats in a ymm.
 * The kernel's file defines these functions:
 *
 *   load, store    convert 8 numbers from or to memory
 *   widened        converts 8 numbers in a register
 *   low, high      convert the lower or the upper 16 bits of each of 8 elements of 32 bits
 */

/* Loads `count` elements, 1 to 8. For 4 or more elements, one load has the first 4 and the other load has the last 4.
 * For 2 or 3 elements, each load has 2. If the loads overlap, a shift removes the duplicates. */
TARGET static inline __m256 load_part(const uint16_t *p, int count) {
    if (count >= 4) {
        const __m128i last = _mm_loadl_epi64((const __m128i *)(p + count - 4));
        const __m128i rest = _mm_srl_epi64(last, _mm_cvtsi32_si128(16 * (8 - count)));
        return widened(_mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)p), rest));
    }
    if (count >= 2) {
        const __m128i last = _mm_cvtsi32_si128(group_of(p + count - 2));
        const __m128i rest = _mm_srl_epi64(last, _mm_cvtsi32_si128(16 * (4 - count)));
        return widened(_mm_unpacklo_epi32(_mm_cvtsi32_si128(group_of(p)), rest));
    }
    return widened(_mm_cvtsi32_si128(*p));
}

TARGET static inline void store_part(uint16_t *p, int count, __m256 v) {
    uint16_t all[8];
    store(all, v);
    for (int i = 0; i < count; i++) p[i] = all[i];
}

/* tile.h's TRANSPOSE. Moves two adjacent 16-bit numbers of a row at a time, as one element of 32 bits. */
TARGET INLINE void transpose(__m256 *transposed, const uint16_t *x, int64_t rs, int count) {
    __m256 pairs[4];
    avx2_transpose(pairs, x, rs * (int64_t)sizeof *x, count);
    EACH(p, 4) {
        const __m256i bits = _mm256_castps_si256(pairs[p]);
        transposed[2 * p] = low(bits), transposed[2 * p + 1] = high(bits);
    }
}

#undef TARGET
#define VECTORS "avx2/half_vectors.h"
#include "half_vectors.h"
#define RUN 8
#define WIDEN_RUN(to, x) _mm256_storeu_ps(to, load(x))
#define TRANSPOSE_GROUPS avx2_transpose_groups
#define TRANSPOSED_ROWS 8
#include "half.h"
