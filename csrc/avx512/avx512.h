/* Functions shared by the AVX-512 kernels. */
#ifndef GEMM_AVX512_H
#define GEMM_AVX512_H

#include "avx2/avx2.h"

#ifdef __GNUC__
#define AVX512 __attribute__((target("avx512f,fma")))
#else
#define AVX512
#endif

/* Like avx2_transpose, but for 16 rows: transposed[p] = x[0 ... 15][p] for p < 4. */
AVX512 static inline __attribute__((always_inline)) void avx512_transpose(__m512 *transposed, const void *x,
                                                                          int64_t step, int count) {
#define ROW(i) (i < count ? _mm_loadu_ps((const float *)((const char *)x + (i) * step)) : _mm_setzero_ps())
#define INTO(v, i, lane) v = _mm512_insertf32x4(v, ROW(i), lane)
#define ROWS(v, i)                             \
    __m512 v = _mm512_castps128_ps512(ROW(i)); \
    INTO(v, i + 4, 1), INTO(v, i + 8, 2), INTO(v, i + 12, 3)
    ROWS(a, 0);
    ROWS(b, 1);
    ROWS(c, 2);
    ROWS(d, 3);
    const __m512 ab_low = _mm512_unpacklo_ps(a, b), cd_low = _mm512_unpacklo_ps(c, d);
    const __m512 ab_high = _mm512_unpackhi_ps(a, b), cd_high = _mm512_unpackhi_ps(c, d);
    transposed[0] = _mm512_shuffle_ps(ab_low, cd_low, 0x44), transposed[1] = _mm512_shuffle_ps(ab_low, cd_low, 0xEE);
    transposed[2] = _mm512_shuffle_ps(ab_high, cd_high, 0x44),
    transposed[3] = _mm512_shuffle_ps(ab_high, cd_high, 0xEE);
#undef ROW
#undef INTO
#undef ROWS
}

AVX512 static inline __attribute__((always_inline)) void avx512_transpose_floats(__m512 *transposed, const float *x,
                                                                                 int64_t rs, int count) {
    avx512_transpose(transposed, x, rs * (int64_t)sizeof *x, count);
}

/* Implements TRANSPOSE_GROUPS of panel_pack.h for 16 rows: reads four groups of 4 bytes of each row. */
AVX512 static inline __attribute__((always_inline)) void avx512_transpose_groups(void *to, int64_t stride,
                                                                                 const void *x, int64_t step,
                                                                                 int64_t lines) {
    __m512 transposed[4];
    avx512_transpose(transposed, x, step, 16);
    for (int p = 0; p < 4 && p < lines; p++) _mm512_storeu_ps((float *)to + p * stride, transposed[p]);
}

/* transposed[p] = x[0 ... 7][p] for p < 2. The distance between rows is rs doubles. Rows i >= count are zero. */
AVX512 static inline __attribute__((always_inline)) void avx512_transpose_doubles(__m512d *transposed, const double *x,
                                                                                  int64_t rs, int count) {
#define ROW(i) (i < count ? _mm_castpd_ps(_mm_loadu_pd(x + (i) * rs)) : _mm_setzero_ps())
#define INTO(v, i, lane) v = _mm512_insertf32x4(v, ROW(i), lane)
#define ROWS(v, i)                             \
    __m512 v = _mm512_castps128_ps512(ROW(i)); \
    INTO(v, i + 2, 1), INTO(v, i + 4, 2), INTO(v, i + 6, 3)
    ROWS(a, 0);
    ROWS(b, 1);
    transposed[0] = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
    transposed[1] = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
#undef ROW
#undef INTO
#undef ROWS
}

/* transposed[0] = a complex number (two doubles) of each of four rows, rs doubles apart. Rows i >= count are zero. */
AVX512 static inline __attribute__((always_inline)) void avx512_transpose_complex(__m512d *transposed, const double *x,
                                                                                  int64_t rs, int count) {
    const __m128d none = _mm_setzero_pd();
#define ROW(i) (i < count ? _mm_loadu_pd(x + (i) * rs) : none)
#define INTO(v, i) _mm512_castps_pd(_mm512_insertf32x4(_mm512_castpd_ps(v), _mm_castpd_ps(ROW(i)), i))
    transposed[0] = INTO(INTO(INTO(_mm512_castpd128_pd512(ROW(0)), 1), 2), 3);
#undef ROW
#undef INTO
}

/* The sum of the even elements minus the sum of the odd elements. */
AVX512 static inline __attribute__((always_inline)) float avx512_difference_of_floats(__m512 v) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    return avx2_difference_of_floats(_mm256_add_ps(_mm512_castps512_ps256(v), high));
}

AVX512 static inline __attribute__((always_inline)) double avx512_difference_of_doubles(__m512d v) {
    return avx2_difference_of_doubles(_mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1)));
}

#endif
