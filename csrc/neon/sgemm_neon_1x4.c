/* The row kernel: four outputs of one row, b a vector, a a scalar. Four k a step save loop control; the one chain
 * of FMAs stays in order. */
#include <arm_neon.h>

#define RANK1(p) acc[0][0] = vfmaq_n_f32(acc[0][0], vld1q_f32(b + 4 * (p)), a[p]);
#define STEP4(acc, a, b) RANK1(0) RANK1(1) RANK1(2) RANK1(3)

#define KERNEL sgemm_neon_1x4
#define NAME tile
#define T float
#define V float32x4_t
#define VL 4
#define MR 1
#define NV 1
#define LOAD(p) vld1q_f32(p)
#define STORE(p, v) vst1q_f32(p, v)
#define SPLAT(x) vdupq_n_f32(x)
#define MUL(x, y) vmulq_f32(x, y)
#define FMA(x, y, z) vfmaq_f32(z, x, y)
#include "tile.h"
