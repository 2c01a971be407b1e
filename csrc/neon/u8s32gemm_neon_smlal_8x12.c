/* uint8 x int8 with int32 sums, which wrap. For CPUs without dot product instructions: panels hold int16, which smlal
 * multiplies. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_smlal_8x12
#define A uint8_t
#define B int8_t
#define MIXED
#include "smlal.h"
