/* complex128: 6 rows x (1 ymm of real, 1 of imaginary parts): 12 accumulators, 2 for b, 2 for a: all 16 registers. */
#include "avx2.h"

#define CATALOG_ROW zgemm_avx2_6x4
#define ISA AVX2
#define REAL double
#define ROWS 6
#define PAIRS 1
#define LANES 4
#define VECTOR __m256d
#define SET1(x) _mm256_set1_pd(x)
#define LOAD_REALS(p) _mm256_loadu_pd(p)
#define STORE_REALS(p, v) _mm256_storeu_pd(p, v)
#define FMADD(x, y, z) _mm256_fmadd_pd(x, y, z)
#define FNMADD(x, y, z) _mm256_fnmadd_pd(x, y, z)
#define REAL_FMA(x, y, z) fma(x, y, z)
#define SPLIT(p, re_, im_)                                                    \
    {                                                                         \
        const __m256d x0 = _mm256_loadu_pd(p), x1 = _mm256_loadu_pd((p) + 4); \
        re_ = _mm256_unpacklo_pd(x0, x1), im_ = _mm256_unpackhi_pd(x0, x1);   \
    }
#define INTERLEAVE(p, re_, im_) \
    (_mm256_storeu_pd(p, _mm256_unpacklo_pd(re_, im_)), _mm256_storeu_pd((p) + 4, _mm256_unpackhi_pd(re_, im_)))
#define TIMES_I(v, signs) _mm256_xor_pd(_mm256_permute_pd(v, 0x5), _mm256_loadu_pd(signs))
#define PRODUCTS(x, y) _mm256_mul_pd(x, y)
#define DIFFERENCE(v) avx2_difference_of_doubles(v)
#define PART avx2_part
#define PART_OF(count) avx2_part_of_doubles(2 * (count))
#define LOAD_PART(p, part) _mm256_maskload_pd((const double *)(p), (part).mask)
#define STORE_PART(p, part, v) avx2_store_doubles((double *)(p), (part).count, v)
#define TRANSPOSE(transposed, x, rs, count) avx2_transpose_complex(transposed, (const double *)(x), 2 * (rs), count)
#define TRANSPOSE_DEPTH 1
/* In place (see complex.h), an unpacked a uses all 16 registers: 10 accumulators, 2 for b, 2 for i * b, 2 for a. */
#define ACCUMULATORS 12
#define ACCUMULATORS_UNPACKED 10
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "complex.h"
