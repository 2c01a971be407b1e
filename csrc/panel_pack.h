/* Packing with conversion: defines NAMED(pack), a gemm_pack_function from T_IN to panels of WIDTH rows of P. Terms:
 *
 *   group           K_GROUP elements of one row, adjacent along k; contiguous in a panel
 *   line            the elements of all WIDTH rows at one k
 *   line of groups  the groups of all WIDTH rows at the same K_GROUP values of k; contiguous in a panel
 *
 * Parameters:
 *
 *   NAMED(stem)     the names of the functions that this header defines
 *   WIDEN(x)        converts an element from T_IN to P
 *   WIDEN_RUN(to, x), RUN   optional: converts RUN contiguous elements
 *   REORDER(p)      optional: reorders VL elements of a line, in place
 *   TRANSPOSE_GROUPS(to, stride, x, step, lines), TRANSPOSED_ROWS
 *                   optional, for groups of 4 bytes: reads 4 groups of each of TRANSPOSED_ROWS rows, which are `step`
 *                   bytes apart, and writes them to min(4, lines) lines of groups, which are `stride` groups apart
 *   GROUP_LINES(to, x, step)
 *                   optional: reads 16 bytes of each of K_GROUP lines, which are `step` bytes apart, and writes them
 *                   as groups
 */
#include <string.h>

#include "panel_compiler.h"

/* Converts `count` contiguous elements. */
TARGET INLINE void NAMED(widen)(P *to, const T_IN *x, int64_t count) {
    int64_t i = 0;
#ifdef WIDEN_RUN
    for (; i + RUN <= count; i += RUN) WIDEN_RUN(to + i, x + i);
#endif
    for (; i < count; i++) to[i] = WIDEN(x[i]);
}

/* Packs a complete panel line by line. In memory, the elements of a line are contiguous (rs = 1). */
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

/* Packs an incomplete panel of `count` < WIDTH rows line by line. Copies SOME lines at a time to `whole`, where zeros
 * complete each line to WIDTH elements, and packs the lines of `whole`. A line is copied in pieces of `run` <= count
 * elements; its last piece may overlap the piece before. `run` is a constant, because a copy of variable length is a
 * function call. */
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

/* Packs a panel of any strides and up to WIDTH rows. Converts STRETCH elements of each row to `stretch` (missing rows
 * are zero), then transposes them in registers. If TRANSPOSED_ROWS does not divide WIDTH, the last block of rows must
 * be stored first, for the reason given in pack.h. */
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

/* Packs a panel of any strides and up to WIDTH rows row by row, in pieces of STRETCH elements of k. The packed piece
 * stays in the L1 cache. */
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
    (void)width; /* equals WIDTH */
    for (int64_t first = 0; first < rows; first += WIDTH, to += WIDTH * padded, x += WIDTH * rs) {
        const int64_t count = rows - first < WIDTH ? rows - first : WIDTH;
        if (rs != 1 || ps == 1 || count == 1)
#ifdef TRANSPOSE_GROUPS
            if (count >= 3) /* for fewer rows, NAMED(rows) takes less time */
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
