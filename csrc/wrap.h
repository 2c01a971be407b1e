/* Integers that wrap as NumPy's do: sums, and all that follows, modulo a power of two that C's width divides. So signs
 * make no difference but where an operand is narrower than its sums, and unsigned C types stand for both.
 *
 *   A, B   element types, signed where the widening must keep the sign        C, SUM   unsigned
 *   MIXED  defined: A and B stand for different types
 *   FACTOR default: int16_t, which holds both of A and B, and for whose products there are instructions
 *
 * With that one row against a b whose columns are adjacent along k needs no panels. */
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

/* A loop that compilers know; theirs are the vectors. */
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
