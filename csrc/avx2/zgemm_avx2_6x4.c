/* complex128: 6 rows x 1 ymm of real and 1 of imaginary parts: 12 accumulators, 2 for b, 2 for a: all 16 registers.
 * Splitting and interleaving stay within 128-bit lanes: one permutes the columns, the other undoes it. */
#include <immintrin.h>

#define KERNEL zgemm_avx2_6x4
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define T double
#define MR 6
#define NV 1
#define VL 4
#define V __m256d
#define SET1(x) _mm256_set1_pd(x)
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
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
#include "complex.h"
