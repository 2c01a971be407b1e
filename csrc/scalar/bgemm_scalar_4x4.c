/* bfloat16 in plain C. Integer operations convert to and from float. */
#define BFLOAT16
#include "halves.h"

const gemm_kernel bgemm_scalar_4x4 = HALF_ROW(bgemm_scalar_4x4);
