/* int16 and uint16 in plain C: the results are the low halves of 32-bit sums. */
#include <stdint.h>

#define KERNEL i16gemm_scalar_4x4
#define A int16_t
#define B int16_t
#define C uint16_t
#define SUM uint32_t
#define C_IS_SUM 0
#include "integers.h"
