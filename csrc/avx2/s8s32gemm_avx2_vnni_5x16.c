/* int8 x int8 with int32 sums, which wrap. vpdpbusd adds four products exactly, but requires an unsigned a. Therefore
 * packing adds 128 to a (OFFSET in panel.h). Registers: 10 accumulators, 2 for sums of 128 * b, 2 for b, 1 for a. */
#include "avx2.h"

#define KERNEL s8s32gemm_avx2_vnni_5x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,avxvnni,fma")))
#endif
#define A int8_t
#define B int8_t
#define C uint32_t
#define PA uint8_t
#define PB int8_t
#define C_IS_SUM 1
#define K_GROUP 4
#define WIDEN_A(x) ((uint8_t)((x) ^ 0x80))
#define OFFSET _mm256_set1_epi8(-128)
#define SUBTRACT(acc, extra) _mm256_sub_epi32(acc, extra)
#define STEP(acc, x, y) _mm256_dpbusd_avx_epi32(acc, x, y)
#define MR 5
#include "int32.h"
