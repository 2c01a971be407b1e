/* complex64: 6 rows x 2 zmm of real and 2 of imaginary parts: 24 accumulators, 4 for b, 2 for a: 30 of 32 registers.
 * Splitting and interleaving stay within 128-bit lanes: one permutes the columns, the other undoes it. */
#include <immintrin.h>

#define KERNEL cgemm_avx512_6x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,fma")))
#endif
#define T float
#define MR 6
#define NV 2
#define VL 16
#define V __m512
#define SET1(x) _mm512_set1_ps(x)
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
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
#include "complex.h"
