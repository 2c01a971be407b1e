/* int32 and uint32. vpmulld computes the low halves of the products. 12 rows x 2 zmm. Registers: 24 accumulators, 2 for
 * b, 1 for a, 1 for products. */
#include "avx512.h"

#define KERNEL i32gemm_avx512_12x32
#define NAME i32gemm
#define TARGET AVX512
#define T uint32_t
#define V __m512i
#define VL 16
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE(p, v) _mm512_storeu_si512(p, v)
#define SPLAT(x) _mm512_set1_epi32((int)(x))
#define MUL(x, y) _mm512_mullo_epi32(x, y)
#define FMA(x, y, z) _mm512_add_epi32(z, _mm512_mullo_epi32(x, y))
#define PART __mmask16
#define PART_OF(count) (__mmask16)((1u << (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_epi32(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_epi32(p, part, v)
#define TRANSPOSE(transposed, x, rs, count) \
    avx512_transpose_floats((__m512 *)(transposed), (const float *)(x), rs, count)
#define TRANSPOSE_DEPTH 4
#define MR 12
#define NV 2
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "integers.h"
#include "tile.h"
