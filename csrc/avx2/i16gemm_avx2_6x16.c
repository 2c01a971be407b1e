/* int16 and uint16: the results are the low halves of int32 sums. */
#include "avx2.h"

#define KERNEL i16gemm_avx2_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define A int16_t
#define B int16_t
#define C uint16_t
#define C_IS_SUM 0
#include "madd.h"
