/* half.h's and tile.h's parameters for vectors of 4 16-bit numbers (float16 or bfloat16), which are widened to 4
 * floats. The kernel's file defines load and store, which convert 4 numbers from or to memory. */
NEON_INLINE float32x4_t load_part(const uint16_t *p, int count) {
    uint16_t all[4] = {0};
    for (int i = 0; i < count; i++) all[i] = p[i];
    return load(all);
}

NEON_INLINE void store_part(uint16_t *p, int count, float32x4_t v) {
    uint16_t all[4];
    store(all, v);
    for (int i = 0; i < count; i++) p[i] = all[i];
}

#define LOAD_C(p) load(p)
#define STORE_C(p, v) store(p, v)
#define LOAD_C_PART(p, part) load_part(p, part)
#define STORE_C_PART(p, part, v) store_part(p, part, v)
#define RUN 4
#define WIDEN_RUN(to, x) vst1q_f32(to, load(x))
#include "half.h"
