/* tile.h's parameters that all kernels for floats in ymm registers share. No include guard: tile.h undefines the
 * parameters. */
#define TARGET AVX2
#define T float
#define V __m256
#define VL 8
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#define SPLAT(x) _mm256_set1_ps(x)
#define MUL(x, y) _mm256_mul_ps(x, y)
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define PART avx2_part
#define PART_OF(count) avx2_part_of_floats(count)
#define LOAD_PART(p, part) _mm256_maskload_ps(p, (part).mask)
#define STORE_PART(p, part, v) avx2_store_floats(p, (part).count, v)
#define FMA_ONE(x, y, z) __builtin_fmaf(x, y, z)
#define TRANSPOSE avx2_transpose_floats
#define TRANSPOSE_DEPTH 4
#define ACCUMULATORS 12 /* of 16 registers; the other 4 hold vectors of b and an element of a */
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
