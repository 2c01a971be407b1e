/* A 8-bit integers x int8 to int32 by dot products of four: wrap.h's parameters, given DOT(acc, x, y), which takes four
 * k of one row from lane 0 of x and of four columns from y. 24 sums of four columns, 3 vectors of b, one of a. */
#define C uint32_t
#define SUM uint32_t
#define C_IS_SUM 1
#define PA A
#define PB B
#define MR 8
#define NV 3
#define VL 4
#define K_GROUP 4
#define ACC int32x4_t
#define X int8x16_t
#define Y int8x16_t
#define ZERO vdupq_n_s32(0)
#define GET(p) vreinterpretq_s32_u32(vld1q_u32(p))
#define PUT(p, v) vst1q_u32(p, vreinterpretq_u32_s32(v))
#define SPLAT(p) neon_element_bytes(p)
#define ROW(p) vld1q_s8((const int8_t *)(p))
#define STEP(acc, x, y) DOT(acc, x, y)
#include "wrap.h"
