/* uint8 x int8 with int32 sums, which wrap. usmmla computes 32 products per instruction. */
#include "neon.h"

#define KERNEL u8s32gemm_neon_usmmla_8x8
#define TARGET NEON_I8MM
#define A uint8_t
#define B int8_t
#define MIXED
#define MMLA(acc, x, y) vusmmlaq_s32(acc, vreinterpretq_u8_s8(x), y)
#include "mmla.h"
