/* complex128: 6 rows x (2 zmm of real, 2 of imaginary parts): 24 accumulators, 4 for b, 2 for a: 30 of 32 registers. */
#include "avx512.h"

#define CATALOG_ROW zgemm_avx512_6x16
#define ISA AVX512
#define REAL double
#define ROWS 6
#define PAIRS 2
#define LANES 8
#define VECTOR __m512d
#define SET1(x) _mm512_set1_pd(x)
#define LOAD_REALS(p) _mm512_loadu_pd(p)
#define STORE_REALS(p, v) _mm512_storeu_pd(p, v)
#define FMADD(x, y, z) _mm512_fmadd_pd(x, y, z)
#define FNMADD(x, y, z) _mm512_fnmadd_pd(x, y, z)
#define REAL_FMA(x, y, z) fma(x, y, z)
#define SPLIT(p, re_, im_)                                                    \
    {                                                                         \
        const __m512d x0 = _mm512_loadu_pd(p), x1 = _mm512_loadu_pd((p) + 8); \
        re_ = _mm512_unpacklo_pd(x0, x1), im_ = _mm512_unpackhi_pd(x0, x1);   \
    }
#define INTERLEAVE(p, re_, im_) \
    (_mm512_storeu_pd(p, _mm512_unpacklo_pd(re_, im_)), _mm512_storeu_pd((p) + 8, _mm512_unpackhi_pd(re_, im_)))
#define TIMES_I(v, signs) \
    _mm512_castsi512_pd(_mm512_xor_si512(_mm512_castpd_si512(_mm512_permute_pd(v, 0x55)), _mm512_loadu_si512(signs)))
#define PRODUCTS(x, y) _mm512_mul_pd(x, y)
#define DIFFERENCE(v) avx512_difference_of_doubles(v)
#define PART __mmask8
#define PART_OF(count) (__mmask8)((1u << 2 * (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_pd(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_pd(p, part, v)
#define TRANSPOSE(transposed, x, rs, count) avx512_transpose_complex(transposed, (const double *)(x), 2 * (rs), count)
#define TRANSPOSE_DEPTH 1
/* In place (see complex.h): 24 accumulators, up to 4 registers for b, 4 for i * b. a's elements are memory operands. */
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "complex.h"
