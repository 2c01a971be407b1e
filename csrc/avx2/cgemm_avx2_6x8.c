/* complex64: 6 rows x (1 ymm of real, 1 of imaginary parts): 12 accumulators, 2 for b, 2 for a: all 16 registers. */
#include "avx2.h"

#define CATALOG_ROW cgemm_avx2_6x8
#define ISA AVX2
#define REAL float
#define ROWS 6
#define PAIRS 1
#define LANES 8
#define VECTOR __m256
#define SET1(x) _mm256_set1_ps(x)
#define LOAD_REALS(p) _mm256_loadu_ps(p)
#define STORE_REALS(p, v) _mm256_storeu_ps(p, v)
#define FMADD(x, y, z) _mm256_fmadd_ps(x, y, z)
#define FNMADD(x, y, z) _mm256_fnmadd_ps(x, y, z)
#define REAL_FMA(x, y, z) fmaf(x, y, z)
#define SPLIT(p, re_, im_)                                                            \
    {                                                                                 \
        const __m256 x0 = _mm256_loadu_ps(p), x1 = _mm256_loadu_ps((p) + 8);          \
        re_ = _mm256_shuffle_ps(x0, x1, 0x88), im_ = _mm256_shuffle_ps(x0, x1, 0xDD); \
    }
#define INTERLEAVE(p, re_, im_) \
    (_mm256_storeu_ps(p, _mm256_unpacklo_ps(re_, im_)), _mm256_storeu_ps((p) + 8, _mm256_unpackhi_ps(re_, im_)))
#define TIMES_I(v, signs) _mm256_xor_ps(_mm256_permute_ps(v, 0xB1), _mm256_loadu_ps(signs))
#define PRODUCTS(x, y) _mm256_mul_ps(x, y)
#define DIFFERENCE(v) avx2_difference_of_floats(v)
#define PART avx2_part
#define PART_OF(count) avx2_part_of_floats(2 * (count))
#define LOAD_PART(p, part) _mm256_maskload_ps((const float *)(p), (part).mask)
#define STORE_PART(p, part, v) avx2_store_floats((float *)(p), (part).count, v)
#define TRANSPOSE(transposed, x, rs, count) \
    avx2_transpose_doubles((__m256d *)(transposed), (const double *)(x), rs, count)
#define TRANSPOSE_DEPTH 2
/* In place (see complex.h), an unpacked a uses all 16 registers: 10 accumulators, 2 for b, 2 for i * b, 2 for a. */
#define ACCUMULATORS 12
#define ACCUMULATORS_UNPACKED 10
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "complex.h"
