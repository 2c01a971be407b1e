/* bfloat16 whose products an instruction sums in float, in pairs or more: panel.h's parameters but for the tile's. The
 * instructions lose up to one unit in the last place of a float a step, where an FMA loses half: far within a
 * bfloat16's own. But whatever the floating-point environment, subnormal operands, products and sums become zero. */
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
