/* bfloat16 in plain C: integer operations widen and round; the tile exists twice, as sgemm_scalar_4x4's does. */
#define BFLOAT16
#include "halves.h"

const gemm_kernel bgemm_scalar_4x4 = HALF_ROW(bgemm_scalar_4x4);
