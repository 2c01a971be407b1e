/* 8 rows x 3 zmm of doubles: 24 accumulators, 3 for b, 1 for a: 28 of 32 registers. */
#include <immintrin.h>

#define KERNEL dgemm_avx512_8x24
#define NAME tile
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f")))
#endif
#define T double
#define V __m512d
#define VL 8
#define MR 8
#define NV 3
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
#define SPLAT(x) _mm512_set1_pd(x)
#define MUL(x, y) _mm512_mul_pd(x, y)
#define FMA(x, y, z) _mm512_fmadd_pd(x, y, z)
#include "tile.h"
