/* bfloat16 with the tile of sgemm_sme_32x32. Packing widens elements to float. */
#include "float_bits.h"

#define KERNEL bgemm_sme_32x32
#define SUM float
#define ELEMENT uint16_t
#define FROM_ELEMENT(x) widen_bfloat16(x)
#define TO_ELEMENT(s) narrow_bfloat16(s)
#include "real.h"
