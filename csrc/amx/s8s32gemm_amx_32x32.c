/* int8 x int8 with int32 sums, which wrap. One instruction adds 64 products to each sum, exactly. */
#define KERNEL s8s32gemm_amx_32x32
#define A int8_t
#define B int8_t
#define C uint32_t
#define C_IS_SUM 1
#define STEP(sums, x, y) _tile_dpbssd(sums, x, y)
#include "int8.h"
