/* uint8 x int8 with int32 sums, which wrap. The instruction is sudot: it multiplies signed bytes of a vector (b) by
 * unsigned bytes of one lane (a). usdot by lane would need the opposite signs. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_usdot_8x12
#define TARGET NEON_I8MM
#define A uint8_t
#define B int8_t
#define MIXED
#define DOT(acc, x, y) vsudotq_laneq_s32(acc, y, vreinterpretq_u8_s8(x), 0)
#include "dot.h"
