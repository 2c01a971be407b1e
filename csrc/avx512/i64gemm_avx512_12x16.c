/* int64 and uint64: the low halves of the products, which AVX512DQ has. */
#include <immintrin.h>

#define KERNEL i64gemm_avx512_12x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512dq")))
#endif
#define A uint64_t
#define B uint64_t
#define C uint64_t
#define PA uint64_t
#define PB uint64_t
#define SAME 1
#define K_GROUP 1
#define MR 12
#define NV 2
#define VL 8
#define SUM uint64_t
#define ACC __m512i
#define X __m512i
#define Y __m512i
#define ZERO _mm512_setzero_si512()
#define GET(p) _mm512_loadu_si512(p)
#define PUT(p, v) _mm512_storeu_si512(p, v)
#define SPLAT(p) _mm512_set1_epi64((long long)*(p))
#define ROW(p) _mm512_loadu_si512(p)
#define STEP(acc, x, y) _mm512_add_epi64(acc, _mm512_mullo_epi64(x, y))
#include "wrap.h"
