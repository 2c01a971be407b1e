/* int8 and uint8: a result is the low byte of an int32 sum. That byte is the same for signed and unsigned operands, so
 * vpdpbusd, which takes an unsigned a and a signed b, computes both types. */
#include "avx512.h"

#define KERNEL i8gemm_avx512_vnni_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vnni,fma")))
#endif
#define A uint8_t
#define B int8_t
#define C uint8_t
#define PA uint8_t
#define PB int8_t
#define C_IS_SUM 0
#define K_GROUP 4
#define STEP(acc, x, y) _mm512_dpbusd_epi32(acc, x, y)
#include "int32.h"
