/* int8 x int8 to int32, which wraps, by sdot: four products a lane, twice the work of int16 multiply-adds and more. */
#include "neon.h"

#define KERNEL s8s32gemm_neon_sdot_8x12
#define TARGET NEON_DOTPROD
#define A int8_t
#define B int8_t
#define DOT(acc, x, y) vdotq_laneq_s32(acc, y, x, 0)
#include "dot.h"
