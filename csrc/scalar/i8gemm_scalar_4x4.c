/* int8 and uint8 in plain C: the results are the low bytes of 32-bit sums. */
#include <stdint.h>

#define KERNEL i8gemm_scalar_4x4
#define A int8_t
#define B int8_t
#define C uint8_t
#define SUM uint32_t
#define C_IS_SUM 0
#include "integers.h"
