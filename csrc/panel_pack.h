/* Packing that converts: the type T_IN of memory becomes P, in panels of WIDTH and groups of K_GROUP. NAMED(pack) is a
 * gemm_pack_function; WIDEN(x) and, for RUN adjacent elements, WIDEN_RUN(to, x) convert; REORDER(p) may rearrange VL
 * elements of a line. TRANSPOSE_GROUPS(to, apart, x, step, lines), optional where a group has 4 bytes: turns 4 groups of each
 * of TRANSPOSED_ROWS rows, `step` bytes apart, into up to 4 lines of groups, `apart` groups apart. GROUP_LINES(to, x, step),
 * optional: makes groups of 16 bytes of each of K_GROUP lines, `step` bytes apart. */
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
#ifdef GROUP_LINES
        enum { AT_ONCE = 16 / sizeof(P) };
        if (WIDTH % AT_ONCE == 0) {
            EACH(i, WIDTH / AT_ONCE) GROUP_LINES(to + i * AT_ONCE * K_GROUP, line[0] + i * AT_ONCE, sizeof *line);
            continue;
        }
#endif
        for (int i = 0; i < WIDTH; i++)
            EACH(g, K_GROUP) to[i * K_GROUP + g] = line[g][i];
    }
}

/* The same of `count` < WIDTH elements a line: some lines at a time are completed with zeros. They are moved by `run` <=
 * count elements, of which the last may be moved twice, for that is a constant: a move of any length is a call. */
TARGET INLINE void NAMED(short_lines)(P *to, const T_IN *x, int64_t ps, int64_t count, int64_t k, const int run) {
    enum { SOME = 32 };
    T_IN whole[SOME][WIDTH];
    memset(whole, 0, sizeof whole);
    for (int64_t p = 0; p < k; p += SOME, to += SOME * WIDTH) {
        const int64_t depth = k - p < SOME ? k - p : SOME;
        for (int64_t q = 0; q < depth; q++, x += ps) {
            PREFETCH(x + SOME * ps);
            for (int64_t i = 0; i + run < count; i += run) memcpy(whole[q] + i, x + i, (size_t)run * sizeof(T_IN));
            memcpy(whole[q] + count - run, x + count - run, (size_t)run * sizeof(T_IN));
        }
        NAMED(lines)(to, whole[0], WIDTH, depth);
    }
}

#ifdef TRANSPOSE_GROUPS
enum { NAMED(STRETCH) = 64, NAMED(LAST) = (WIDTH - 1) / TRANSPOSED_ROWS * TRANSPOSED_ROWS };

/* Any panel, of which a stretch of all rows, those that there are not being zeros, is widened first and then transposed in
 * registers. Turned rows beyond WIDTH reach into the next line of groups, so that the last rows come first: what they
 * spoil is written after them, and at the very end lies in the slack that the driver leaves. */
TARGET INLINE void NAMED(transposed_rows)(P *to, const T_IN *x, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                                          P (*stretch)[NAMED(STRETCH)]) {
    enum { STRETCH = NAMED(STRETCH), LAST = NAMED(LAST) };
    if (rows < WIDTH) memset(stretch[rows], 0, (size_t)(WIDTH - rows) * sizeof *stretch);
    for (int64_t p = 0; p < k; p += STRETCH, x += STRETCH * ps, to += STRETCH * WIDTH) {
        const int64_t count = k - p < STRETCH ? k - p : STRETCH, groups = (count + K_GROUP - 1) / K_GROUP;
        for (int64_t i = 0; i < rows; i++) {
            const T_IN *from = x + i * rs;
            if (ps == 1 && count == STRETCH)
                NAMED(widen)(stretch[i], from, STRETCH);
            else if (ps == 1)
                NAMED(widen)(stretch[i], from, count);
            else
                for (int64_t q = 0; q < count; q++) stretch[i][q] = WIDEN(from[q * ps]);
            for (int64_t q = count; q < groups * K_GROUP; q++) stretch[i][q] = (P){0};
        }
        for (int64_t q = 0; q < groups; q += 4)
            for (int i = LAST; i >= 0; i -= TRANSPOSED_ROWS)
                TRANSPOSE_GROUPS(to + (q * WIDTH + i) * K_GROUP, WIDTH, stretch[i] + q * K_GROUP, sizeof *stretch,
                                 groups - q);
    }
}
#endif

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
#ifdef TRANSPOSE_GROUPS
    P stretch[NAMED(LAST) + TRANSPOSED_ROWS][NAMED(STRETCH)];
    if (rs != 1 || ps == 1) memset(stretch, 0, sizeof stretch);
#endif
    (void)width; /* the kernel's own */
    for (int64_t first = 0; first < rows; first += WIDTH, to += WIDTH * padded, x += WIDTH * rs) {
        const int64_t count = rows - first < WIDTH ? rows - first : WIDTH;
        if (rs != 1 || ps == 1 || count == 1)
#ifdef TRANSPOSE_GROUPS
            if (count >= 3) /* else groups are moved one by one in less time */
                NAMED(transposed_rows)(to, x, rs, ps, count, k, stretch);
            else
#endif
                NAMED(rows)(to, x, rs, ps, count, k);
        else if (count == WIDTH)
            NAMED(lines)(to, x, ps, k);
        else if (count >= 16)
            NAMED(short_lines)(to, x, ps, count, k, 16);
        else if (count >= 8)
            NAMED(short_lines)(to, x, ps, count, k, 8);
        else if (count >= 4)
            NAMED(short_lines)(to, x, ps, count, k, 4);
        else
            NAMED(short_lines)(to, x, ps, count, k, 2);
#ifdef REORDER
        for (int64_t i = 0; i < WIDTH * padded; i += VL) REORDER(to + i);
#endif
    }
}

#undef P
#undef T_IN
#undef NAMED
#undef WIDTH
#undef REORDER
