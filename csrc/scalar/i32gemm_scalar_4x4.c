/* int32 and uint32 in plain C. */
#include <stdint.h>

#define KERNEL i32gemm_scalar_4x4
#define A uint32_t
#define B uint32_t
#define C uint32_t
#define SUM uint32_t
#define C_IS_SUM 1
#include "integers.h"
