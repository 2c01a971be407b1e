/* wrap.h's parameters for 8-bit operands and int32 sums in AMX registers (amx.h). */
#if defined(__GNUC__) && !defined(GEMM_EMULATE_AMX)
#define TARGET __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl")))
#elif defined(__GNUC__)
#define TARGET __attribute__((target("avx2")))
#endif
#define SUM uint32_t
#define PA A
#define PB B
#define K_GROUP 64
#include "amx.h"
#include "wrap.h"
