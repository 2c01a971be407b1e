/* float16 in plain C. half.h's scalar code converts to and from float. */
#include "halves.h"

const gemm_kernel hgemm_scalar_4x4 = HALF_ROW(hgemm_scalar_4x4);
