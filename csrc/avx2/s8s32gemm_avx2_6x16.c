/* int8 x int8 with int32 sums, which wrap. */
#include "avx2.h"

#define KERNEL s8s32gemm_avx2_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define A int8_t
#define B int8_t
#define C uint32_t
#define C_IS_SUM 1
#include "madd.h"
