/* 6 rows x 2 ymm of floats: 12 accumulators, 2 for b, 1 for a: 15 of 16 registers. Two FMA ports of latency 4 to 5
 * need 8 to 10 independent chains; here are 12. */
#include <immintrin.h>

#define KERNEL sgemm_avx2_6x16
#define NAME tile
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define T float
#define V __m256
#define VL 8
#define MR 6
#define NV 2
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SPLAT(x) _mm256_set1_ps(x)
#define MUL(x, y) _mm256_mul_ps(x, y)
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#include "tile.h"
