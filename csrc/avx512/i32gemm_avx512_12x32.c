/* int32 and uint32: the low halves of the products. */
#include <immintrin.h>

#define KERNEL i32gemm_avx512_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f")))
#endif
#define A uint32_t
#define B uint32_t
#define C uint32_t
#define PA uint32_t
#define PB uint32_t
#define SAME 1
#define K_GROUP 1
#define STEP(acc, x, y) _mm512_add_epi32(acc, _mm512_mullo_epi32(x, y))
#include "int32.h"
