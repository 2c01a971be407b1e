/* Complex products as four real fused multiply-adds each, in this order, without any test for infinities:
 *
 *     re = fma(-a.im, b.im, fma(a.re, b.re, re))        im = fma(a.im, b.re, fma(a.re, b.im, im))
 *
 * A panel of b holds, per vector of columns, VL real parts and then VL imaginary ones. A real alpha or beta scales both
 * parts on their own: as a complex number its zero would turn an infinity beside it into NaN.
 *
 *   T   float or double     REAL_FMA(x, y, z)    V, SET1(x), LOAD(p), STORE(p, v)
 *   FMADD(x, y, z), FNMADD(x, y, z) = z - x * y
 *   INTERLEAVE(p, re, im), SPLIT(p, re, im)     VL complex numbers of memory from and to two vectors
 */
#include <math.h>

#include "gemm.h"

#include "panel_compiler.h"

typedef struct number {
    T re, im;
} number;

typedef struct vectors {
    V re, im;
} vectors;

TARGET INLINE vectors step(vectors acc, vectors x, vectors y) {
    acc.re = FMADD(x.re, y.re, acc.re), acc.im = FMADD(x.re, y.im, acc.im);
    acc.re = FNMADD(x.im, y.im, acc.re), acc.im = FMADD(x.im, y.re, acc.im);
    return acc;
}

TARGET INLINE vectors splat(const number *x) {
    return (vectors){SET1(x->re), SET1(x->im)};
}

TARGET INLINE vectors row(const number *x) {
    return (vectors){LOAD((const T *)x), LOAD((const T *)x + VL)};
}

TARGET INLINE vectors get(const number *x) {
    vectors v;
    SPLIT((const T *)x, v.re, v.im);
    return v;
}

TARGET INLINE void put(number *x, vectors v) {
    INTERLEAVE((T *)x, v.re, v.im);
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
    return (number){(T)s->re, (T)s->im};
}

TARGET INLINE void settle(number *x) {
    const vectors v = get(x);
    STORE((T *)x, v.re), STORE((T *)x + VL, v.im);
}

#define A number
#define B number
#define C number
#define SUM number
#define PA number
#define PB number
#define SAME 1
#define TAKES (GEMM_FIXED_ORDER | GEMM_PAIRS) /* b * a would add the two products of `im` in the other order */
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
#define SETTLE_B(p) settle(p)
#define WIDEN_A(x) (x)
#define WIDEN_B(x) (x)
#define WIDEN_C(x) (x)
#define NARROW(s) (s)
#define SCALAR(s) scalar(s)
#define IS_ONE(s) ((s)->re == 1 && (s)->im == 0)
#define MUL(s, t) times(s, t)
#define FMA(s, t, u) times_plus(s, t, u)
#include "panel.h"
