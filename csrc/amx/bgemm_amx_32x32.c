/* bfloat16. One instruction adds 32 products to each sum, in float. */
#include "bfloat16.h"

#define KERNEL bgemm_amx_32x32
#if defined(__GNUC__) && !defined(GEMM_EMULATE_AMX)
#define TARGET __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,fma")))
#elif defined(__GNUC__)
#define TARGET __attribute__((target("avx2,fma")))
#endif
#define K_GROUP 32
#define STEP(sums, x, y) _tile_dpbf16ps(sums, x, y)
#include "amx.h"
#include "panel.h"

#define CHECKED bgemm_amx_checked_32x32
#ifdef GEMM_EMULATE_AMX
#define OTHERWISE bgemm_avx2_6x16
#else
#define OTHERWISE bgemm_avx512_6x64
#endif
#include "checked.h"
