/* int8 and uint8: the results are the low bytes of int32 sums. Panels hold int16; vpmaddwd adds two products. */
#include "avx512.h"

#define KERNEL i8gemm_avx512_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,fma")))
#endif
#define A int8_t
#define B int8_t
#define C uint8_t
#define PA int16_t
#define PB int16_t
#define C_IS_SUM 0
#define K_GROUP 2
#define STEP(acc, x, y) _mm512_add_epi32(acc, _mm512_madd_epi16(x, y))
#include "int32.h"
