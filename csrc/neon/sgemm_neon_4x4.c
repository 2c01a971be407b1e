/* The 4x4 block: each step of four k loads four vectors of a and four of b and does sixteen lane FMAs. A panel holds a
 * by columns, so a vector of a is one k of four rows, its lane i belongs to row i of C, and each accumulator takes its
 * four k in order. */
#include <arm_neon.h>

#define ROW(i) acc[i][0]
#define RANK1(p)                                       \
    {                                                  \
        const float32x4_t av = vld1q_f32(a + 4 * (p)); \
        const float32x4_t bv = vld1q_f32(b + 4 * (p)); \
        ROW(0) = vfmaq_laneq_f32(ROW(0), bv, av, 0);   \
        ROW(1) = vfmaq_laneq_f32(ROW(1), bv, av, 1);   \
        ROW(2) = vfmaq_laneq_f32(ROW(2), bv, av, 2);   \
        ROW(3) = vfmaq_laneq_f32(ROW(3), bv, av, 3);   \
    }
#define STEP4(acc, a, b) RANK1(0) RANK1(1) RANK1(2) RANK1(3)

#define KERNEL sgemm_neon_4x4
#define NAME tile
#define T float
#define V float32x4_t
#define VL 4
#define MR 4
#define NV 1
#define LOAD(p) vld1q_f32(p)
#define STORE(p, v) vst1q_f32(p, v)
#define SPLAT(x) vdupq_n_f32(x)
#define MUL(x, y) vmulq_f32(x, y)
#define FMA(x, y, z) vfmaq_f32(z, x, y)
#include "tile.h"
