/* wrap.h's parameters for products of 8-bit integers: a has the type A, b has the type int8, and sums have the type
 * int32. The kernel's file defines A and the matrix instruction MMLA(acc, x, y) (see mmla_tile.h). */
#define C uint32_t
#define SUM uint32_t
#define C_IS_SUM 1
#define PA A
#define PB B
#define MR 8
#define NV 2
#define VL 4
#define K_GROUP 8
#define ACC int32x4_t
#define X int8x16_t
#define Y int8x16_t
#define ZERO vdupq_n_s32(0)
#define LOAD_A(p) vld1q_s8((const int8_t *)(p))
#define LOAD_B(p) vld1q_s8((const int8_t *)(p))
#define GET_HALF(p) vreinterpret_s32_u32(vld1_u32(p))
#define PUT_HALF(p, v) vst1_u32(p, vreinterpret_u32_s32(v))
#define JOIN_HALVES(low, high) vcombine_s32(low, high)
#define LOW(v) vget_low_s32(v)
#define HIGH(v) vget_high_s32(v)
#include "mmla_tile.h"
#include "wrap.h"
