/* complex64 in plain C: a vector has one element. */
#include <math.h>

#define CATALOG_ROW cgemm_scalar_2x4
#define ISA
#define REAL float
#define ROWS 2
#define PAIRS 4
#define LANES 1
#define VECTOR float
#define SET1(x) (x)
#define LOAD_REALS(p) (*(p))
#define STORE_REALS(p, v) (*(p) = (v))
#define FMADD(x, y, z) fmaf(x, y, z)
#define FNMADD(x, y, z) fmaf(-(x), y, z)
#define REAL_FMA(x, y, z) fmaf(x, y, z)
#define SPLIT(p, re_, im_) (re_ = (p)[0], im_ = (p)[1])
#define INTERLEAVE(p, re_, im_) ((p)[0] = (re_), (p)[1] = (im_))
#if defined(__GNUC__) && defined(__x86_64__)
#define FMA_VARIANT
#endif
#include "complex.h"
