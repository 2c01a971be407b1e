/* panel.h's parameters, except those of the tile, for bfloat16 instructions that add two or more products to a float
 * sum. Per step, the rounding error of such an instruction is up to one unit in the last place of a float; that of an
 * FMA is half a unit. Both errors are far below the last place of a bfloat16. The instructions replace subnormal
 * operands, products and sums by zero, whatever the floating-point environment. */
#include <math.h>

#include "float_bits.h"

#define A uint16_t
#define B uint16_t
#define C uint16_t
#define SUM float
#define C_IS_SUM 0
#define PA uint16_t
#define PB uint16_t
#define WIDEN_A(x) (x)
#define WIDEN_B(x) (x)
#define WIDEN_C(x) widen_bfloat16(x)
#define NARROW(s) narrow_bfloat16(s)
#define SCALAR(s) ((float)(s)->re)
#define IS_ONE(s) ((s)->re == 1)
#define MUL(s, t) ((s) * (t))
#define FMA(s, t, u) fmaf(s, t, u)
