/* Integers that wrap like NumPy's. All operations are exact modulo 2^s, where SUM has s bits and C has at most s bits.
 * Therefore signedness matters only where a narrower operand is widened to SUM. An unsigned C also serves signed types.
 *
 *   A, B     types of the elements of a and b in memory; signed if widening must extend the sign
 *   C, SUM   unsigned types
 *   MIXED    defined if a and b have different types (see GEMM_MIXED)
 *   FACTOR   type of the factors in `dot` (default: int16_t, for which CPUs have instructions; it holds every value of
 *            int8, uint8 and int16)
 *
 * If m = 1 and b_ps = 1 (each column of b is contiguous along k), the kernel needs no panels: see GEMM_UNPACKED_DOTS.
 */
#include <stdint.h>

#ifdef MIXED
#define FLAGS (GEMM_UNPACKED_DOTS | GEMM_MIXED)
#else
#define FLAGS GEMM_UNPACKED_DOTS
#endif
#ifndef FACTOR
#define FACTOR int16_t
#endif
#define COMPUTE dots_or_panels

#ifndef WIDEN_A
#define WIDEN_A(x) ((PA)(x))
#endif
#define WIDEN_B(x) ((PB)(x))
#define WIDEN_C(x) ((SUM)(x))
#define NARROW(s) ((C)(s))
#define SCALAR(s) ((SUM)(s)->integer)
#define IS_ONE(s) ((s)->integer == 1)
#define MUL(s, t) ((s) * (t))
#define FMA(s, t, u) ((s) * (t) + (u))
#include "panel.h"

/* Returns the dot product of x and y. Compilers recognize the loop and vectorize it. */
TARGET INLINE SUM dot(const FACTOR *x, const B *y, int64_t count) {
    SUM sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (SUM)x[i] * (SUM)(FACTOR)y[i];
    return sum;
}

TARGET static void dots(const gemm_block *x) {
    enum { COLUMNS = 64, STRETCH = 1024 };
    for (int64_t j = 0; j < x->n; j += COLUMNS) {
        const int64_t columns = x->n - j < COLUMNS ? x->n - j : COLUMNS;
        SUM sums[COLUMNS] = {0};
        if (x->from) memcpy(sums, (const SUM *)x->from + j, (size_t)columns * sizeof *sums);
        for (int64_t p = 0; p < x->k; p += STRETCH) {
            const int64_t count = x->k - p < STRETCH ? x->k - p : STRETCH;
            const A *from = (const A *)x->a + p * x->a_ps;
            const B *b = (const B *)x->b + j * x->b_cs + p;
            FACTOR a[STRETCH];
            if (x->a_ps == 1)
                for (int64_t i = 0; i < count; i++) a[i] = (FACTOR)from[i];
            else
                for (int64_t i = 0; i < count; i++) a[i] = (FACTOR)from[i * x->a_ps];
            for (int64_t c = 0; c < columns; c++) sums[c] += dot(a, b + c * x->b_cs, count);
        }
        if (x->raw)
            memcpy((SUM *)x->to + j, sums, (size_t)columns * sizeof *sums);
        else
            finish(x, columns, sums, x->c ? (const C *)x->c + j : NULL, (C *)x->to + j);
    }
}

static void dots_or_panels(const gemm_block *x) {
    (x->panels || x->k == 0 ? compute : dots)(x);
}
