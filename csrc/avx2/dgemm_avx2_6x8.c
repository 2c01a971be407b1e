/* 6 rows x 2 ymm of doubles: 12 accumulators, 2 for b, 1 for a: 15 of 16 registers. */
#include <immintrin.h>

#define KERNEL dgemm_avx2_6x8
#define NAME tile
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define T double
#define V __m256d
#define VL 4
#define MR 6
#define NV 2
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
#define SPLAT(x) _mm256_set1_pd(x)
#define MUL(x, y) _mm256_mul_pd(x, y)
#define FMA(x, y, z) _mm256_fmadd_pd(x, y, z)
#include "tile.h"
