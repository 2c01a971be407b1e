/* Cache blocking, for both element types from one text. */
#include "driver.h"

#include <string.h>

gemm_blocking gemm_cut(const gemm_plan *plan, int64_t m, int64_t n, int out_is_c) {
    const gemm_kernel *kernel = plan->kernel;
    const int64_t bytes = kernel->element;
    gemm_blocking cut = {.kernel = kernel, .stripe = m};
    cut.mc = equal_pieces(m, plan->mc, kernel->mr);
    cut.nc = equal_pieces(n, plan->nc, kernel->nr);
    cut.kc = plan->k ? equal_pieces(plan->k, plan->kc, 1) : 0;
    cut.a_bytes = round_up(cut.mc * cut.kc * bytes, GEMM_ALIGNMENT);
    cut.b_bytes = round_up(cut.kc * cut.nc * bytes, GEMM_ALIGNMENT);
    if (out_is_c && cut.kc < plan->k) {
        cut.stripe = min64(m, 8 * cut.mc); /* bounds the workspace; packing b anew for 8 blocks of a costs little */
        cut.sums_bytes = round_up(cut.stripe * cut.nc * bytes, GEMM_ALIGNMENT);
    }
    return cut;
}

#define T float
#define NAME(stem) stem##_float
#include "block.h"
#undef T
#undef NAME

#define T double
#define NAME(stem) stem##_double
#include "block.h"
#undef T
#undef NAME
