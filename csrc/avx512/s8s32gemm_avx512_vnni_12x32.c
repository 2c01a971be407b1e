/* int8 x int8 with int32 sums, which wrap. vpdpbusd adds four products exactly, but requires an unsigned a. Therefore
 * packing adds 128 to each element of a (OFFSET in panel.h). */
#include "avx512.h"

#define KERNEL s8s32gemm_avx512_vnni_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vnni,fma")))
#endif
#define A int8_t
#define B int8_t
#define C uint32_t
#define PA uint8_t
#define PB int8_t
#define C_IS_SUM 1
#define K_GROUP 4
#define WIDEN_A(x) ((uint8_t)((x) ^ 0x80))
#define OFFSET _mm512_set1_epi8(-128)
#define SUBTRACT(acc, extra) _mm512_sub_epi32(acc, extra)
#define STEP(acc, x, y) _mm512_dpbusd_epi32(acc, x, y)
#include "int32.h"
