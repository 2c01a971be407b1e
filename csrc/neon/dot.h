/* wrap.h's parameters for products of 8-bit integers: a has the type A, b has the type int8, and sums have the type
 * int32. The kernel's file defines A and DOT(acc, x, y), which adds dot products of four elements to the four sums of
 * acc. Lane 0 of x holds four steps of k of one row; y holds four steps of k of each of four columns. Registers: 24
 * accumulators of four columns, 3 vectors of b, 1 of a. */
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
