/* Functions shared by the AVX2 kernels: partial vectors, and transposition for packing. */
#ifndef GEMM_AVX2_H
#define GEMM_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#ifdef __GNUC__
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX2_INLINE AVX2 static inline __attribute__((always_inline))
#else
#define AVX2
#define AVX2_INLINE static __forceinline
#endif

/* Selects the first `count` elements of a vector. Loads use the mask, stores the count: masked stores are slow on many
 * CPUs. */
typedef struct avx2_part {
    __m256i mask;
    int count;
} avx2_part;

AVX2_INLINE avx2_part avx2_part_of_floats(int count) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (avx2_part){_mm256_cmpgt_epi32(_mm256_set1_epi32(count), index), count};
}

AVX2_INLINE avx2_part avx2_part_of_doubles(int count) {
    const __m256i index = _mm256_setr_epi64x(0, 1, 2, 3);
    return (avx2_part){_mm256_cmpgt_epi64(_mm256_set1_epi64x(count), index), count};
}

AVX2_INLINE void avx2_store_floats(float *p, int count, __m256 v) {
    __m128 rest = _mm256_castps256_ps128(v);
    if (count & 8) {
        _mm256_storeu_ps(p, v);
        return;
    }
    if (count & 4) {
        _mm_storeu_ps(p, rest);
        rest = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if (count & 2) {
        _mm_storel_pi((__m64 *)p, rest);
        rest = _mm_movehl_ps(rest, rest);
        p += 2;
    }
    if (count & 1) _mm_store_ss(p, rest);
}

AVX2_INLINE void avx2_store_doubles(double *p, int count, __m256d v) {
    __m128d rest = _mm256_castpd256_pd128(v);
    if (count & 4) {
        _mm256_storeu_pd(p, v);
        return;
    }
    if (count & 2) {
        _mm_storeu_pd(p, rest);
        rest = _mm256_extractf128_pd(v, 1);
        p += 2;
    }
    if (count & 1) _mm_store_sd(p, rest);
}

/* Transposes 8 rows of 4 elements of 4 bytes, `step` bytes apart: transposed[p] = x[0 ... 7][p] for p < 4. Rows i >=
 * count are zero. Rows i and i + 4 share one register (a 128-bit lane each), so no later instruction crosses lanes. */
AVX2_INLINE void avx2_transpose(__m256 *transposed, const void *x, int64_t step, int count) {
#define ROW(i) (i < count ? _mm_loadu_ps((const float *)((const char *)x + (i) * step)) : _mm_setzero_ps())
#define ROWS(i) _mm256_insertf128_ps(_mm256_castps128_ps256(ROW(i)), ROW(i + 4), 1)
    const __m256 a = ROWS(0), b = ROWS(1), c = ROWS(2), d = ROWS(3);
#undef ROW
#undef ROWS
    const __m256 ab_low = _mm256_unpacklo_ps(a, b), cd_low = _mm256_unpacklo_ps(c, d);
    const __m256 ab_high = _mm256_unpackhi_ps(a, b), cd_high = _mm256_unpackhi_ps(c, d);
    transposed[0] = _mm256_shuffle_ps(ab_low, cd_low, 0x44), transposed[1] = _mm256_shuffle_ps(ab_low, cd_low, 0xEE);
    transposed[2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44),
    transposed[3] = _mm256_shuffle_ps(ab_high, cd_high, 0xEE);
}

AVX2_INLINE void avx2_transpose_floats(__m256 *transposed, const float *x, int64_t rs, int count) {
    avx2_transpose(transposed, x, rs * (int64_t)sizeof *x, count);
}

/* Implements TRANSPOSE_GROUPS of panel_pack.h for 8 rows: reads 4 groups of 4 bytes of each row, and writes them to
 * min(4, lines) lines of groups. */
AVX2_INLINE void avx2_transpose_groups(void *to, int64_t stride, const void *x, int64_t step, int64_t lines) {
    __m256 transposed[4];
    avx2_transpose(transposed, x, step, 8);
    for (int p = 0; p < 4 && p < lines; p++) _mm256_storeu_ps((float *)to + p * stride, transposed[p]);
}

/* Two implementations of GROUP_LINES of panel_pack.h. avx2_interleave_bytes makes groups of four 8-bit integers.
 * avx2_interleave_shorts makes groups of two 16-bit integers. */
AVX2_INLINE void avx2_interleave_bytes(void *to, const void *x, int64_t step) {
#define LINE(g) _mm_loadu_si128((const __m128i *)((const char *)x + (g) * step))
    const __m128i low01 = _mm_unpacklo_epi8(LINE(0), LINE(1)), high01 = _mm_unpackhi_epi8(LINE(0), LINE(1));
    const __m128i low23 = _mm_unpacklo_epi8(LINE(2), LINE(3)), high23 = _mm_unpackhi_epi8(LINE(2), LINE(3));
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128((__m128i *)to + 1, _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128((__m128i *)to + 2, _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128((__m128i *)to + 3, _mm_unpackhi_epi16(high01, high23));
}

AVX2_INLINE void avx2_interleave_shorts(void *to, const void *x, int64_t step) {
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi16(LINE(0), LINE(1)));
    _mm_storeu_si128((__m128i *)to + 1, _mm_unpackhi_epi16(LINE(0), LINE(1)));
#undef LINE
}

/* transposed[p] = x[0 ... 3][p] for p < 2. The distance between rows is rs doubles. Rows i >= count are zero. */
AVX2_INLINE void avx2_transpose_doubles(__m256d *transposed, const double *x, int64_t rs, int count) {
    const __m128d none = _mm_setzero_pd();
#define ROWS(i)                                                                               \
    _mm256_insertf128_pd(_mm256_castpd128_pd256(i < count ? _mm_loadu_pd(x + i * rs) : none), \
                         i + 2 < count ? _mm_loadu_pd(x + (i + 2) * rs) : none, 1)
    const __m256d a = ROWS(0), b = ROWS(1);
#undef ROWS
    transposed[0] = _mm256_unpacklo_pd(a, b), transposed[1] = _mm256_unpackhi_pd(a, b);
}

/* Sets transposed[0] to the first complex number (two doubles) of each of two rows. The distance between the rows is rs
 * doubles. Rows i >= count are zero. */
AVX2_INLINE void avx2_transpose_complex(__m256d *transposed, const double *x, int64_t rs, int count) {
    const __m128d none = _mm_setzero_pd();
    transposed[0] = _mm256_insertf128_pd(_mm256_castpd128_pd256(count > 0 ? _mm_loadu_pd(x) : none),
                                         count > 1 ? _mm_loadu_pd(x + rs) : none, 1);
}

/* Both functions return the sum of the even elements minus the sum of the odd elements. */
AVX2_INLINE float avx2_difference_of_floats(__m256 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_sub_ss(two, _mm_movehdup_ps(two)));
}

AVX2_INLINE double avx2_difference_of_doubles(__m256d v) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_sub_sd(two, _mm_unpackhi_pd(two, two)));
}

#endif
