/* tile.h's parameters that all kernels for doubles in ymm registers share. No include guard: tile.h undefines the
 * parameters. */
#define TARGET AVX2
#define T double
#define V __m256d
#define VL 4
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, v) _mm256_storeu_pd(p, v)
#define SPLAT(x) _mm256_set1_pd(x)
#define MUL(x, y) _mm256_mul_pd(x, y)
#define FMA(x, y, z) _mm256_fmadd_pd(x, y, z)
#define PART avx2_part
#define PART_OF(count) avx2_part_of_doubles(count)
#define LOAD_PART(p, part) _mm256_maskload_pd(p, (part).mask)
#define STORE_PART(p, part, v) avx2_store_doubles(p, (part).count, v)
#define FMA_ONE(x, y, z) __builtin_fma(x, y, z)
#define TRANSPOSE avx2_transpose_doubles
#define TRANSPOSE_DEPTH 2
#define ACCUMULATORS 12 /* of 16 registers; the other 4 hold vectors of b and an element of a */
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
