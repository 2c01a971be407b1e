/* uint8 x int8 with int32 sums, which wrap, in plain C. */
#include <stdint.h>

#define KERNEL u8s32gemm_scalar_4x4
#define A uint8_t
#define B int8_t
#define C uint32_t
#define SUM uint32_t
#define C_IS_SUM 1
#define MIXED
#include "integers.h"
