/* tile.h's vector parameters for floats in zmm registers. No include guard: tile.h undefines the parameters. */
#define TARGET AVX512
#define T float
#define V __m512
#define VL 16
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SPLAT(x) _mm512_set1_ps(x)
#define MUL(x, y) _mm512_mul_ps(x, y)
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define PART __mmask16
#define PART_OF(count) (__mmask16)((1u << (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_ps(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_ps(p, part, v)
#define FMA_ONE(x, y, z) __builtin_fmaf(x, y, z)
#define TRANSPOSE avx512_transpose_floats
#define TRANSPOSE_DEPTH 4
#define ACCUMULATORS 24 /* of 32 registers; up to 4 others hold b, 1 holds a */
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
