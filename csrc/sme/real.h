/* panel.h's parameters, except those of the tile, for sums of fused multiply-adds of type SUM (float or double).
 * Elements in memory have the type ELEMENT, which FROM_ELEMENT converts to SUM and TO_ELEMENT rounds from SUM. Without
 * ELEMENT, they have the type SUM. */
#include <math.h>

#ifdef ELEMENT
#define C_IS_SUM 0
#else
#define ELEMENT SUM
#define FROM_ELEMENT(x) (x)
#define TO_ELEMENT(s) (s)
#define C_IS_SUM 1
#endif
#define K_GROUP 1
#define A ELEMENT
#define B ELEMENT
#define C ELEMENT
#define PA SUM
#define PB SUM
#define WIDEN_A(x) FROM_ELEMENT(x)
#define WIDEN_B(x) FROM_ELEMENT(x)
#define WIDEN_C(x) FROM_ELEMENT(x)
#define NARROW(s) TO_ELEMENT(s)
#define SCALAR(s) ((SUM)(s)->re)
#define IS_ONE(s) ((s)->re == 1)
#define MUL(s, t) ((s) * (t))
#ifdef SUM_64
#define FMA(s, t, u) fma(s, t, u)
#define OUTER FMOPA_64
#else
#define FMA(s, t, u) fmaf(s, t, u)
#define OUTER FMOPA_32
#endif
#include "sme.h"
#include "panel.h"
