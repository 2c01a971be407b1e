/* uint8 x int8 with int32 sums, which wrap. One instruction adds 64 products to each sum, exactly. */
#define KERNEL u8s32gemm_amx_32x32
#define A uint8_t
#define B int8_t
#define C uint32_t
#define C_IS_SUM 1
#define MIXED
#define STEP(sums, x, y) _tile_dpbusd(sums, x, y)
#include "int8.h"
