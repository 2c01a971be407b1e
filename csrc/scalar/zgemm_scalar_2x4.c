/* complex128 in plain C: vectors of one element. */
#include <math.h>

#define KERNEL zgemm_scalar_2x4
#define T double
#define MR 2
#define NV 4
#define VL 1
#define V double
#define SET1(x) (x)
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define FMADD(x, y, z) fma(x, y, z)
#define FNMADD(x, y, z) fma(-(x), y, z)
#define REAL_FMA(x, y, z) fma(x, y, z)
#define SPLIT(p, re_, im_) (re_ = (p)[0], im_ = (p)[1])
#define INTERLEAVE(p, re_, im_) ((p)[0] = (re_), (p)[1] = (im_))
#if defined(__GNUC__) && defined(__x86_64__)
#define FMA_TOO
#endif
#include "complex.h"
