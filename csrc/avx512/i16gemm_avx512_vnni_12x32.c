/* int16 and uint16: the results are the low halves of int32 sums. vpdpwssd adds two products to the accumulator. */
#include "avx512.h"

#define KERNEL i16gemm_avx512_vnni_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vnni,fma")))
#endif
#define A int16_t
#define B int16_t
#define C uint16_t
#define PA int16_t
#define PB int16_t
#define C_IS_SUM 0
#define K_GROUP 2
#define STEP(acc, x, y) _mm512_dpwssd_epi32(acc, x, y)
#include "int32.h"
