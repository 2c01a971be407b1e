/* complex128: 6 rows x 2 zmm of real and 2 of imaginary parts: 24 accumulators, 4 for b, 2 for a: 30 of 32 registers.
 * Splitting and interleaving stay within 128-bit lanes: one permutes the columns, the other undoes it. */
#include <immintrin.h>

#define KERNEL zgemm_avx512_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,fma")))
#endif
#define T double
#define MR 6
#define NV 2
#define VL 8
#define V __m512d
#define SET1(x) _mm512_set1_pd(x)
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
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
#include "complex.h"
