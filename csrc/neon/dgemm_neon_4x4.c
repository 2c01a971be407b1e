/* The 4x4 block in double: a row of four is two float64x2, so that each k is eight lane FMAs; four k a step, each
 * accumulator takes them in order. */
#include <arm_neon.h>

#define ROW(i, av, lane)                                     \
    acc[i][0] = vfmaq_laneq_f64(acc[i][0], b_low, av, lane); \
    acc[i][1] = vfmaq_laneq_f64(acc[i][1], b_high, av, lane);
#define RANK1(p)                                                                               \
    {                                                                                          \
        const float64x2_t a_low = vld1q_f64(a + 4 * (p)), a_high = vld1q_f64(a + 4 * (p) + 2); \
        const float64x2_t b_low = vld1q_f64(b + 4 * (p)), b_high = vld1q_f64(b + 4 * (p) + 2); \
        ROW(0, a_low, 0) ROW(1, a_low, 1) ROW(2, a_high, 0) ROW(3, a_high, 1)                  \
    }
#define STEP4(acc, a, b) RANK1(0) RANK1(1) RANK1(2) RANK1(3)

#define KERNEL dgemm_neon_4x4
#define NAME tile
#define T double
#define V float64x2_t
#define VL 2
#define MR 4
#define NV 2
#define LOAD(p) vld1q_f64(p)
#define STORE(p, v) vst1q_f64(p, v)
#define SPLAT(x) vdupq_n_f64(x)
#define MUL(x, y) vmulq_f64(x, y)
#define FMA(x, y, z) vfmaq_f64(z, x, y)
#include "tile.h"
