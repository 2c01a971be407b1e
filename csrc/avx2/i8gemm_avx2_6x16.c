/* int8 and uint8: the results are the low bytes of int32 sums. */
#include "avx2.h"

#define KERNEL i8gemm_avx2_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define A int8_t
#define B int8_t
#define C uint8_t
#define C_IS_SUM 0
#include "madd.h"
