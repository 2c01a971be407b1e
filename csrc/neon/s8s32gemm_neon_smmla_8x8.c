/* int8 x int8 with int32 sums, which wrap. smmla computes 32 products per instruction. */
#include "neon.h"

#define KERNEL s8s32gemm_neon_smmla_8x8
#define TARGET NEON_I8MM
#define A int8_t
#define B int8_t
#define MMLA(acc, x, y) vmmlaq_s32(acc, x, y)
#include "mmla.h"
