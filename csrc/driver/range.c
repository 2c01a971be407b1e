/* The check of a product before a checked kernel computes it. csrc/checked.h explains why the check is sufficient. */
#include "driver.h"

#include <stddef.h>

enum {
    LEAST_SUM = 142, /* the smallest sum of a's and b's least exponents for which no number can be replaced */
    JOBS = 64,
    PIECE = 32 << 10 /* elements of a and b that are worth a job */
};

/* A unit of work is a piece of a and a piece of b in one product. Each job reads some units and has its own result. */
typedef struct scan {
    const gemm_plan *plan;
    const gemm_place *at;
    int64_t batch, pieces, units, jobs; /* products of the plan's stack; pieces per product; all units; all jobs */
    int32_t least_a[JOBS], least_b[JOBS];
} scan;

/* Returns the least exponent of a piece of a matrix. A matrix that the product before has, too, is not read again: then
 * the result is INT16_MAX, which is above all exponents. `size`: bytes of an element. `batch`: the strides of the stack's
 * axes. */
static int32_t least_of(const scan *all, int64_t unit, const void *x, int64_t size, int64_t rs, int64_t ps,
                        const int64_t *batch, int64_t rows) {
    const int64_t item = unit / all->pieces % all->batch, offset = gemm_batch_offset(all->plan, batch, item);
    if (item && offset == gemm_batch_offset(all->plan, batch, item - 1)) return INT16_MAX;
    int64_t k = all->plan->k;
    if (rs == 1 && ps != 1) { /* pieces of whole lines in memory are read faster */
        const int64_t swapped = rows;
        rs = ps, ps = 1, rows = k, k = swapped;
    }
    const int64_t step = ceil_div(rows, all->pieces), first = min64(unit % all->pieces * step, rows);
    return all->plan->kernel->least_exponent(gemm_at(x, offset + first * rs, size), rs, ps, min64(step, rows - first),
                                             k);
}

static void scan_job(void *context, int64_t job, int slot) {
    scan *all = (scan *)context;
    const gemm_plan *plan = all->plan;
    int64_t a = INT16_MAX, b = INT16_MAX;
    (void)slot;
    for (int64_t unit = job * all->units / all->jobs; unit < (job + 1) * all->units / all->jobs; unit++) {
        const gemm_place *at = &all->at[unit / all->pieces / all->batch];
        a = min64(
            a, least_of(all, unit, at->a, plan->kernel->a_size, plan->a.row, plan->a.column, plan->a.batch, plan->m));
        b = min64(
            b, least_of(all, unit, at->b, plan->kernel->b_size, plan->b.column, plan->b.row, plan->b.batch, plan->n));
    }
    all->least_a[job] = (int32_t)a, all->least_b[job] = (int32_t)b;
}

int gemm_in_range(const gemm_plan *plan, int64_t count, const gemm_place *at) {
    const double ns_per_element = 1. / 16, ns_per_step = 1. / 500; /* of the check, of the product after it */
    if (!plan->kernel->otherwise || !plan->k) return 1;
    if (plan->accumulate) return 0; /* the sums of earlier steps may be small */
    scan all = {.plan = plan, .at = at, .batch = 1};
    for (int axis = 0; axis < plan->batch_ndim; axis++) all.batch *= plan->batch_shape[axis];
    const int64_t products = count * all.batch, elements = (plan->m + plan->n) * plan->k;
    if (products < 1) return 1;
    all.pieces = min64(ceil_div(JOBS, products), ceil_div(elements, PIECE));
    all.units = products * all.pieces, all.jobs = min64(all.units, JOBS);
    gemm_share(scan_job, &all, all.jobs, (double)(elements * products) * ns_per_element,
               (double)(plan->m * plan->n) * (double)(plan->k * products) * ns_per_step);
    int64_t a = INT16_MAX, b = INT16_MAX;
    for (int64_t job = 0; job < all.jobs; job++) a = min64(a, all.least_a[job]), b = min64(b, all.least_b[job]);
    return a && b && a + b >= LEAST_SUM;
}

gemm_plan gemm_plan_otherwise(const gemm_plan *plan) {
    gemm_plan other = *plan;
    other.kernel = plan->kernel->otherwise, other.direct = NULL;
    other.mc = other.kc = other.nc = 0;
    gemm_set_blocks(&other);
    return other;
}
