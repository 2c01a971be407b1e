/* Packing that converts: the type T_IN of memory becomes P, in panels of WIDTH and groups of K_GROUP. NAMED(pack) is a
 * gemm_pack_function; WIDEN(x) and, for RUN adjacent elements, WIDEN_RUN(to, x) convert; SETTLE(p) may rearrange VL
 * elements of a line. */
#include <string.h>

#include "panel_compiler.h"

/* `count` adjacent elements, widened. */
TARGET INLINE void NAMED(widen)(P *to, const T_IN *x, int64_t count) {
    int64_t i = 0;
#ifdef WIDEN_RUN
    for (; i + RUN <= count; i += RUN) WIDEN_RUN(to + i, x + i);
#endif
    for (; i < count; i++) to[i] = WIDEN(x[i]);
}

/* A whole panel whose elements are adjacent along its width: line after line. */
TARGET INLINE void NAMED(lines)(P *to, const T_IN *x, int64_t ps, int64_t k) {
    for (int64_t p = 0; p < k; p += K_GROUP, to += WIDTH * K_GROUP, x += K_GROUP * ps) {
        P line[K_GROUP][WIDTH];
        EACH(g, K_GROUP) {
            if (p + g < k)
                NAMED(widen)(line[g], x + g * ps, WIDTH);
            else
                memset(line[g], 0, sizeof line[g]);
        }
        for (int i = 0; i < WIDTH; i++)
            EACH(g, K_GROUP) to[i * K_GROUP + g] = line[g][i];
    }
}

/* Any panel: row by row, each in stretches that stay in the first cache. */
TARGET INLINE void NAMED(rows)(P *to, const T_IN *x, int64_t rs, int64_t ps, int64_t rows, int64_t k) {
    enum { STRETCH = 64 };
    const int64_t padded = (k + K_GROUP - 1) / K_GROUP * K_GROUP;
    if (rows < WIDTH || padded != k) memset(to, 0, (size_t)(padded * WIDTH) * sizeof(P));
    for (int64_t p = 0; p < k; p += STRETCH) {
        const int64_t count = k - p < STRETCH ? k - p : STRETCH;
        for (int64_t i = 0; i < rows; i++) {
            const T_IN *from = x + i * rs + p * ps;
            P stretch[STRETCH];
            P *at = to + p * WIDTH + i * K_GROUP;
            if (ps == 1)
                NAMED(widen)(stretch, from, count);
            else
                for (int64_t q = 0; q < count; q++) stretch[q] = WIDEN(from[q * ps]);
            int64_t q = 0;
            for (; q + K_GROUP <= count; q += K_GROUP) memcpy(at + q * WIDTH, stretch + q, K_GROUP * sizeof(P));
            for (int64_t g = 0; q + g < count; g++) at[q * WIDTH + g] = stretch[q + g];
        }
    }
}

TARGET static void NAMED(pack)(void *panels, const void *matrix, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                               int64_t width) {
    const int64_t padded = (k + K_GROUP - 1) / K_GROUP * K_GROUP;
    P *to = (P *)panels;
    const T_IN *x = (const T_IN *)matrix;
    (void)width; /* the kernel's own */
    for (int64_t first = 0; first < rows; first += WIDTH, to += WIDTH * padded, x += WIDTH * rs) {
        if (rs == 1 && rows - first >= WIDTH)
            NAMED(lines)(to, x, ps, k);
        else
            NAMED(rows)(to, x, rs, ps, rows - first < WIDTH ? rows - first : WIDTH, k);
#ifdef SETTLE
        for (int64_t i = 0; i < WIDTH * padded; i += VL) SETTLE(to + i);
#endif
    }
}

#undef P
#undef T_IN
#undef NAMED
#undef WIDTH
#undef SETTLE
