/* Integers that wrap as NumPy's do: sums, and all that follows, modulo a power of two that C's width divides. So signs
 * make no difference but where an operand is narrower than its sums, and unsigned C types stand for both.
 *
 *   A, B   element types, signed where the widening must keep the sign        C, SUM   unsigned */
#include <stdint.h>

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
