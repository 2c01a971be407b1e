/* float and double in plain C, for any CPU: a vector has one element. fma() rounds only once on every CPU. But where
 * the compiler may not assume FMA instructions, as on x86-64, fma() is a call into the math library. There, the tile is
 * compiled with and without FMA instructions, and the CPU's features decide at run time. */
#include <math.h>

#include "gemm.h"

#define NAME sgemm
#define T float
#define FMA(x, y, z) fmaf(x, y, z)
#include "tile_4x4.h"
#include "tile.h"

#define NAME dgemm
#define T double
#define FMA(x, y, z) fma(x, y, z)
#include "tile_4x4.h"
#include "tile.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define WITH_FMA __attribute__((target("fma")))

#define NAME sgemm_fma
#define PACK_A sgemm_pack_a
#define PACK_B sgemm_pack_b
#define A_T float
#define B_T float
#define TARGET WITH_FMA
#define T float
#define FMA(x, y, z) fmaf(x, y, z)
#include "tile_4x4.h"
#include "tile.h"

#define NAME dgemm_fma
#define PACK_A dgemm_pack_a
#define PACK_B dgemm_pack_b
#define A_T double
#define B_T double
#define TARGET WITH_FMA
#define T double
#define FMA(x, y, z) fma(x, y, z)
#include "tile_4x4.h"
#include "tile.h"

#define PICK(name) (gemm_features() & GEMM_FMA ? name##_fma_compute : name##_compute)
#else
#define PICK(name) name##_compute
#endif

static void sgemm_dispatch(const gemm_block *block) {
    PICK(sgemm)(block);
}

static void dgemm_dispatch(const gemm_block *block) {
    PICK(dgemm)(block);
}

#define ROW(letter, T)                                                              \
    const gemm_kernel letter##gemm_scalar_4x4 = {#letter "gemm_scalar_4x4",         \
                                                 sizeof(T),                         \
                                                 sizeof(T),                         \
                                                 sizeof(T),                         \
                                                 sizeof(T),                         \
                                                 sizeof(T),                         \
                                                 sizeof(T),                         \
                                                 4,                                 \
                                                 4,                                 \
                                                 4,                                 \
                                                 1,                                 \
                                                 GEMM_UNPACKED_A | GEMM_UNPACKED_B, \
                                                 letter##gemm_dispatch,             \
                                                 letter##gemm_pack_a,               \
                                                 letter##gemm_pack_b};
ROW(s, float)
ROW(d, double)
