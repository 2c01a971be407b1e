/* int64 and uint64 in plain C. */
#include <stdint.h>

#define KERNEL i64gemm_scalar_4x4
#define A uint64_t
#define B uint64_t
#define C uint64_t
#define SUM uint64_t
#define C_IS_SUM 1
#include "integers.h"
