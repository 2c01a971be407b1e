/* bfloat16 whose products an instruction sums in float, in pairs or more: panel.h's parameters but for the tile's. The
 * instructions lose up to one unit in the last place of a float a step, where an FMA loses half: far within a
 * bfloat16's own. But whatever the floating-point environment, subnormal operands, products and sums become zero. */
#include <math.h>
#include <stdint.h>
#include <string.h>

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

#define A uint16_t
#define B uint16_t
#define C uint16_t
#define SUM float
#define SAME 0
#define PA uint16_t
#define PB uint16_t
#define WIDEN_A(x) (x)
#define WIDEN_B(x) (x)
#define WIDEN_C(x) widen(x)
#define NARROW(s) narrow(s)
#define SCALAR(s) ((float)(s)->re)
#define IS_ONE(s) ((s)->re == 1)
#define MUL(s, t) ((s) * (t))
#define FMA(s, t, u) fmaf(s, t, u)
