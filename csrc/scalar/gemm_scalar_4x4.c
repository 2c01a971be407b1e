/* Plain C for any CPU: vectors of one element. fma() is exact everywhere, but a call into the math library where the
 * compiler may not assume the instruction. On x86-64 it may not: there the tile exists twice, and the CPU is asked. */
#include <math.h>

#include "gemm.h"

#define NAME float_tile
#define T float
#define MR 4
#define NV 4
#define FMA(x, y, z) fmaf(x, y, z)
#include "tile.h"

#define NAME double_tile
#define T double
#define MR 4
#define NV 4
#define FMA(x, y, z) fma(x, y, z)
#include "tile.h"

#if defined(__GNUC__) && defined(__x86_64__)
#define WITH_FMA __attribute__((target("fma")))

#define NAME float_tile_fma
#define TARGET WITH_FMA
#define T float
#define MR 4
#define NV 4
#define FMA(x, y, z) fmaf(x, y, z)
#include "tile.h"

#define NAME double_tile_fma
#define TARGET WITH_FMA
#define T double
#define MR 4
#define NV 4
#define FMA(x, y, z) fma(x, y, z)
#include "tile.h"

#define PICK(name) (gemm_features() & GEMM_FMA ? name##_fma : name)
#else
#define PICK(name) name
#endif

static void float_dispatch(int64_t k, const void *a, const void *b, const gemm_tile *tile) {
    PICK(float_tile)(k, a, b, tile);
}

static void double_dispatch(int64_t k, const void *a, const void *b, const gemm_tile *tile) {
    PICK(double_tile)(k, a, b, tile);
}

const gemm_kernel sgemm_scalar_4x4 = {"sgemm_scalar_4x4", sizeof(float), 4, 4, float_dispatch};
const gemm_kernel dgemm_scalar_4x4 = {"dgemm_scalar_4x4", sizeof(double), 4, 4, double_dispatch};
