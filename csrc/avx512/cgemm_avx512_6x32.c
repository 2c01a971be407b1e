/* complex64: 6 rows x (2 zmm of real, 2 of imaginary parts): 24 accumulators, 4 for b, 2 for a: 30 of 32 registers. */
#include "avx512.h"

#define CATALOG_ROW cgemm_avx512_6x32
#define ISA AVX512
#define REAL float
#define ROWS 6
#define PAIRS 2
#define LANES 16
#define VECTOR __m512
#define SET1(x) _mm512_set1_ps(x)
#define LOAD_REALS(p) _mm512_loadu_ps(p)
#define STORE_REALS(p, v) _mm512_storeu_ps(p, v)
#define FMADD(x, y, z) _mm512_fmadd_ps(x, y, z)
#define FNMADD(x, y, z) _mm512_fnmadd_ps(x, y, z)
#define REAL_FMA(x, y, z) fmaf(x, y, z)
#define SPLIT(p, re_, im_)                                                            \
    {                                                                                 \
        const __m512 x0 = _mm512_loadu_ps(p), x1 = _mm512_loadu_ps((p) + 16);         \
        re_ = _mm512_shuffle_ps(x0, x1, 0x88), im_ = _mm512_shuffle_ps(x0, x1, 0xDD); \
    }
#define INTERLEAVE(p, re_, im_) \
    (_mm512_storeu_ps(p, _mm512_unpacklo_ps(re_, im_)), _mm512_storeu_ps((p) + 16, _mm512_unpackhi_ps(re_, im_)))
#define TIMES_I(v, signs) \
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(_mm512_permute_ps(v, 0xB1)), _mm512_loadu_si512(signs)))
#define PRODUCTS(x, y) _mm512_mul_ps(x, y)
#define DIFFERENCE(v) avx512_difference_of_floats(v)
#define PART __mmask16
#define PART_OF(count) (__mmask16)((1u << 2 * (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_ps(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_ps(p, part, v)
#define TRANSPOSE(transposed, x, rs, count) \
    avx512_transpose_doubles((__m512d *)(transposed), (const double *)(x), rs, count)
#define TRANSPOSE_DEPTH 2
/* In place (see complex.h): 24 accumulators, up to 4 registers for b, 4 for i * b. a's elements are memory operands. */
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "complex.h"
