/* float16 in plain C. half.h's scalar code converts to and from float. On x86-64, there are two versions of the tile,
 * with and without FMA instructions, as in gemm_scalar_4x4.c. */
#include "halves.h"

const gemm_kernel hgemm_scalar_4x4 = HALF_ROW(hgemm_scalar_4x4);
