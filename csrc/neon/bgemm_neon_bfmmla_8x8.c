/* bfloat16 with bfmmla: 16 products per instruction. bfmmla adds the products in pairs, rounds the sum of each pair to
 * odd, and adds these sums in float. */
#include "bfloat16.h"
#include "neon.h"

#define KERNEL bgemm_neon_bfmmla_8x8
#define TARGET NEON_BF16
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
#include "mmla_tile.h"
#include "panel.h"
