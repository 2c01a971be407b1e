/* uint8 x int8 with int32 sums, which wrap, for CPUs without dot product instructions. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_smlal_8x12
#define A uint8_t
#define B int8_t
#define MIXED
#include "smlal.h"
