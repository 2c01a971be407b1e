/* int32 and uint32. vpmulld computes the low halves of the products. 6 rows x 2 ymm. Registers: 12 accumulators, 2 for
 * b, 1 for a, 1 for products. */
#include "avx2.h"

#define KERNEL i32gemm_avx2_6x16
#define NAME i32gemm
#define TARGET AVX2
#define T uint32_t
#define V __m256i
#define VL 8
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define SPLAT(x) _mm256_set1_epi32((int)(x))
#define MUL(x, y) _mm256_mullo_epi32(x, y)
#define FMA(x, y, z) _mm256_add_epi32(z, _mm256_mullo_epi32(x, y))
#define PART avx2_part
#define PART_OF(count) avx2_part_of_floats(count)
#define LOAD_PART(p, part) _mm256_maskload_epi32((const int *)(p), (part).mask)
#define STORE_PART(p, part, v) avx2_store_floats((float *)(p), (part).count, _mm256_castsi256_ps(v))
#define TRANSPOSE(transposed, x, rs, count) avx2_transpose_floats((__m256 *)(transposed), (const float *)(x), rs, count)
#define TRANSPOSE_DEPTH 4
#define MR 6
#define NV 2
#define ACCUMULATORS 12
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "integers.h"
#include "tile.h"
