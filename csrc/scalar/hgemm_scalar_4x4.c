/* float16 in plain C. Integer operations widen and round. As in gemm_scalar_4x4.c, there are two versions of the tile
 * on x86-64: with and without FMA instructions. */
#include "halves.h"

const gemm_kernel hgemm_scalar_4x4 = HALF_ROW(hgemm_scalar_4x4);
