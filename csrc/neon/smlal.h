/* wrap.h's parameters for products of 8-bit integers: a has the type A, b has the type int8, and sums have the type
 * int32. The kernel's file defines A. Panels hold int16; smlal multiplies the int16 and adds the products to the sums.
 * Registers: 24 accumulators, 3 vectors of b, 1 of a. */
#define C uint32_t
#define SUM uint32_t
#define C_IS_SUM 1
#define PA int16_t
#define PB int16_t
#define MR 8
#define NV 3
#define VL 4
#define K_GROUP 1
#define ACC int32x4_t
#define X int16x8_t
#define Y int16x4_t
#define ZERO vdupq_n_s32(0)
#define GET(p) vreinterpretq_s32_u32(vld1q_u32(p))
#define PUT(p, v) vst1q_u32(p, vreinterpretq_u32_s32(v))
#define SPLAT(p) neon_element_short(p)
#define ROW(p) vld1_s16(p)
#define STEP(acc, x, y) vmlal_laneq_s16(acc, y, x, 0)
#include "wrap.h"
