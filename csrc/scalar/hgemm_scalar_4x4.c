/* float16 in plain C: integer operations widen and round; the tile exists twice, as sgemm_scalar_4x4's does. */
#include "halves.h"

const gemm_kernel hgemm_scalar_4x4 = HALF_ROW(hgemm_scalar_4x4);
