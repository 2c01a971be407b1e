/* uint8 x int8 with int32 sums, which wrap. vpdpbusd adds four products exactly. */
#include "avx2.h"

#define KERNEL u8s32gemm_avx2_vnni_6x16
#ifdef __GNUC__
#define TARGET __attribute__((target("avx2,avxvnni,fma")))
#endif
#define A uint8_t
#define B int8_t
#define C uint32_t
#define PA uint8_t
#define PB int8_t
#define C_IS_SUM 1
#define K_GROUP 4
#define MIXED
#define STEP(acc, x, y) _mm256_dpbusd_avx_epi32(acc, x, y)
#define MR 6
#include "int32.h"
