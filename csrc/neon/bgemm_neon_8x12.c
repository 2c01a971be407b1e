/* bfloat16 with the tiles of sgemm_neon_8x12 (see half.h). Packing widens elements by a shift. */
#define BFLOAT16
#include "neon.h"
#include "floats.h"
#include "tile_8x12.h"

NEON_INLINE float32x4_t load(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* Rounds to the nearest even. A NaN becomes a quiet NaN. */
NEON_INLINE void store(uint16_t *p, float32x4_t v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
}
#include "halves.h"

#define KERNEL bgemm_neon_8x12
#define NAME bgemm
#include "tile.h"
