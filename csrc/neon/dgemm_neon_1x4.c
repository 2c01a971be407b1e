/* The row kernel in double: four outputs of one row are two vectors; b vectors, a a scalar. */
#include <arm_neon.h>

#define RANK1(p)                                                      \
    acc[0][0] = vfmaq_n_f64(acc[0][0], vld1q_f64(b + 4 * (p)), a[p]); \
    acc[0][1] = vfmaq_n_f64(acc[0][1], vld1q_f64(b + 4 * (p) + 2), a[p]);
#define STEP4(acc, a, b) RANK1(0) RANK1(1) RANK1(2) RANK1(3)

#define KERNEL dgemm_neon_1x4
#define NAME tile
#define T double
#define V float64x2_t
#define VL 2
#define MR 1
#define NV 2
#define LOAD(p) vld1q_f64(p)
#define STORE(p, v) vst1q_f64(p, v)
#define SPLAT(x) vdupq_n_f64(x)
#define MUL(x, y) vmulq_f64(x, y)
#define FMA(x, y, z) vfmaq_f64(z, x, y)
#include "tile.h"
