/* Packing: defines PACK_NAME, a gemm_pack_function that writes panels of PACK_WIDTH rows.
 *
 *   PACK_NAME, PACK_WIDTH       the function's name, the rows of a panel; this header undefines both at its end
 *   PACK_FROM, T                type of the elements in memory (default: T), type of the elements in panels
 *   CONVERT(x)                  converts an element from PACK_FROM to T; required exactly if PACK_FROM is defined
 *   TRANSPOSE, TRANSPOSE_DEPTH  optional, see tile.h; used only if PACK_FROM is not defined
 *
 * The loops read x along its contiguous axis.
 */
#ifndef PACK_FROM
#define PACK_FROM T
#define CONVERT(x) (x)
#define PACK_PLAIN
#endif

TARGET static void PACK_NAME(void *panels, const void *matrix, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                             int64_t width) {
    enum { WIDTH = PACK_WIDTH };
    T *to = (T *)panels;
    const PACK_FROM *x = (const PACK_FROM *)matrix;
    (void)width;
#ifdef PACK_PLAIN
    /* Several panels at a time, so that the loop reads long pieces of the rows of x: the hardware prefetchers follow long
     * pieces from a far cache or from memory. Only if a step of a panel is a number of whole cache lines: otherwise the
     * loop would write each line in two parts. */
    enum {
        BYTES = WIDTH * (int)sizeof(T),
        MOST = GEMM_PIECE_OF_ROW / BYTES,
        WHOLE_LINES = BYTES % 64 == 0 && MOST > 1
    };
    for (int64_t panels; rs == 1 && WHOLE_LINES && k > GEMM_SHORT_K && (panels = rows / WIDTH) > 1;
         rows -= panels * WIDTH, x += panels * WIDTH, to += panels * WIDTH * k) {
        if (panels > MOST) panels = MOST;
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = 0; i < panels; i++)
                EACH(v, WIDTH / VL) STORE(to + (i * k + p) * WIDTH + v * VL, LOAD(x + p * ps + i * WIDTH + v * VL));
    }
#endif
    for (; rows > 0; rows -= WIDTH, x += WIDTH * rs, to += WIDTH * k) {
        const int64_t count = rows < WIDTH ? rows : WIDTH;
        if (rs == 1) {
            for (int64_t p = 0; p < k; p++) {
                const PACK_FROM *from = x + p * ps;
                T *row = to + p * WIDTH;
                /* prefetch the next panel: the hardware prefetcher does not predict rows that are far apart */
                EACH(line, LINES(WIDTH, PACK_FROM)) PREFETCH((const char *)(from + WIDTH) + 64 * line);
                if (count == WIDTH) {
#ifdef PACK_PLAIN
                    if (WIDTH % VL == 0) { /* explicit vectors: no compiler vectorizes a plain loop here */
                        EACH(v, WIDTH / VL) STORE(row + v * VL, LOAD(from + v * VL));
                    } else {
                        memcpy(row, from, WIDTH * sizeof(T));
                    }
#else
                    for (int i = 0; i < WIDTH; i++) row[i] = CONVERT(from[i]);
#endif
                    continue;
                }
                for (int64_t i = 0; i < count; i++) row[i] = CONVERT(from[i]);
                for (int64_t i = count; i < WIDTH; i++) row[i] = (T){0};
            }
            continue;
        }
        int64_t done = 0;
#if defined(TRANSPOSE) && defined(PACK_PLAIN)
        /* A line is the WIDTH elements of one step along k. The loop transposes blocks of VL rows. If VL does not
         * divide WIDTH, the stores of the last block extend into the start of the next line. Therefore the last block
         * is stored first: the first block is stored later and overwrites the excess. For the excess after the last
         * panel, the driver allocates slack. */
        enum { LAST_BLOCK = (WIDTH - 1) / VL * VL, DEPTH = TRANSPOSE_DEPTH };
#define TRANSPOSE_ROWS(i, have)                                                     \
    V transposed[TRANSPOSE_DEPTH];                                                  \
    TRANSPOSE(transposed, x + (i) * rs + done, rs, (have) < VL ? (int)(have) : VL); \
    EACH(p, DEPTH) STORE(to + (done + p) * WIDTH + (i), transposed[p]);
        if (ps == 1 && count == WIDTH)
            for (; done + DEPTH <= k; done = next_block(done, DEPTH, k)) {
                EACH(block, LAST_BLOCK / VL + 1) {
                    TRANSPOSE_ROWS(LAST_BLOCK - block * VL, WIDTH - LAST_BLOCK + block * VL)
                }
            }
        else if (ps == 1)
            for (; done + DEPTH <= k; done = next_block(done, DEPTH, k))
                for (int64_t i = LAST_BLOCK; i >= 0; i -= VL) { TRANSPOSE_ROWS(i, count < i ? 0 : count - i) }
#undef TRANSPOSE_ROWS
#endif
        for (; done < k; done++) {
            T *row = to + done * WIDTH;
            for (int64_t i = 0; i < count; i++) row[i] = CONVERT(x[i * rs + done * ps]);
            for (int64_t i = count; i < WIDTH; i++) row[i] = (T){0};
        }
    }
}

#undef PACK_NAME
#undef PACK_WIDTH
#ifdef PACK_PLAIN
#undef PACK_FROM
#undef CONVERT
#undef PACK_PLAIN
#endif
