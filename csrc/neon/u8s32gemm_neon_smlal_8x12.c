/* uint8 x int8 to int32, which wraps, by smlal: operands as int16, for CPUs without dot products. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_smlal_8x12
#define A uint8_t
#define B int8_t
#define MIXED
#include "smlal.h"
