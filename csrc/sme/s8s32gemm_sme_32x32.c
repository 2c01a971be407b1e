/* int8 x int8 with int32 sums, which wrap. */
#define KERNEL s8s32gemm_sme_32x32
#define A int8_t
#define B int8_t
#define C uint32_t
#define C_IS_SUM 1
#define OUTER SMOPA
#include "int8.h"
