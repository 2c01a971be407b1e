/* Complex products. A complex multiply-add is four real FMAs in this order, without tests for infinities:
 *
 *     re = fma(-a.im, b.im, fma(a.re, b.re, re))        im = fma(a.im, b.re, fma(a.re, b.im, im))
 *
 * A real alpha or beta multiplies the real and the imaginary part separately. A full complex product would also
 * multiply both parts by the scalar's zero imaginary part, and 0 times infinity would give NaN.
 *
 * There are two implementations, which give the same bits:
 *
 *   panels     with panel.h, for products so large that packing is worthwhile. For each k and each vector of columns, a
 *              complete panel of b holds LANES real parts, then LANES imaginary parts. The k loop therefore consists of
 *              FMAs only.
 *   in place   with tile.h, only if TIMES_I is defined. Real and imaginary parts alternate in registers as in memory.
 *              The k loop therefore also multiplies each vector of b by the imaginary unit i. b may be unpacked, and
 *              blocks of few rows or columns compute no unused elements. This implementation also computes the columns
 *              of an incomplete last panel of b: real and imaginary parts alternate in such a panel, too.
 *
 * The file that includes this header defines:
 *
 *   CATALOG_ROW, ISA            the kernel's name; function attributes that enable the instruction set
 *   REAL, REAL_FMA(x, y, z)     float or double, and its FMA
 *   VECTOR, LANES               vector type, and the number of real numbers in a vector
 *   SET1(x), LOAD_REALS(p), STORE_REALS(p, v)    broadcast, load, store
 *   FMADD(x, y, z), FNMADD(x, y, z)              x * y + z, z - x * y
 *   SPLIT(p, re, im), INTERLEAVE(p, re, im)      load and store LANES complex numbers as two vectors. SPLIT may permute
 *                               the columns if INTERLEAVE restores them: with AVX, both stay within 128-bit lanes.
 *   ROWS, PAIRS                 the tile of the `panels` implementation: rows, and pairs of vectors (real parts and
 *                               imaginary parts) per row
 *
 * Optional, for the in-place implementation. Without TIMES_I, all operands are packed:
 *
 *   TIMES_I(v, signs)           swaps the two parts of each number, then flips signs where `signs` has a sign bit
 *   PRODUCTS(x, y)              x * y, lane by lane
 *   DIFFERENCE(v)               the sum of the even lanes minus the sum of the odd lanes
 *   PART, PART_OF, LOAD_PART, STORE_PART, TRANSPOSE, TRANSPOSE_DEPTH, ACCUMULATORS, ACCUMULATORS_UNPACKED, TALLEST,
 *   TILES                       as for tile.h, except that LOAD_PART must set the other elements to zero
 */
#include <math.h>

#include "gemm.h"

#define TARGET ISA
#include "panel_compiler.h"

typedef struct number {
    REAL re, im;
} number;

typedef struct vectors {
    VECTOR re, im;
} vectors;

#define IS_ONE(s) ((s)->re == 1 && (s)->im == 0)
/* FIXED_ORDER: with a and b exchanged, the two products of `im` would be added in the opposite order. */
#define FLAGS (GEMM_FIXED_ORDER | GEMM_COMPLEX)

#ifdef TIMES_I
/* Multiplies by the imaginary unit i: (re, im) becomes (-im, re). The assembly statement makes the compiler load the
 * signs at each use. Otherwise the compiler keeps the signs in a register and some accumulators in memory, which is
 * five times slower. */
TARGET INLINE VECTOR times_i(VECTOR v) {
    static const REAL alternate[16] = {-0.0, 0, -0.0, 0, -0.0, 0, -0.0, 0, -0.0, 0, -0.0, 0, -0.0, 0, -0.0, 0};
    const REAL *signs = alternate;
#ifdef __GNUC__
    __asm__("" : "+r"(signs) : "x"(v));
#endif
    return TIMES_I(v, signs);
}

TARGET INLINE VECTOR multiply_add(vectors x, VECTOR y, VECTOR z) {
    return FMADD(x.im, times_i(y), FMADD(x.re, y, z));
}

TARGET INLINE VECTOR scaled(const gemm_scalar *s, VECTOR v) {
    const VECTOR product = PRODUCTS(SET1((REAL)s->re), v);
    return s->im == 0 ? product : FMADD(SET1((REAL)s->im), times_i(v), product);
}

TARGET INLINE VECTOR plus_scaled(const gemm_scalar *s, VECTOR c, VECTOR v) {
    const VECTOR sum = FMADD(SET1((REAL)s->re), c, v);
    return s->im == 0 ? sum : FMADD(SET1((REAL)s->im), times_i(c), sum);
}

/* Applies the epilogue to `count` sums of row 0 and stores the results to C, from column j on. If x->raw, stores the
 * sums themselves. */
TARGET static void finish_sums(const gemm_block *x, int64_t j, int64_t count, number *sums);

/* Computes a block with m = 1 and b_ps = 1 (each column of b is contiguous along k). Each sum over k is split into
 * LANES / 2 parts, one for each pair of an even and an odd lane. Lanes hold sums of real products. In `re`, the even
 * lane sums a.re * b.re, and the odd lane a.im * b.im. `im` uses a times the imaginary unit, (-a.im, a.re), in place of
 * a: the even lane sums -a.im * b.re, and the odd lane a.re * b.im. At the end, DIFFERENCE(re) is the real part, and
 * DIFFERENCE(im) is minus the imaginary part. */
TARGET static void split_dots(const gemm_block *x) {
    /* COLUMNS columns at a time, with two accumulators each (re, im): enough to hide the FMA latency */
    enum { COLUMNS = 4, STEP = LANES / 2 };
    const number *a = (const number *)x->a;
    const int64_t whole = x->k / STEP * STEP;
    const PART rest = PART_OF((int)(x->k - whole));
    for (int64_t j = 0; j < x->n; j += COLUMNS) {
        const int64_t count = x->n - j < COLUMNS ? x->n - j : COLUMNS;
        const number *b[COLUMNS];
        VECTOR re[COLUMNS], im[COLUMNS];
        EACH(i, COLUMNS) {
            /* instead of a column beyond n, read the first column of this group */
            b[i] = (const number *)x->b + (j + (i < count ? i : 0)) * x->b_cs;
            re[i] = im[i] = SET1(0);
        }
#define TERMS(load)                                                              \
    {                                                                            \
        const VECTOR straight = load(a + p), rotated = times_i(straight);        \
        EACH(i, COLUMNS) {                                                       \
            const VECTOR y = load(b[i] + p);                                     \
            re[i] = FMADD(straight, y, re[i]), im[i] = FMADD(rotated, y, im[i]); \
        }                                                                        \
    }
#define LOAD_WHOLE(at) LOAD_REALS((const REAL *)(at))
#define LOAD_REST(at) LOAD_PART(at, rest)
        int64_t p = 0;
        for (; p < whole; p += STEP) TERMS(LOAD_WHOLE)
        if (p < x->k) TERMS(LOAD_REST)
#undef TERMS
#undef LOAD_WHOLE
#undef LOAD_REST
        number sums[COLUMNS];
        /* 0 - x, not -x: the imaginary part of a sum of no terms is +0, not -0 */
        EACH(i, COLUMNS) sums[i] = (number){DIFFERENCE(re[i]), 0 - DIFFERENCE(im[i])};
        finish_sums(x, j, count, sums);
    }
}

#define NAME in_place
#define DOTS(x) split_dots(x)
#define T number
#define V VECTOR
#define VL (LANES / 2)
#define MR ROWS
#define NV (2 * PAIRS)
#define LOAD(p) LOAD_REALS((const REAL *)(p))
#define STORE(p, v) STORE_REALS((REAL *)(p), v)
#define ZERO SET1(0)
#define X vectors
#define SPLAT(x) ((vectors){SET1((x).re), SET1((x).im)})
#define FMA(x, y, z) multiply_add(x, y, z)
#define ONE(s) IS_ONE(s)
#define SCALED(s, v) scaled(s, v)
#define PLUS_SCALED(s, c, v) plus_scaled(s, c, v)
#define STREAM
/* The default is 4 * NR. For complex numbers, the special loop is already faster for a smaller n: a complex FMA has
 * twice the latency of a real one, and a tile of one row hides less of this latency. */
#define STREAM_FROM (3 * NR)
#include "tile.h"
#define TARGET ISA
#endif

#define KERNEL CATALOG_ROW
#define MR ROWS
#define NV PAIRS
#define VL LANES

TARGET INLINE vectors step(vectors acc, vectors x, vectors y) {
    acc.re = FMADD(x.re, y.re, acc.re), acc.im = FMADD(x.re, y.im, acc.im);
    acc.re = FNMADD(x.im, y.im, acc.re), acc.im = FMADD(x.im, y.re, acc.im);
    return acc;
}

TARGET INLINE vectors splat(const number *x) {
    return (vectors){SET1(x->re), SET1(x->im)};
}

TARGET INLINE vectors row(const number *x) {
    return (vectors){LOAD_REALS((const REAL *)x), LOAD_REALS((const REAL *)x + VL)};
}

TARGET INLINE vectors get(const number *x) {
    vectors v;
    SPLIT((const REAL *)x, v.re, v.im);
    return v;
}

TARGET INLINE void put(number *x, vectors v) {
    INTERLEAVE((REAL *)x, v.re, v.im);
}

TARGET INLINE number times(number s, number x) {
    if (s.im == 0) return (number){s.re * x.re, s.re * x.im};
    return (number){REAL_FMA(-s.im, x.im, s.re * x.re), REAL_FMA(s.im, x.re, s.re * x.im)};
}

TARGET INLINE number times_plus(number s, number x, number y) {
    const number sum = {REAL_FMA(s.re, x.re, y.re), REAL_FMA(s.re, x.im, y.im)};
    if (s.im == 0) return sum;
    return (number){REAL_FMA(-s.im, x.im, sum.re), REAL_FMA(s.im, x.re, sum.im)};
}

TARGET INLINE number scalar(const gemm_scalar *s) {
    return (number){(REAL)s->re, (REAL)s->im};
}

TARGET INLINE void deinterleave(number *x) {
    const vectors v = get(x);
    STORE_REALS((REAL *)x, v.re), STORE_REALS((REAL *)x + VL, v.im);
}

#ifdef TIMES_I
#undef FLAGS
#define FLAGS \
    (GEMM_UNPACKED_A | GEMM_UNPACKED_B | GEMM_UNPACKED_DOTS | GEMM_FAST_PANELS | GEMM_FIXED_ORDER | GEMM_COMPLEX)
#define COMPUTE compute_dispatch
#define PACK
#define pack_a in_place_pack_a

TARGET static void pack_b(void *panels, const void *b, int64_t rs, int64_t ps, int64_t columns, int64_t k,
                          int64_t width) {
    in_place_pack_b(panels, b, rs, ps, columns, k, width);
    for (int64_t i = 0; i < columns / width * width * k; i += VL) deinterleave((number *)panels + i);
}
#endif

#define A number
#define B number
#define C number
#define SUM number
#define PA number
#define PB number
#define C_IS_SUM 1
#define K_GROUP 1
#define ACC vectors
#define X vectors
#define Y vectors
#define ZERO ((vectors){SET1(0), SET1(0)})
#define GET(p) get(p)
#define PUT(p, v) put(p, v)
#define SPLAT(p) splat(p)
#define ROW(p) row(p)
#define STEP(acc, x, y) step(acc, x, y)
#define REORDER_B(p) deinterleave(p)
#define WIDEN_A(x) (x)
#define WIDEN_B(x) (x)
#define WIDEN_C(x) (x)
#define NARROW(s) (s)
#define SCALAR(s) scalar(s)
#define MUL(s, t) times(s, t)
#define FMA(s, t, u) times_plus(s, t, u)
#include "panel.h"

#ifdef TIMES_I
TARGET static void finish_sums(const gemm_block *x, int64_t j, int64_t count, number *sums) {
    if (x->raw)
        memcpy((number *)x->to + j, sums, (size_t)count * sizeof *sums);
    else
        finish(x, count, sums, x->c ? (const number *)x->c + j : NULL, (number *)x->to + j);
}

static void compute_dispatch(const gemm_block *x) {
    if (!x->panels) {
        in_place_compute(x);
        return;
    }
    gemm_block whole = *x, last = *x;
    whole.n = x->n / NR * NR, last.n = x->n - whole.n;
    if (whole.n) compute(&whole);
    if (!last.n) return;
    last.b = (const number *)x->b + whole.n / NR * x->b_ts, last.b_ts = NR;
    if (x->from) last.from = (const number *)x->from + whole.n;
    if (x->c) last.c = (const number *)x->c + whole.n;
    last.to = (number *)x->to + whole.n;
    in_place_compute(&last);
}
#endif
