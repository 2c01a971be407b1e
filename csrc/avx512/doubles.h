/* tile.h's vector parameters for doubles in zmm registers. No include guard: tile.h undefines the parameters. */
#define TARGET AVX512
#define T double
#define V __m512d
#define VL 8
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, v) _mm512_storeu_pd(p, v)
#define SPLAT(x) _mm512_set1_pd(x)
#define MUL(x, y) _mm512_mul_pd(x, y)
#define FMA(x, y, z) _mm512_fmadd_pd(x, y, z)
#define PART __mmask8
#define PART_OF(count) (__mmask8)((1u << (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_pd(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_pd(p, part, v)
#define FMA_ONE(x, y, z) __builtin_fma(x, y, z)
#define TRANSPOSE avx512_transpose_doubles
#define TRANSPOSE_DEPTH 2
#define ACCUMULATORS 24 /* of 32 registers; up to 4 others hold b, 1 holds a */
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
