/* bfloat16 with vdpbf16ps, which adds two products to each lane, in float. */
#include "avx512.h"
#include "bfloat16.h"
#include "group.h"

#define KERNEL bgemm_avx512_bf16_12x32
#ifdef __GNUC__
#define TARGET __attribute__((target("avx512f,avx512bw,avx512bf16,fma")))
#endif
#define MR 12
#define NV 2
#define VL 16
#define K_GROUP 2
#define ACC __m512
#define X __m512i
#define Y __m512i
#define ZERO _mm512_setzero_ps()
#define GET(p) _mm512_loadu_ps(p)
#define PUT(p, v) _mm512_storeu_ps(p, v)
#define SPLAT(p) _mm512_set1_epi32(group_of(p))
#define ROW(p) _mm512_loadu_si512(p)
#define STEP(acc, x, y) _mm512_dpbf16_ps(acc, (__m512bh)(x), (__m512bh)(y))
#define TRANSPOSE_GROUPS avx512_transpose_groups
#define TRANSPOSED_ROWS 16
#define GROUP_LINES avx2_interleave_shorts
#include "panel.h"
