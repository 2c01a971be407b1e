/* float16 with the tiles of sgemm_neon_8x12 (see half.h). Packing widens with fcvtl, which every AArch64 CPU has. */
#include "neon.h"
#include "floats.h"
#include "tile_8x12.h"

NEON_INLINE float32x4_t load(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

NEON_INLINE void store(uint16_t *p, float32x4_t v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
#include "halves.h"

#define KERNEL hgemm_neon_8x12
#define NAME hgemm
#include "tile.h"
