/* complex64: 6 rows x 1 ymm of real and 1 of imaginary parts: 12 accumulators, 2 for b, 2 for a: all 16 registers.
 * Splitting and interleaving stay within 128-bit lanes: one permutes the columns, the other undoes it. */
#include <immintrin.h>

#define KERNEL cgemm_avx2_6x8
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define T float
#define MR 6
#define NV 1
#define VL 8
#define V __m256
#define SET1(x) _mm256_set1_ps(x)
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
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
#include "complex.h"
