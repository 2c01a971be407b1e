/* int64 and uint64. vpmullq (AVX512DQ) computes the low halves of the products. 12 rows x 2 zmm, as for int32. */
#include "avx512.h"

#define KERNEL i64gemm_avx512_12x16
#define NAME i64gemm
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512dq,fma")))
#else
#define TARGET
#endif
#define T uint64_t
#define V __m512i
#define VL 8
#define LOAD(p) _mm512_loadu_si512(p)
#define STORE(p, v) _mm512_storeu_si512(p, v)
#define SPLAT(x) _mm512_set1_epi64((long long)(x))
#define MUL(x, y) _mm512_mullo_epi64(x, y)
#define FMA(x, y, z) _mm512_add_epi64(z, _mm512_mullo_epi64(x, y))
#define PART __mmask8
#define PART_OF(count) (__mmask8)((1u << (count)) - 1)
#define LOAD_PART(p, part) _mm512_maskz_loadu_epi64(part, p)
#define STORE_PART(p, part, v) _mm512_mask_storeu_epi64(p, part, v)
#define TRANSPOSE(transposed, x, rs, count) \
    avx512_transpose_doubles((__m512d *)(transposed), (const double *)(x), rs, count)
#define TRANSPOSE_DEPTH 2
#define MR 12
#define NV 2
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#include "integers.h"
#include "tile.h"
