/* int8 x int8 with int32 sums, which wrap. sdot adds four products per lane and has at least twice the rate of int16
 * multiply-adds. */
#include "neon.h"

#define KERNEL s8s32gemm_neon_sdot_8x12
#define TARGET NEON_DOTPROD
#define A int8_t
#define B int8_t
#define DOT(acc, x, y) vdotq_laneq_s32(acc, y, x, 0)
#include "dot.h"
