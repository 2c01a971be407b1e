/* bfloat16 by bfmmla: 16 products an instruction, summed in float. Each adds pairs of products, rounded to odd, so that
 * it loses up to one unit in the last place of a float where an FMA loses half: far within a bfloat16's own. But
 * whatever the floating-point environment, products and sums below the least normal float, 2^-126, become zero. */
#include <math.h>
#include <string.h>

#include "neon.h"

#define KERNEL bgemm_neon_bfmmla_8x8
#define TARGET NEON_BF16
#define A uint16_t
#define B uint16_t
#define C uint16_t
#define SUM float
#define SAME 0
#define PA uint16_t
#define PB uint16_t
#define MR 8
#define NV 2
#define VL 4
#define K_GROUP 4
#define ACC float32x4_t
#define X bfloat16x8_t
#define Y bfloat16x8_t
#define ZERO vdupq_n_f32(0)
#define LOAD_A(p) vreinterpretq_bf16_u16(vld1q_u16(p))
#define LOAD_B(p) vreinterpretq_bf16_u16(vld1q_u16(p))
#define MMLA(acc, x, y) vbfmmlaq_f32(acc, x, y)
#define GET_HALF(p) vld1_f32(p)
#define PUT_HALF(p, v) vst1_f32(p, v)
#define JOIN_HALVES(low, high) vcombine_f32(low, high)
#define LOW(v) vget_low_f32(v)
#define HIGH(v) vget_high_f32(v)
#include "pairs.h"

static inline float widen(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest even; a NaN stays one, quiet. */
static inline uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((x == x ? bits + 0x7FFF + (bits >> 16 & 1) : bits | 0x400000) >> 16);
}

#define WIDEN_A(x) (x)
#define WIDEN_B(x) (x)
#define WIDEN_C(x) widen(x)
#define NARROW(s) narrow(s)
#define SCALAR(s) ((float)(s)->re)
#define IS_ONE(s) ((s)->re == 1)
#define MUL(s, t) ((s) * (t))
#define FMA(s, t, u) fmaf(s, t, u)
#include "panel.h"
