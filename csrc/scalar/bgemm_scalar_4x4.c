/* bfloat16 in plain C. Integer operations convert to and from float. On x86-64, there are two versions of the tile,
 * with and without FMA instructions, as in gemm_scalar_4x4.c. */
#define BFLOAT16
#include "halves.h"

const gemm_kernel bgemm_scalar_4x4 = HALF_ROW(bgemm_scalar_4x4);
