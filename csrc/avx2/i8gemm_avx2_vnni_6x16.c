/* int8 and uint8: the results are the low bytes of int32 sums, whether the operands are signed or not. (vpdpbusd
 * requires an unsigned a and a signed b.) */
#include "avx2.h"

#define KERNEL i8gemm_avx2_vnni_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,avxvnni,fma")))
#endif
#define A uint8_t
#define B int8_t
#define C uint8_t
#define PA uint8_t
#define PB int8_t
#define C_IS_SUM 0
#define K_GROUP 4
#define STEP(acc, x, y) _mm256_dpbusd_avx_epi32(acc, x, y)
#define MR 6
#include "int32.h"
