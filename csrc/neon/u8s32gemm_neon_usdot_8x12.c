/* uint8 x int8 to int32, which wraps, by usdot: the signed operand is b, so that its lanes meet one of a. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_usdot_8x12
#define TARGET NEON_I8MM
#define A uint8_t
#define B int8_t
#define MIXED
#define DOT(acc, x, y) vsudotq_laneq_s32(acc, y, vreinterpretq_u8_s8(x), 0)
#include "dot.h"
