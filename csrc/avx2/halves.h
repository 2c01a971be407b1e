/* half.h's and tile.h's parameters for 8 halves as floats in a ymm, given load and store of all 8. */
TARGET static inline __m256 load_part(const uint16_t *p, int count) {
    uint16_t all[8] = {0};
    for (int i = 0; i < count; i++) all[i] = p[i];
    return load(all);
}

TARGET static inline void store_part(uint16_t *p, int count, __m256 v) {
    uint16_t all[8];
    store(all, v);
    for (int i = 0; i < count; i++) p[i] = all[i];
}

#define LOAD_C(p) load(p)
#define STORE_C(p, v) store(p, v)
#define LOAD_C_PART(p, part) load_part(p, (part).count)
#define STORE_C_PART(p, part, v) store_part(p, (part).count, v)
#define RUN 8
#define WIDEN_RUN(to, x) _mm256_storeu_ps(to, load(x))
#define MR 6
#define NV 2
#include "half.h"
