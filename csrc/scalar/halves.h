/* float16 (bfloat16 if BFLOAT16 is defined) in plain C, on x86-64 with and without FMA, as in gemm_scalar_4x4.c. */
#include "gemm.h"

#define TARGET
#define T float
#define VL 1
#include "tile_4x4.h"
#include "half.h"

#define NAME without_fma
#define FMA(x, y, z) fmaf(x, y, z)
#define LOAD_C(p) widen_half(*(p))
#define STORE_C(p, v) (*(p) = narrow_half(v))
#define LOAD_C_PART(p, part) ((void)(part), widen_half(*(p)))
#define STORE_C_PART(p, part, v) ((void)(part), *(p) = narrow_half(v))
#undef VL
#include "tile.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define NAME with_fma
#define TARGET __attribute__((target("fma")))
#define T float
#define FMA(x, y, z) fmaf(x, y, z)
#define C_T uint16_t
#define LOAD_C(p) widen_half(*(p))
#define STORE_C(p, v) (*(p) = narrow_half(v))
#define LOAD_C_PART(p, part) ((void)(part), widen_half(*(p)))
#define STORE_C_PART(p, part, v) ((void)(part), *(p) = narrow_half(v))
#define FLAGS 0
#define PACK_A pack_a
#define PACK_B pack_b
#include "tile_4x4.h"
#include "tile.h"
#endif

static void compute(const gemm_block *block) {
#if defined(__GNUC__) && defined(__x86_64__)
    if (gemm_features() & GEMM_FMA) {
        with_fma_compute(block);
        return;
    }
#endif
    without_fma_compute(block);
}

#define HALF_ROW(name) {#name, 2, 2, 2, 4, 4, 4, 4, 4, 4, 1, 0, compute, pack_a, pack_b}
