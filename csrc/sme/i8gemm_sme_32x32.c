/* int8 and uint8: the results are the low bytes of int32 sums, whether the operands are signed or not. */
#define KERNEL i8gemm_sme_32x32
#define A uint8_t
#define B uint8_t
#define C uint8_t
#define C_IS_SUM 0
#define OUTER UMOPA
#include "int8.h"
