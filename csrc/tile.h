/* The register tile and the loops over tiles, for kernels in which operands and sums have the same type in registers. A
 * kernel's file defines the parameters below and includes this header. The result is a block function that fulfils the
 * contract of gemm.h and keeps every accumulator in a register:
 *
 *                 b: nv vectors of VL columns
 *                +------+------+------+
 *      a: rows   | acc  | acc  | acc  |    per step of k: load nv vectors of b, broadcast each element of a,
 *                | acc  | acc  | acc  |    and execute rows x nv fused multiply-adds
 *                +------+------+------+
 *
 * There is a tile function for each rows x nv with at most ACCUMULATORS accumulators. For 12 accumulators, the largest
 * tiles are 12 x 1, 6 x 2, 4 x 3 and 3 x 4. Therefore a block of any shape wastes at most a part of its last vector. A
 * block of few rows or few columns keeps the FMA units as busy as a large block does.
 *
 * Required parameters:
 *
 *   NAME             prefix of the functions that this header defines
 *   T                type of the sums
 *   MR, NV           rows, and vectors per row, of the tile for packed panels
 *   ACCUMULATORS     number of accumulator registers
 *   TALLEST          maximum number of rows of a tile, at most 12
 *   TILES(X)         X(1) X(2) ...: X(nv) for each number nv of vectors per row that a tile may have, including NV
 *   FMA(x, y, z)     x * y + z
 *
 * Vector parameters. If V is not defined, a vector is a single element in plain C, and none of these is needed:
 *
 *   V, VL                           vector type, and its number of elements
 *   LOAD(p), STORE(p, v)            load and store a vector
 *   SPLAT(x), MUL(x, y)             broadcast an element, multiply
 *   PART, PART_OF(count)            type and value that describe the first `count` elements (1 to VL) of a vector
 *   LOAD_PART(p, part)              load only the elements of `part`; the values of the other elements do not matter
 *   STORE_PART(p, part, v)          store only the elements of `part`
 *   X                               type of SPLAT's result (default: V)
 *   ZERO                            a vector of sums that are zero (default: SPLAT((T)0))
 *
 * If the elements of a and b that the tile reads (in matrices or in panels) have another type than T:
 *
 *   IN, WIDEN_IN(x)                 the type of these elements, and the conversion of an element to T
 *   SPLAT_IN(x), LOAD_IN(p), LOAD_IN_PART(p, part)   SPLAT, LOAD and LOAD_PART with that conversion
 *
 * If C has another type than T:
 *
 *   C_T                             the type of C
 *   LOAD_C(p), STORE_C(p, v), LOAD_C_PART(p, part), STORE_C_PART(p, part, v)   LOAD ... with conversion from or to C_T
 *
 * Scalars and packing:
 *
 *   ONE(s), SCALAR(s)               whether a gemm_scalar is 1; its value as T (defaults: for its real part)
 *   SCALED(s, v)                    s * v for a gemm_scalar s (default: with SPLAT and MUL)
 *   PLUS_SCALED(s, c, v)            s * c + v for a gemm_scalar s (default: with SPLAT and FMA)
 *   PACK_A, PACK_B, A_T, B_T        packing functions (default: those of pack.h for T); types of a and b in memory
 *
 * Optional parameters:
 *
 *   KERNEL           name of the kernel's row in the catalog; if defined, this header defines the descriptor, too
 *   TARGET           function attributes that enable the instruction set
 *   FLAGS            flags of gemm.h (default: a and b may be unpacked)
 *   COMPUTE          the descriptor's block function (default: NAME_compute, which this header defines). The kernel's
 *                    file defines this function after it includes this header; the function may call NAME_compute.
 *   ELEMENT(p)       loads an element of a in the k loop (default: SPLAT_IN(*(p)))
 *   FMA_ELEMENT(x, y, z)            x * y + z if x is the result of ELEMENT (default: FMA)
 *   K_LOOP(rows, nv, acc, k, a, b)  the k loop of an MR x NV tile of packed panels; must keep the order of k
 *   ACCUMULATORS_UNPACKED           ACCUMULATORS for an unpacked a (default: ACCUMULATORS)
 *   NV_UNPACKED      vectors per row of the tile if neither a nor b is packed (default: NV)
 *   STREAM           if defined, there are special loops for m <= GEMM_FEW that read b in the order of memory
 *   STREAM_FROM      minimum n for the special loop over an unpacked b with b_cs = 1 (default: the width of 4 tiles)
 *   STREAM_AHEAD     prefetch distance of these loops along a row of b, in bytes (default: 0, no prefetching)
 *   TRANSPOSE(transposed, x, rs, count), TRANSPOSE_DEPTH   transposed[p] = the vector of x[i * rs + p] over VL rows i,
 *                    for p < TRANSPOSE_DEPTH; rows i >= count are zero and not read
 *   FMA_ONE(x, y, z) FMA of single elements; if defined, sums for m = 1 may be split over k
 *   DOTS(x)          the kernel's own function for sums split over k, instead of this header's; a_ps = b_ps = 1
 *
 * parameters.h reports missing parameters. This header undefines all parameters, so it may be included several times.
 */
#include "gemm.h"

#include <stdlib.h>
#include <string.h>

#include "panel_compiler.h"

#define PARAMETERS_OF_TILE
#include "parameters.h"

#define WHOLE 1 /* the forms of `tiles` */
#define PACKED 2
#define BESIDE 4
#define LINES(count, type) (((count) * (int)sizeof(type) + 63) / 64) /* cache lines of `count` elements */
#define JOIN_(x, y) x##_##y
#define JOIN(x, y) JOIN_(x, y)
#define LOCAL(stem) JOIN(NAME, stem)
#ifndef TARGET
#define TARGET
#endif
#ifndef V
#define V T
#define VL 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPLAT(x) (x)
#define MUL(x, y) ((x) * (y))
#define PART int
#define PART_OF(count) (count)
#define LOAD_PART(p, part) ((void)(part), *(p))
#define STORE_PART(p, part, v) ((void)(part), *(p) = (v))
#endif
#ifndef C_T
#define C_T T
#define LOAD_C LOAD
#define STORE_C STORE
#define LOAD_C_PART LOAD_PART
#define STORE_C_PART STORE_PART
#endif
#ifndef IN
#define IN T
#define WIDEN_IN(x) (x)
#define SPLAT_IN SPLAT
#define LOAD_IN LOAD
#define LOAD_IN_PART LOAD_PART
#endif
#ifndef ONE
#define ONE(s) ((s)->re == 1)
#define SCALAR(s) ((T)(s)->re)
#endif
#ifndef X
#define X V
#endif
#ifndef ZERO
#define ZERO SPLAT((T)0)
#endif
#ifndef SCALED
#define SCALED(s, v) MUL(SPLAT(SCALAR(s)), v)
#define PLUS_SCALED(s, c, v) FMA(SPLAT(SCALAR(s)), c, v)
#endif
#ifndef ELEMENT
#define ELEMENT(p) SPLAT_IN(*(p))
#define FMA_ELEMENT FMA
#endif
#ifndef FLAGS
#if defined(STREAM) && defined(TRANSPOSE)
#define FLAGS (GEMM_UNPACKED_A | GEMM_UNPACKED_B | GEMM_UNPACKED_DOTS | GEMM_FEW_ROWS)
#else
#define FLAGS (GEMM_UNPACKED_A | GEMM_UNPACKED_B)
#endif
#endif
#ifndef PACK_A
#define A_T T
#define B_T T
#define PACK_A LOCAL(pack_a)
#define PACK_B LOCAL(pack_b)
#define PACK_WIDTH MR
#define PACK_NAME PACK_A
#include "pack.h"
#define PACK_WIDTH ((NV) * (VL))
#define PACK_NAME PACK_B
#include "pack.h"
#endif
#define NR ((NV) * (VL))
#ifndef NV_UNPACKED
#define NV_UNPACKED (NV)
#endif
#ifndef STREAM_FROM
#define STREAM_FROM (4 * NV_UNPACKED * VL)
#endif
#ifndef STREAM_AHEAD
#define STREAM_AHEAD 0
#endif
#ifndef ACCUMULATORS_UNPACKED
#define ACCUMULATORS_UNPACKED ACCUMULATORS
#endif
#ifndef AHEAD
#define AHEAD 8 /* prefetch distance along k, in rows of b */
#endif

/* Computes `tiles` tiles of rows x nv from row i and column j of the block on. a and b point to the operands of the
 * first tile.
 *
 *   form        WHOLE: the last vector of a row has VL columns, not only last_count
 *               PACKED: a and b are panels of MR rows and NR columns
 *               BESIDE: each tile is to the right of the tile before it, not below it
 *   a_step      elements from one tile's a to the next tile's a
 *   b_next      elements from b to the next columns or panel of b. Without BESIDE, the last tile prefetches them, unless
 *               b_next is 0. All tiles together prefetch the next panel to the L2 cache.
 */
TARGET INLINE void LOCAL(tiles)(const int rows, const int nv, const int form, const gemm_block *x, int64_t i, int64_t j,
                                int64_t tiles, const IN *a, const IN *b, int64_t a_step, int64_t b_next,
                                int last_count) {
    const int whole = form & WHOLE, packed = form & PACKED, beside = form & BESIDE;
    const int64_t i_step = beside ? 0 : rows, j_step = beside ? nv * VL : 0, b_step = beside ? b_next : 0;
    const int64_t k = x->k, a_rs = x->a_rs, a_ps = x->a_ps, b_ps = x->b_ps;
    const PART last = PART_OF(last_count);
    /* Each pair of steps along k prefetches a part of the next panel. `advance`: the bytes of such a part. */
    const char *next_panel = (const char *)(b + b_next);
    const int64_t advance = tiles > 0 ? 2 * NR * (int64_t)sizeof(IN) / tiles : 0;
    (void)last, (void)next_panel, (void)advance;
#define EACH_VECTOR(statement, statement_of_part) \
    EACH(v, nv) {                                 \
        if (whole || v < nv - 1) {                \
            statement;                            \
        } else {                                  \
            statement_of_part;                    \
        }                                         \
    }
    for (; tiles > 0; tiles--, i += i_step, a += a_step, j += j_step, b += b_step) {
        V acc[TALLEST * 8];
        if (x->from) {
            const T *from = (const T *)x->from + i * x->from_rs + j;
            EACH(r, rows) {
                const T *row = from + r * x->from_rs;
                EACH_VECTOR(acc[r * nv + v] = LOAD(row + v * VL), acc[r * nv + v] = LOAD_PART(row + v * VL, last))
            }
        } else {
            EACH(at, rows * nv) acc[at] = ZERO;
        }

        if (tiles > 1 && !beside && k > GEMM_SHORT_K) { /* prefetch the next tile of C during the k loop */
            const char *next = (const char *)x->to + ((i + rows) * x->to_rs + j) * (int64_t)sizeof(C_T);
            EACH(r, rows) {
                const char *row = next + r * x->to_rs * (int64_t)sizeof(C_T);
                EACH(line, LINES(nv * VL, C_T)) PREFETCH(row + 64 * line);
                PREFETCH(row + (nv * VL - 1) * (int)sizeof(C_T));
            }
        }

        /* Prefetch rows of an unpacked b from the L2 cache, AHEAD steps early: the hardware prefetcher does not predict
         * short rows that are far apart. The last tile prefetches the next columns or panel of b instead. If a row starts
         * in the middle of a cache line, the columns before it have already read this line, so the lines are counted from
         * the end of the row. */
        const int switches = tiles == 1 && b_next != 0;
        const int prefetches = !beside && k > GEMM_SHORT_K && (!packed || switches);
        const int64_t ahead = switches ? b_next : AHEAD * b_ps;
        const IN *ap = a, *bp = b;
#define STEP(a_at, a_apart, b_at)                                                                                  \
    {                                                                                                              \
        V row[8];                                                                                                  \
        if (prefetches)                                                                                            \
            EACH(line, LINES(nv * VL, IN)) PREFETCH((b_at) + ahead + nv * VL - 1 - line * (64 / (int)sizeof(IN))); \
        EACH(v, nv) {                                                                                              \
            if (packed || whole || v < nv - 1)                                                                     \
                row[v] = LOAD_IN((b_at) + v * VL);                                                                 \
            else                                                                                                   \
                row[v] = LOAD_IN_PART((b_at) + v * VL, last);                                                      \
        }                                                                                                          \
        EACH(r, rows) {                                                                                            \
            const X element = ELEMENT((a_at) + r * (a_apart));                                                     \
            EACH(v, nv) acc[r * nv + v] = FMA_ELEMENT(element, row[v], acc[r * nv + v]);                           \
        }                                                                                                          \
    }
        if (packed) {
#ifdef K_LOOP
            K_LOOP(rows, nv, acc, k, ap, bp)
#else
            int64_t p = k;
            for (; p > 1; p -= 2, ap += 2 * MR, bp += 2 * NR, next_panel += advance) {
                PREFETCH_L2(next_panel);
                EACH(q, 2) STEP(ap + q * MR, 1, bp + q * NR)
            }
            if (p) STEP(ap, 1, bp)
#endif
        } else {
            for (int64_t p = k; p > 0; p--, ap += a_ps, bp += b_ps) STEP(ap, a_rs, bp)
        }
#undef STEP

        if (x->raw) {
            T *to = (T *)x->to + i * x->to_rs + j;
            EACH(r, rows) {
                T *row = to + r * x->to_rs;
                EACH_VECTOR(STORE(row + v * VL, acc[r * nv + v]), STORE_PART(row + v * VL, last, acc[r * nv + v]))
            }
            continue;
        }
        if (!ONE(x->alpha)) { /* the test for 1 only saves time; a NaN alpha is not 1 and multiplies */
            EACH(at, rows * nv) acc[at] = SCALED(x->alpha, acc[at]);
        }
        if (x->c) {
            const C_T *c = (const C_T *)x->c + i * x->c_rs + j;
            EACH(r, rows) {
                const C_T *row = c + r * x->c_rs;
                EACH_VECTOR(acc[r * nv + v] = PLUS_SCALED(x->beta, LOAD_C(row + v * VL), acc[r * nv + v]),
                            acc[r * nv + v] = PLUS_SCALED(x->beta, LOAD_C_PART(row + v * VL, last), acc[r * nv + v]))
            }
        }
        C_T *to = (C_T *)x->to + i * x->to_rs + j;
        EACH(r, rows) {
            C_T *row = to + r * x->to_rs;
            EACH_VECTOR(STORE_C(row + v * VL, acc[r * nv + v]), STORE_C_PART(row + v * VL, last, acc[r * nv + v]))
        }
    }
#undef EACH_VECTOR
}

/* One function for each rows x nv, with two copies of the loop: for a complete and for a partial last vector. */
#define HEIGHT(nv) ((ACCUMULATORS) / (nv) < (TALLEST) ? (ACCUMULATORS) / (nv) : (TALLEST))
#define TILE(rows, nv)                                                                                                \
    TARGET static void LOCAL(JOIN(rows, nv))(const gemm_block *x, int64_t i, int64_t j, int64_t tiles, const IN *a,   \
                                             const IN *b, int64_t a_step, int64_t b_next, int last_count) {           \
        if ((rows) > HEIGHT(nv)) abort(); /* there is no such tile, and returning would silently leave C unchanged */ \
        if (last_count == VL)                                                                                         \
            LOCAL(tiles)(rows, nv, WHOLE, x, i, j, tiles, a, b, a_step, b_next, VL);                                  \
        else                                                                                                          \
            LOCAL(tiles)(rows, nv, 0, x, i, j, tiles, a, b, a_step, b_next, last_count);                              \
    }
/* clang-format off: clang-format does not converge here */
#define TILES_OF(nv) \
    TILE(1, nv)      \
    TILE(2, nv)      \
    TILE(3, nv)      \
    TILE(4, nv) TILE(5, nv) TILE(6, nv) TILE(7, nv) TILE(8, nv) TILE(9, nv) TILE(10, nv) TILE(11, nv) TILE(12, nv)
/* clang-format on */
#define TABLE_OF(nv)                                                                   \
    {LOCAL(JOIN(1, nv)), LOCAL(JOIN(2, nv)),  LOCAL(JOIN(3, nv)),  LOCAL(JOIN(4, nv)), \
     LOCAL(JOIN(5, nv)), LOCAL(JOIN(6, nv)),  LOCAL(JOIN(7, nv)),  LOCAL(JOIN(8, nv)), \
     LOCAL(JOIN(9, nv)), LOCAL(JOIN(10, nv)), LOCAL(JOIN(11, nv)), LOCAL(JOIN(12, nv))},
#define HEIGHT_OF(nv) ((ACCUMULATORS_UNPACKED) / (nv) < (TALLEST) ? (ACCUMULATORS_UNPACKED) / (nv) : (TALLEST)),
TILES(TILES_OF)

/* The MR x NV tile of packed panels. Large products spend their time here. Panels are padded with zeros, so even a
 * partial last vector of b is loaded completely. */
TARGET static void LOCAL(packed)(const gemm_block *x, int64_t i, int64_t j, int64_t tiles, const IN *a, const IN *b,
                                 int64_t a_step, int64_t b_next, int last_count) {
    if (last_count == VL)
        LOCAL(tiles)(MR, NV, WHOLE | PACKED, x, i, j, tiles, a, b, a_step, b_next, VL);
    else
        LOCAL(tiles)(MR, NV, PACKED, x, i, j, tiles, a, b, a_step, b_next, last_count);
}

typedef void LOCAL(function)(const gemm_block *, int64_t, int64_t, int64_t, const IN *, const IN *, int64_t, int64_t,
                             int);
static LOCAL(function) *const LOCAL(table)[][12] = {TILES(TABLE_OF)};
static const int LOCAL(heights)[] = {TILES(HEIGHT_OF)};
enum { LOCAL(widest) = sizeof LOCAL(heights) / sizeof *LOCAL(heights) };

/* One function for each number of rows up to MR: `tiles` tiles of NR columns, one beside the other. */
#define TILES_BESIDE(rows)                                                                                    \
    TARGET static void LOCAL(JOIN(beside, rows))(const gemm_block *x, int64_t i, int64_t j, int64_t tiles,    \
                                                 const IN *a, const IN *b, int64_t a_step, int64_t b_next,    \
                                                 int last_count) {                                            \
        (void)last_count;                                                                                     \
        if ((rows) <= (MR)) LOCAL(tiles)(rows, NV, WHOLE | BESIDE, x, i, j, tiles, a, b, a_step, b_next, VL); \
    }
TILES_BESIDE(1)
TILES_BESIDE(2)
TILES_BESIDE(3)
TILES_BESIDE(4)
TILES_BESIDE(5)
TILES_BESIDE(6)
TILES_BESIDE(7)
TILES_BESIDE(8)
TILES_BESIDE(9)
TILES_BESIDE(10)
TILES_BESIDE(11)
TILES_BESIDE(12)
static LOCAL(function) *const LOCAL(of_rows_beside)[] = {
    LOCAL(JOIN(beside, 1)), LOCAL(JOIN(beside, 2)),  LOCAL(JOIN(beside, 3)),  LOCAL(JOIN(beside, 4)),
    LOCAL(JOIN(beside, 5)), LOCAL(JOIN(beside, 6)),  LOCAL(JOIN(beside, 7)),  LOCAL(JOIN(beside, 8)),
    LOCAL(JOIN(beside, 9)), LOCAL(JOIN(beside, 10)), LOCAL(JOIN(beside, 11)), LOCAL(JOIN(beside, 12))};

/* Computes a block with a short k. Writing C then takes most of the time, so the tiles follow the rows of C: the
 * hardware prefetcher follows a few rows along their length, but not a column from row to row. */
TARGET static void LOCAL(compute_by_rows)(const gemm_block *x, int strided_a) {
    const int64_t whole = x->n / NR, rest = x->n % NR;
    const int nv = (int)((rest + VL - 1) / VL), last_count = (int)rest - (nv - 1) * VL;
    const int64_t height = strided_a && LOCAL(heights)[NV - 1] < MR ? LOCAL(heights)[NV - 1] : MR;
    const int64_t a_step = strided_a ? height * x->a_rs : x->a_ts;
    const IN *a = (const IN *)x->a, *b = (const IN *)x->b;
    for (int64_t i = 0; i < x->m; i += height, a += a_step) {
        const int64_t rows = x->m - i < height ? x->m - i : height;
        LOCAL(of_rows_beside)[rows - 1](x, i, 0, whole, a, b, 0, x->b_ts, VL);
        if (rest) LOCAL(table)[nv - 1][rows - 1](x, i, whole * NR, 1, a, b + whole * x->b_ts, 0, 0, last_count);
    }
}

#ifdef STREAM
/* Applies the epilogue, unless the block is raw, to a vector of sums of row i, and stores the vector from column j on:
 * all of it, or only `part`. */
TARGET INLINE void LOCAL(finish)(const gemm_block *x, int64_t i, int64_t j, V sum, int whole, PART part) {
    if (x->raw) {
        T *to = (T *)x->to + i * x->to_rs + j;
        if (whole)
            STORE(to, sum);
        else
            STORE_PART(to, part, sum);
        return;
    }
    if (!ONE(x->alpha)) sum = SCALED(x->alpha, sum);
    if (x->c) {
        const C_T *c = (const C_T *)x->c + i * x->c_rs + j;
        V addend;
        if (whole)
            addend = LOAD_C(c);
        else
            addend = LOAD_C_PART(c, part);
        sum = PLUS_SCALED(x->beta, addend, sum);
    }
    C_T *to = (C_T *)x->to + i * x->to_rs + j;
    if (whole)
        STORE_C(to, sum);
    else
        STORE_C_PART(to, part, sum);
}

/* Multiplies a few rows of a by an unpacked b with b_cs = 1. The loop reads b along its rows, `depth` rows at a time.
 * The sums of `stretch` columns stay in the cache. */
TARGET INLINE void LOCAL(stream)(const int rows, const gemm_block *x) {
    /* rows * depth elements of a, `depth` vectors of b and a sum fit the registers: ACCUMULATORS and four others */
    enum { BYTES = 16384, MOST = 8, NEAR = 2 << 20 };
    const int fitting = (ACCUMULATORS_UNPACKED + 2) / (rows + 1), depth = rows == 1 || fitting > MOST ? MOST : fitting;
    const int64_t stretch = BYTES / (int)sizeof(T) / rows / VL * VL;
    _Alignas(64) T sums[BYTES / sizeof(T)];
    const T *from = (const T *)x->from;
    /* For a b that is not near, the hardware prefetchers are faster alone. */
    const int64_t ahead = x->k * x->n * (int64_t)sizeof(IN) <= NEAR ? STREAM_AHEAD : 0;
    (void)ahead;
    for (int64_t j0 = 0; j0 < x->n; j0 += stretch) {
        const int64_t n = x->n - j0 < stretch ? x->n - j0 : stretch, whole = n / VL * VL;
        const PART part = PART_OF(n > whole ? (int)(n - whole) : VL);
        const IN *b = (const IN *)x->b + j0;
        EACH(r, rows)
            for (int64_t j = 0; j < n; j += VL) {
                V sum = ZERO;
                if (from) {
                    const T *start = from + r * x->from_rs + j0 + j;
                    sum = j < whole ? LOAD(start) : LOAD_PART(start, part);
                }
                STORE(sums + r * stretch + j, sum);
            }
        int64_t p = 0;
#define ADD(steps)                                                                         \
    {                                                                                      \
        const IN *a = (const IN *)x->a + p * x->a_ps;                                      \
        X element[GEMM_FEW * MOST];                                                        \
        EACH(r, rows)                                                                      \
            EACH(q, steps) element[r * MOST + q] = SPLAT_IN(a[r * x->a_rs + q * x->a_ps]); \
        for (int64_t j = 0; j < n; j += VL) {                                              \
            V row[MOST];                                                                   \
            if (j < whole) {                                                               \
                if (STREAM_AHEAD)                                                          \
                    EACH(q, steps) PREFETCH((const char *)(b + q * x->b_ps + j) + ahead);  \
                EACH(q, steps) row[q] = LOAD_IN(b + q * x->b_ps + j);                      \
            } else {                                                                       \
                EACH(q, steps) row[q] = LOAD_IN_PART(b + q * x->b_ps + j, part);           \
            }                                                                              \
            EACH(r, rows) {                                                                \
                V sum = LOAD(sums + r * stretch + j);                                      \
                EACH(q, steps) sum = FMA(element[r * MOST + q], row[q], sum);              \
                STORE(sums + r * stretch + j, sum);                                        \
            }                                                                              \
        }                                                                                  \
    }
        for (; p + depth <= x->k; p += depth, b += depth * x->b_ps) ADD(depth)
        for (; p + 2 <= x->k; p += 2, b += 2 * x->b_ps) ADD(2)
        for (; p < x->k; p++, b += x->b_ps) ADD(1)
#undef ADD
        EACH(r, rows)
            for (int64_t j = 0; j < n; j += VL)
                LOCAL(finish)(x, r, j0 + j, LOAD(sums + r * stretch + j), j < whole, part);
    }
}

/* Multiplies a row of a by several panels of b at a time: a single panel cannot hide the latency of the FMAs. */
TARGET static void LOCAL(across)(const gemm_block *x) {
    enum { PANELS = 4 };
    const IN *a = (const IN *)x->a;
    const T *from = (const T *)x->from;
    for (int64_t j = 0; j < x->n; j += PANELS * NR) {
        const int count = x->n - j < PANELS * NR ? (int)(x->n - j) : PANELS * NR;
        const IN *panel[PANELS];
        V sum[PANELS * NV];
        EACH(i, PANELS) /* instead of a panel beyond n, read the first panel of this group */
            panel[i] = (const IN *)x->b + (j / NR + (i * NR < count ? i : 0)) * x->b_ts;
        EACH(i, PANELS * NV) {
            sum[i] = ZERO;
            if (from && (i + 1) * VL <= count)
                sum[i] = LOAD(from + j + i * VL);
            else if (from && i * VL < count)
                sum[i] = LOAD_PART(from + j + i * VL, PART_OF(count - i * VL));
        }
        for (int64_t p = 0; p < x->k; p++) {
            const X element = SPLAT_IN(a[p * x->a_ps]);
            EACH(i, PANELS)
                EACH(v, NV) sum[i * NV + v] = FMA(element, LOAD_IN(panel[i] + p * NR + v * VL), sum[i * NV + v]);
        }
        EACH(i, PANELS * NV) {
            const int left = count - i * VL;
            if (left > 0) LOCAL(finish)(x, 0, j + i * VL, sum[i], left >= VL, PART_OF(left < VL ? left : VL));
        }
    }
}

#ifdef TRANSPOSE
/* Multiplies a few rows of a by groups * VL columns of b, from j on, where b_ps = 1 (each column is contiguous along
 * k). The loop transposes pieces of b in registers, so each sum adds its terms in the order of k. If `count` is less
 * than VL, there is one group, of `count` columns. */
TARGET INLINE void LOCAL(dots_of_groups)(const int rows, const int groups, const gemm_block *x, int64_t j, int count) {
    enum { MOST = 3 };
    const IN *a = (const IN *)x->a, *b = (const IN *)x->b + j * x->b_cs;
    const T *from = (const T *)x->from;
    const PART part = PART_OF(count);
    V sum[GEMM_FEW * MOST];
    EACH(r, rows)
        EACH(g, groups) {
            const int64_t start = r * x->from_rs + j + g * VL;
            V *const to = sum + r * groups + g;
            *to = ZERO;
            if (from) *to = count == VL ? LOAD(from + start) : LOAD_PART(from + start, part);
        }
    int64_t p = 0;
    /* Of the TRANSPOSE_DEPTH terms from p on, adds those from number `first` on, and before number `end`. */
#define ADD(first, end)                                                                          \
    EACH(g, groups) {                                                                            \
        V transposed[TRANSPOSE_DEPTH];                                                           \
        TRANSPOSE(transposed, b + g * VL * x->b_cs + p, x->b_cs, count);                         \
        EACH(q, TRANSPOSE_DEPTH)                                                                 \
            if (q >= (first) && q < (end))                                                       \
                EACH(r, rows) {                                                                  \
                    V *const to = sum + r * groups + g;                                          \
                    *to = FMA(SPLAT_IN(a[r * x->a_rs + (p + q) * x->a_ps]), transposed[q], *to); \
                }                                                                                \
    }
    for (; p + TRANSPOSE_DEPTH <= x->k; p += TRANSPOSE_DEPTH) ADD(0, TRANSPOSE_DEPTH)
    /* The last terms are the end of a whole piece, whose first terms have been added. For a short k, the piece extends into
     * the next columns of b, so this is not for the last columns. */
    const int deep = x->k >= TRANSPOSE_DEPTH;
    const int64_t beyond =
        (x->n - j - (groups - 1) * VL - count) * x->b_cs; /* elements of b after the last column here */
    if (p < x->k && (deep || (x->b_cs > 0 && beyond >= TRANSPOSE_DEPTH - x->k))) {
        const int first = deep ? (int)(p + TRANSPOSE_DEPTH - x->k) : 0, end = deep ? TRANSPOSE_DEPTH : (int)x->k;
        p = deep ? x->k - TRANSPOSE_DEPTH : 0;
        ADD(first, end)
        p = x->k;
    }
#undef ADD
    for (; p < x->k; p++) {
        EACH(g, groups) {
            T column[VL] = {0};
            for (int i = 0; i < count; i++) column[i] = WIDEN_IN(b[(g * VL + i) * x->b_cs + p]);
            EACH(r, rows) {
                V *const to = sum + r * groups + g;
                *to = FMA(SPLAT_IN(a[r * x->a_rs + p * x->a_ps]), LOAD(column), *to);
            }
        }
    }
    EACH(r, rows)
        EACH(g, groups) LOCAL(finish)(x, r, j + g * VL, sum[r * groups + g], count == VL, part);
}

/* Multiplies a few rows of a by b, where b_ps = 1. Several groups of VL columns at a time hide the latency of the FMAs
 * and use each element of a several times. If the distance between the columns of b is a multiple of a large power of
 * two, the cache lines of all columns fall into few sets of L1, and a set holds only WAYS lines. If the lines of
 * several groups do not fit, the function computes one group at a time. Addresses that are PERIOD bytes apart fall into
 * the same set. */
TARGET INLINE void LOCAL(ordered_dots)(const int rows, const gemm_block *x) {
    enum { WAYS = 8, PERIOD = 4096, GROUPS = WAYS * PERIOD / VL };
    const int64_t step = x->b_cs * (int64_t)sizeof(IN), power = step & -step;
    const int64_t shared = power < PERIOD ? power : PERIOD, end = x->n;
    int64_t j = 0;
    const int groups = rows <= 2 && VL > 4 ? 3 : 2;
    for (; groups * shared <= GROUPS && j + groups * VL <= end; j += groups * VL)
        LOCAL(dots_of_groups)(rows, groups, x, j, VL);
    for (; j + VL <= end; j += VL) LOCAL(dots_of_groups)(rows, 1, x, j, VL);
    if (j < end) LOCAL(dots_of_groups)(rows, 1, x, j, (int)(end - j));
}

#if defined(FMA_ONE) && !defined(DOTS)
#define DOTS LOCAL(dots)
/* Like ordered_dots for one row, but requires a_ps = 1 and splits each sum over k (which rounds differently): each of
 * the `columns` columns from j on has CHAINS accumulators, and each lane of an accumulator sums a part of k. The bits
 * of a sum do not depend on `columns`. */
TARGET INLINE void LOCAL(split_dots)(const int columns, const gemm_block *x, int64_t j) {
    enum { CHAINS = 2, STEP = CHAINS * VL };
    const IN *a = (const IN *)x->a, *b = (const IN *)x->b + j * x->b_cs;
    T total[VL] = {0};
    V sum[CHAINS * VL];
    EACH(at, columns * CHAINS) sum[at] = ZERO;
    int64_t p = 0;
    for (; p + STEP <= x->k; p += STEP) {
        V row[CHAINS];
        EACH(h, CHAINS) row[h] = LOAD_IN(a + p + h * VL);
        EACH(i, columns)
            EACH(h, CHAINS) {
                V *const to = sum + i * CHAINS + h;
                *to = FMA(row[h], LOAD_IN(b + i * x->b_cs + p + h * VL), *to);
            }
    }
    for (; p + VL <= x->k; p += VL)
        EACH(i, columns) {
            V *const to = sum + i * CHAINS;
            *to = FMA(LOAD_IN(a + p), LOAD_IN(b + i * x->b_cs + p), *to);
        }
    EACH(i, columns) {
        T lanes[VL];
        V *const of_column = sum + i * CHAINS;
        EACH(h, CHAINS - 1) *of_column = FMA(SPLAT((T)1), of_column[h + 1], *of_column);
        STORE(lanes, *of_column);
        for (int width = VL / 2; width;
             width /= 2) /* adds the lanes in pairs: compilers vectorize this, but no chain */
            for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
        total[i] = lanes[0];
    }
    for (; p < x->k; p++)
        EACH(i, columns) total[i] = FMA_ONE(WIDEN_IN(a[p]), WIDEN_IN(b[i * x->b_cs + p]), total[i]);
    LOCAL(finish)(x, 0, j, LOAD(total), columns == VL, PART_OF(columns));
}

TARGET static void LOCAL(dots)(const gemm_block *x) {
    enum { COLUMNS = VL < 4 ? VL : 4 };
    int64_t j = 0;
    for (; j + COLUMNS <= x->n; j += COLUMNS) LOCAL(split_dots)(COLUMNS, x, j);
    for (; j < x->n; j++) LOCAL(split_dots)(1, x, j);
}
#endif
#endif

/* Calls `loop` for x with the number of rows as a constant, 1 to GEMM_FEW. */
#define WITH_ROWS(loop)               \
    if (x->m == 1) LOCAL(loop)(1, x); \
    if (x->m == 2) LOCAL(loop)(2, x); \
    if (x->m == 3) LOCAL(loop)(3, x); \
    if (x->m == 4) LOCAL(loop)(4, x); \
    if (x->m == 5) LOCAL(loop)(5, x)
TARGET static void LOCAL(stream_rows)(const gemm_block *x) {
    WITH_ROWS(stream);
}
#ifdef TRANSPOSE
TARGET static void LOCAL(ordered_dots_rows)(const gemm_block *x) {
    WITH_ROWS(ordered_dots);
}
#endif
#undef WITH_ROWS

/* Computes a block of few rows by one of the loops above, and returns 1. Returns 0, without computing, if the tiles are
 * faster. */
TARGET static int LOCAL(compute_few)(const gemm_block *x, int strided_b) {
    /* `stream` keeps its sums in the cache, and moves them to registers and back. It is faster than the tiles only if there
     * are at least FEW_STEPS steps along k. With several rows, b must also be LARGE, larger than the fast caches: only
     * then is it slow that tiles read b in columns. For columns shorter than SHORT, `dots` takes longer to add up the
     * lanes than it saves. */
    enum { FEW_STEPS = 8, LARGE = (256 << 10) / sizeof(IN), SHORT = 4 * VL };
    const int64_t m = x->m, n = x->n, k = x->k;
    if (strided_b && n >= STREAM_FROM && x->b_cs == 1 && k >= FEW_STEPS && (m == 1 || k * n >= LARGE)) {
        LOCAL(stream_rows)(x);
        return 1;
    }
#ifdef TRANSPOSE
    if (x->b_ps == 1 && k > 1 && (x->b_cs != 1 || (m == 1 && n == 1))) {
#ifdef DOTS
        if (m == 1 && k >= SHORT && !x->ordered && x->a_ps == 1 && !x->from) {
            DOTS(x);
            return 1;
        }
#endif
        LOCAL(ordered_dots_rows)(x);
        return 1;
    }
#endif
    if (strided_b || m > 1) return 0;
    LOCAL(across)(x);
    return 1;
}
#endif

TARGET static void LOCAL(compute_columns)(const gemm_block *x) {
    const int64_t m = x->m, n = x->n;
    const int strided_a = x->a_ts == MR * x->a_rs, strided_b = x->b_ts == NR;
#ifdef STREAM
    if (m <= GEMM_FEW && m <= MR && LOCAL(compute_few)(x, strided_b)) return;
#endif
    if (x->k <= GEMM_SHORT_K && n >= 2 * NR) {
        LOCAL(compute_by_rows)(x, strided_a);
        return;
    }
    /* Lines whose distance is a multiple of PERIOD share one set of the L1 cache: a tall tile has too many of them. */
    enum { PERIOD = 4096 };
    const int crowded = x->a_rs * (int64_t)sizeof(IN) % PERIOD == 0;
    /* for few rows, wider tiles: otherwise a tile has too few accumulators for the FMA units */
    int wide = strided_a && strided_b ? NV_UNPACKED : NV;
    while (strided_b && wide < LOCAL(widest) && m <= LOCAL(heights)[wide]) wide++;

    for (int64_t j = 0; j < n; j += wide * VL) {
        const int count = n - j < wide * VL ? (int)(n - j) : wide * VL;
        const int nv = (count + VL - 1) / VL, last_count = count - (nv - 1) * VL;
        const IN *b = (const IN *)x->b + (strided_b ? j : j / NR * x->b_ts), *a = (const IN *)x->a;
        const int64_t b_next = j + wide * VL >= n ? 0 : strided_b ? wide * VL : x->b_ts;
        LOCAL(function) *const *const of_rows = LOCAL(table)[nv - 1];
        const int64_t tallest = crowded && LOCAL(heights)[nv - 1] > MR ? MR : LOCAL(heights)[nv - 1];
        if (strided_a && m <= tallest) {
            of_rows[m - 1](x, 0, j, 1, a, b, 0, b_next, last_count);
        } else if (strided_a) { /* tiles of about equal height, so that no tile has very few rows */
            const int64_t tiles = (m + tallest - 1) / tallest;
            const int64_t rows = m / tiles, taller = m % tiles, first = taller * (rows + 1);
            if (taller) of_rows[rows](x, 0, j, taller, a, b, (rows + 1) * x->a_rs, 0, last_count);
            of_rows[rows - 1](x, first, j, tiles - taller, a + first * x->a_rs, b, rows * x->a_rs, b_next, last_count);
        } else {
            const int64_t tiles = m / MR, rest = m % MR;
            LOCAL(function) *const whole = strided_b || nv < NV ? of_rows[MR - 1] : LOCAL(packed);
            if (tiles) whole(x, 0, j, tiles, a, b, x->a_ts, b_next, last_count);
            if (rest) of_rows[rest - 1](x, m - rest, j, 1, a + tiles * x->a_ts, b, 0, b_next, last_count);
        }
    }
}

/* The number of columns to compute by themselves, so that all other tiles read whole cache lines of an unpacked b.
 * NumPy's large arrays start 16 bytes after the start of a line. In each row of b, a tile would then read a part of one
 * more line. Returns 0 if the first column starts a line, or if the rows of b start at different positions in their
 * lines. Also returns 0 if C has few columns, because the additional tile takes longer than it saves, and if k is short,
 * because writing C then takes most of the time. */
TARGET INLINE int64_t LOCAL(columns_before_line)(const gemm_block *x) {
    enum { LINE = 64, FEW_TILES = 6 };
    _Static_assert(VL == 1 || FEW_TILES * NR * sizeof(IN) >= LINE, "fewer columns than a line holds");
    if (VL == 1 || x->n < FEW_TILES * NR || x->k <= GEMM_SHORT_K || x->b_ts != NR || x->b_cs != 1) return 0;
    const uintptr_t beyond = (uintptr_t)x->b % LINE;
    if (beyond % sizeof(IN) || x->b_ps * (int64_t)sizeof(IN) % LINE) return 0;
    return beyond ? (int64_t)((LINE - beyond) / sizeof(IN)) : 0;
}

TARGET static void LOCAL(compute)(const gemm_block *x) {
    const int64_t skipped = LOCAL(columns_before_line)(x);
    if (skipped) {
        gemm_block first = *x, rest = *x;
        first.n = skipped, rest.n -= skipped, rest.b = (const IN *)x->b + skipped;
        if (x->from) rest.from = (const T *)x->from + skipped;
        if (x->c) rest.c = (const C_T *)x->c + skipped;
        rest.to = (char *)x->to + skipped * (int64_t)(x->raw ? sizeof(T) : sizeof(C_T));
        LOCAL(compute_columns)(&first);
        LOCAL(compute_columns)(&rest);
    } else {
        LOCAL(compute_columns)(x);
    }
}

#ifdef KERNEL
#ifdef COMPUTE
static void COMPUTE(const gemm_block *x); /* defined by the kernel's file */
#else
#define COMPUTE LOCAL(compute)
#endif
#define QUOTE(name) #name
#define QUOTED(name) QUOTE(name)
const gemm_kernel KERNEL = {
    .name = QUOTED(KERNEL),
    .a_size = sizeof(A_T),
    .b_size = sizeof(B_T),
    .c_size = sizeof(C_T),
    .sum_size = sizeof(T),
    .a_packed = sizeof(T),
    .b_packed = sizeof(T),
    .mr = MR,
    .nr = NR,
    .lanes = VL,
    .k_group = 1,
    .flags = FLAGS,
    .compute = COMPUTE,
    .pack_a = PACK_A,
    .pack_b = PACK_B,
};
#undef QUOTE
#undef QUOTED
#undef COMPUTE
#endif

#undef KERNEL
#undef NAME
#undef TARGET
#undef T
#undef V
#undef VL
#undef MR
#undef NV
#undef NR
#undef ACCUMULATORS
#undef ACCUMULATORS_UNPACKED
#undef NV_UNPACKED
#undef TALLEST
#undef TILES
#undef LOAD
#undef STORE
#undef SPLAT
#undef MUL
#undef FMA
#undef PART
#undef PART_OF
#undef LOAD_PART
#undef STORE_PART
#undef FLAGS
#undef C_T
#undef LOAD_C
#undef STORE_C
#undef LOAD_C_PART
#undef STORE_C_PART
#undef ONE
#undef SCALAR
#undef SCALED
#undef PLUS_SCALED
#undef ZERO
#undef X
#undef PACK_A
#undef PACK_B
#undef A_T
#undef B_T
#undef IN
#undef WIDEN_IN
#undef SPLAT_IN
#undef LOAD_IN
#undef LOAD_IN_PART
#undef ELEMENT
#undef FMA_ELEMENT
#undef K_LOOP
#undef STREAM
#undef STREAM_FROM
#undef STREAM_AHEAD
#undef TRANSPOSE
#undef FMA_ONE
#undef DOTS
#undef TRANSPOSE_DEPTH
#undef HEIGHT
#undef TILE
#undef TILES_OF
#undef TABLE_OF
#undef HEIGHT_OF
#undef LOCAL
#undef JOIN
#undef JOIN_
#undef LINES
#undef WHOLE
#undef PACKED
#undef BESIDE
#undef TILES_BESIDE
