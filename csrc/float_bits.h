/* The bits of a float, and bfloat16, which is the upper half of a float. */
#ifndef GEMM_FLOAT_BITS_H
#define GEMM_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float widen_bfloat16(uint16_t x) {
    return float_of((uint32_t)x << 16);
}

/* Rounds to nearest, ties to even. A NaN becomes a quiet NaN. */
static inline uint16_t narrow_bfloat16(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x == x ? rounded : bits >> 16 | 0x40);
}

#endif
