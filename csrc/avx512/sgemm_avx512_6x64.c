/* 6 rows x 4 zmm of floats: 24 accumulators, 4 for b, 1 for a: 29 of 32 registers. Wide rather than tall: 4 loads of b
 * and 6 broadcasts feed 24 FMAs, well below the two loads a cycle that the CPU can do. */
#include <immintrin.h>

#define KERNEL sgemm_avx512_6x64
#define NAME tile
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f")))
#endif
#define T float
#define V __m512
#define VL 16
#define MR 6
#define NV 4
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SPLAT(x) _mm512_set1_ps(x)
#define MUL(x, y) _mm512_mul_ps(x, y)
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#include "tile.h"
