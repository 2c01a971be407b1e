/* gemm_run: orients the product, splits it into jobs and runs them on several threads. */
#include "driver.h"
#include "environment.h"
#include "pool.h"

#include <stdlib.h>

/* Small products have their workspace on the stack, to avoid malloc. This size is safe even for small stacks. */
enum { STACK_BYTES = 24 << 10 };

typedef struct jobs {
    const gemm_plan *plan;
    gemm_subproblem whole;     /* the first product of the batch, after orient() */
    gemm_strides a, b, c, out; /* of the operands of `whole`; only the strides along the batch axes are used */
    gemm_blocking blocking;
    int64_t batch, batch_per_job;          /* number of products; products per job (1 if a job is only a part of one) */
    int64_t rows, columns, grid_m, grid_n; /* a job computes rows x columns; a product has grid_m x grid_n jobs */
    char *workspace;
    int64_t workspace_bytes; /* for each executing thread (`slot` in run_job) */
} jobs;

int64_t gemm_batch_offset(const gemm_plan *plan, const int64_t *strides, int64_t item) {
    int64_t offset = 0;
    for (int axis = plan->batch_ndim - 1; axis > 0; axis--) {
        offset += item % plan->batch_shape[axis] * strides[axis];
        item /= plan->batch_shape[axis];
    }
    return plan->batch_ndim ? offset + item * strides[0] : 0;
}

/* Returns the operands of product `item` of the batch, from those of product 0. */
static gemm_place place_of(const jobs *all, gemm_place first, int64_t item) {
    const gemm_plan *plan = all->plan;
    const gemm_kernel *kernel = plan->kernel;
    return (gemm_place){gemm_at(first.a, gemm_batch_offset(plan, all->a.batch, item), kernel->a_size),
                        gemm_at(first.b, gemm_batch_offset(plan, all->b.batch, item), kernel->b_size),
                        gemm_at(first.c, gemm_batch_offset(plan, all->c.batch, item), kernel->c_size),
                        (void *)gemm_at(first.out, gemm_batch_offset(plan, all->out.batch, item), kernel->c_size)};
}

/* Prefetches a small matrix of a later product while the current product is computed. A small matrix has too few cache
 * lines for the hardware prefetcher to detect a pattern. Larger matrices are not prefetched. */
static void prefetch(const void *matrix, int64_t bytes) {
#ifdef __GNUC__
    enum { SMALL = 2048, LINE = 64 };
    for (int64_t at = 0; at < bytes && bytes <= SMALL; at += LINE) __builtin_prefetch((const char *)matrix + at);
#else
    (void)matrix, (void)bytes;
#endif
}

/* The state of a loop over products of one shape. If each product is one kernel call, `block` is filled in once and only
 * its pointers change. */
typedef struct series {
    const gemm_kernel *kernel;
    const gemm_blocking *blocking;
    gemm_subproblem sub;
    gemm_block block;
    char *workspace;
} series;

static series series_of(const gemm_subproblem *first, const gemm_blocking *blocking, char *workspace) {
    series found = {.kernel = blocking->kernel, .blocking = blocking, .sub = *first, .workspace = workspace};
    if (blocking->direct) found.block = gemm_block_of(first, blocking);
    return found;
}

/* Computes the product of the series at `at`, and prefetches the one at `next`, unless that is NULL. */
static void compute_next(series *x, const gemm_place *at, const gemm_place *next) {
    const gemm_kernel *kernel = x->kernel;
    if (next) {
        prefetch(next->a, x->sub.m * x->sub.k * kernel->a_size);
        prefetch(next->b, x->sub.k * x->sub.n * kernel->b_size);
        prefetch(next->out, x->sub.m * x->sub.n * kernel->c_size);
    }
    if (x->blocking->direct) {
        x->block.a = at->a, x->block.b = at->b, x->block.c = at->c, x->block.to = at->out;
        if (x->block.from) x->block.from = at->out;
        kernel->compute(&x->block);
    } else {
        x->sub.a = at->a, x->sub.b = at->b, x->sub.c = at->c, x->sub.out = at->out;
        gemm_compute(&x->sub, x->blocking, x->workspace);
    }
}

static void run_job(void *context, int64_t index, int slot) {
    const jobs *all = (const jobs *)context;
    const gemm_kernel *kernel = all->plan->kernel;
    const int64_t grid = all->grid_m * all->grid_n, at = grid > 1 ? index % grid : 0;
    const int64_t j0 = grid > 1 ? at % all->grid_n * all->columns : 0, i0 = grid > 1 ? at / all->grid_n * all->rows : 0;
    gemm_subproblem first = all->whole;
    first.m = min64(all->rows, first.m - i0);
    first.n = min64(all->columns, first.n - j0);
    first.a = gemm_at(first.a, i0 * first.a_rs, kernel->a_size);
    first.b = gemm_at(first.b, j0 * first.b_cs, kernel->b_size);
    first.c = gemm_at(first.c, i0 * first.c_rs + j0 * first.c_cs, kernel->c_size);
    first.out = (void *)gemm_at(first.out, i0 * first.out_rs + j0 * first.out_cs, kernel->c_size);
    first.prepacked_column = j0;

    char *workspace = all->workspace + slot * all->workspace_bytes;
    const gemm_environment saved = gemm_set_environment();
    if (all->batch == 1) {
        gemm_compute(&first, &all->blocking, workspace);
    } else {
        const int64_t start = index / grid * all->batch_per_job, stop = min64(start + all->batch_per_job, all->batch);
        const gemm_place place = {first.a, first.b, first.c, first.out};
        series loop = series_of(&first, &all->blocking, workspace);
        gemm_place here = place_of(all, place, start), next = here;
        for (int64_t item = start; item < stop; item++, here = next) {
            if (item + 1 < stop) next = place_of(all, place, item + 1);
            compute_next(&loop, &here, item + 1 < stop ? &next : NULL);
        }
    }
    gemm_restore_environment(saved);
}

static const double PACKING = 12; /* packing an element of a short row takes as long as this many multiply-adds */

/* The cost of one step along k for a job of rows x columns, in multiply-adds: whole tiles plus packing. */
static double cost(const gemm_kernel *kernel, int64_t rows, int64_t columns) {
    const double m = (double)round_up(rows, kernel->mr), n = (double)round_up(columns, kernel->nr);
    return m * n + PACKING * (m + n);
}

/* The estimated time of the whole call on one fast core, in nanoseconds. pool.c corrects the estimate by a factor that
 * it learns from calls on this machine. */
static double serial_ns(const jobs *all) {
    const double ns_per_byte = 1. / 200; /* a fast core: 50 float or 25 double multiply-adds per nanosecond */
    const gemm_subproblem *x = &all->whole;
    /* half of PACKING, because this estimate assumes slower multiply-adds than cost() does */
    const double m = (double)x->m, n = (double)x->n, packing = PACKING / 2;
    return (m * n + packing * (m + n)) * (double)(x->k + 1) * (double)all->batch * all->plan->kernel->sum_size *
           ns_per_byte;
}

/* Chooses the grid of jobs that is estimated to finish first. There are up to ROUNDS jobs per thread, so a thread that
 * starts late or loses its core leaves jobs to the other threads. STRAGGLER is the expected delay by such a thread, in
 * units of a job's time. Smaller jobs need more packing in total, and this cost limits the number of jobs. */
static void choose_grid(jobs *all, int threads) {
    enum { ROUNDS = 4 };
    const double STRAGGLER = 1. / 8;
    const gemm_kernel *kernel = all->plan->kernel;
    const int64_t m = all->whole.m, n = all->whole.n;
    const int64_t most_m = ceil_div(m, kernel->mr), most_n = ceil_div(n, kernel->nr);
    double least = -1;
    for (int64_t round = 1; round <= ROUNDS; round++) {
        const int64_t pieces = ceil_div(round * threads, all->batch);
        for (int64_t gm = 1; gm <= pieces; gm++) {
            if (pieces % gm) continue; /* keeps the number of candidates small, because each call runs this loop */
            const int64_t rows = equal_pieces(m, ceil_div(m, min64(gm, most_m)), kernel->mr);
            const int64_t columns = equal_pieces(n, ceil_div(n, min64(pieces / gm, most_n)), kernel->nr);
            const int64_t grid_m = ceil_div(m, rows), grid_n = ceil_div(n, columns);
            const double rounds = (double)ceil_div(all->batch * grid_m * grid_n, threads) + STRAGGLER;
            const double time = rounds * cost(kernel, rows, columns);
            if (least < 0 || time < least) {
                least = time;
                all->rows = rows, all->columns = columns, all->grid_m = grid_m, all->grid_n = grid_n;
            }
        }
    }
}

static void choose_blocking(jobs *all, int threads) {
    all->batch_per_job = 1;
    all->rows = all->whole.m, all->columns = all->whole.n;
    all->grid_m = all->grid_n = 1;
    if (threads == 1)
        all->batch_per_job = all->batch;
    else if (all->batch >= 4 * threads)
        all->batch_per_job = ceil_div(all->batch, 4 * threads);
    else
        choose_grid(all, threads);
    const int64_t m = min64(all->rows, all->whole.m), n = min64(all->columns, all->whole.n);
    gemm_choose_blocking(&all->blocking, all->plan, &all->whole, m, n);
    all->workspace_bytes = all->blocking.bytes;
}

/* The estimated time of a product of m x n x k with these strides, as far as it differs from that of the transposed
 * product. The unit is 1/12 of the time of a multiply-add of vectors; a row of C has ceil(n / lanes) vectors. b is
 * packed, unless the kernel can read it in place. If the rows of a are not contiguous, reading an element takes
 * BY_COLUMNS units, except in dot products. If the rows of out are not contiguous, copying an element takes SCATTERED
 * units.
 *
 * The weights minimize the time that is lost, over 295 products, by not choosing the faster of a product and its
 * transpose, in float and double, with AVX2 on Zen 3 and with AVX-512 on Sapphire Rapids: docs/cpu.md.
 *
 * A kernel that cannot read an unpacked a packs both operands. Packing an element of a takes CROSSED units more if the
 * rows of a are not contiguous; the layout of b hardly matters. A row of a tile has two vectors, and one instruction
 * executes k_group steps along k. These weights were fitted in the same way to 52 products of 7 kernels. */
static double time_of(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t k, int64_t a_cs, int64_t b_rs,
                      int64_t b_cs, int64_t out_cs) {
    enum { FMA = 12, PACKED = 4, BY_COLUMNS = 10, SCATTERED = 34, CROSSED = 12 };
    const int dots = reads_columns(kernel, m, k, b_rs), readable = b_cs == 1 || n == 1 || dots;
    const double vectors = (double)m * (double)ceil_div(n, kernel->lanes) * (double)k;
    const double b = readable ? 0 : (double)k * (double)n, a = a_cs == 1 || dots ? 0 : (double)k * (double)m;
    const double out = out_cs == 1 || n == 1 ? 0 : (double)m * (double)n;
    if (kernel->flags & GEMM_UNPACKED_A) return FMA * vectors + PACKED * b + BY_COLUMNS * a + SCATTERED * out;
    return 2. * FMA / kernel->k_group * vectors + CROSSED * a + SCATTERED * out;
}

/* Decides whether to compute the product or its transpose (out.T = b.T * a.T). Returns 1 for the transpose, else 0.
 *
 * For most kernels, both ways give the same bits: the factors of an fma commute. Kernels with GEMM_FIXED_ORDER would
 * compute other bits for the transpose. With these kernels, the driver transposes only matrix-vector products (n = 1,
 * GEMM_UNPACKED_DOTS) in plans that are not `ordered`: their sums may be split over k, so their bits are not fixed in
 * any case.
 */
static int is_transposed(const gemm_plan *plan) {
    const gemm_kernel *kernel = plan->kernel;
    const int64_t m = plan->m, n = plan->n, k = plan->k;
    const gemm_strides *a = &plan->a, *b = &plan->b, *out = &plan->out;
    if (plan->prepacked || kernel->flags & GEMM_MIXED) return 0;
    if (kernel->flags & GEMM_FIXED_ORDER) return few_rows(kernel) && n == 1 && !plan->ordered;
    if (plan->accumulate || k <= 1) return out->row == 1 && m > 1 && (out->column != 1 || n == 1);
    return time_of(kernel, n, m, k, b->row, a->column, a->row, out->row) <
           time_of(kernel, m, n, k, a->column, b->row, b->column, out->column);
}

/* Sets all->whole and its strides to the product or its transpose. Returns 1 for the transpose, else 0. */
static int orient(jobs *all, const gemm_plan *plan) {
    const int transposed = is_transposed(plan);
    gemm_subproblem *x = &all->whole;
    all->a = plan->a, all->b = plan->b, all->c = plan->c, all->out = plan->out;
    x->k = plan->k;
    if (transposed) {
        const void *a = x->a;
        x->a = x->b, x->b = a;
        all->a = plan->b, all->b = plan->a;
        x->m = plan->n, x->n = plan->m;
        x->a_rs = plan->b.column, x->a_cs = plan->b.row, x->b_rs = plan->a.column, x->b_cs = plan->a.row;
        x->c_rs = plan->c.column, x->c_cs = plan->c.row, x->out_rs = plan->out.column, x->out_cs = plan->out.row;
    } else {
        x->m = plan->m, x->n = plan->n;
        x->a_rs = plan->a.row, x->a_cs = plan->a.column, x->b_rs = plan->b.row, x->b_cs = plan->b.column;
        x->c_rs = plan->c.row, x->c_cs = plan->c.column, x->out_rs = plan->out.row, x->out_cs = plan->out.column;
    }
    return transposed;
}

/* Returns whether `pointer` is not a multiple of the size of a number. `size`: bytes per element, a power of 2. */
static int misaligned(const void *pointer, const gemm_kernel *kernel, int64_t size) {
    return ((uintptr_t)pointer & (uintptr_t)((kernel->flags & GEMM_COMPLEX ? size / 2 : size) - 1)) != 0;
}

int gemm_is_direct(const gemm_plan *plan, gemm_block *block) {
    jobs all = {.plan = plan, .batch = 1};
    if (plan->batch_ndim || plan->prepacked || plan->accumulate || orient(&all, plan)) return 0;
    if (serial_ns(&all) > GEMM_SHORT_NS) return 0;
    all.whole.c = &all, all.whole.c_cs = plan->c.column; /* assume that there is a c */
    choose_blocking(&all, 1);
    if (!all.blocking.direct) return 0;
    all.whole.c = NULL; /* reset the placeholder: the caller's block must not point to `all` */
    *block = gemm_block_of(&all.whole, &all.blocking);
    return 1;
}

gemm_description gemm_describe(const gemm_plan *plan, const void *a, const void *b, const void *out) {
    jobs all = {.plan = plan, .batch = 1};
    all.whole.a = a, all.whole.b = b, all.whole.out = (void *)out;
    all.whole.prepacked = plan->prepacked ? b : NULL;
    const int transposed = orient(&all, plan);
    for (int axis = 0; axis < plan->batch_ndim; axis++) all.batch *= plan->batch_shape[axis];
    const int threads = plan->direct ? 1 : gemm_useful_threads(serial_ns(&all), plan->threads);
    choose_blocking(&all, threads);
    const gemm_blocking *x = &all.blocking;
    gemm_description found = {.threads = threads, .transposed = transposed};
    if (x->direct) return found;
    found.mc = x->mc, found.kc = x->kc, found.nc = x->nc, found.pack_a = x->pack_a, found.pack_b = x->pack_b;
    found.panel = round_up(x->kc, plan->kernel->k_group) * plan->kernel->nr * plan->kernel->b_packed;
    found.in_l1 = gemm_panel_fits(plan->kernel, x->kc);
    return found;
}

static void run_direct(const gemm_plan *plan, const void *a, const void *b, const void *c, void *out,
                       const gemm_scalar *alpha, const gemm_scalar *beta) {
    gemm_block block = *plan->direct;
    block.a = a, block.b = b, block.c = c, block.to = out, block.alpha = alpha, block.beta = beta;
    const gemm_environment saved = gemm_set_environment();
    plan->kernel->compute(&block);
    gemm_restore_environment(saved);
}

static int unaligned(const gemm_plan *plan, const void *a, const void *b, const void *c, const void *out) {
    const gemm_kernel *kernel = plan->kernel;
    if (plan->k && (misaligned(a, kernel, kernel->a_size) || misaligned(b, kernel, kernel->b_size))) return 1;
    return misaligned(c, kernel, kernel->c_size) || misaligned(out, kernel, kernel->c_size);
}

int gemm_run(const gemm_plan *plan, const void *a, const void *b, const void *c, void *out, const gemm_scalar *alpha,
             const gemm_scalar *beta) {
    if (unaligned(plan, a, b, c, out)) return GEMM_UNALIGNED;
    if (plan->direct) {
        run_direct(plan, a, b, c, out, alpha, beta);
        return GEMM_OK;
    }
    const gemm_place place = {a, b, c, out};
    if (!gemm_in_range(plan, 1, &place)) {
        const gemm_plan other = gemm_plan_otherwise(plan);
        return gemm_run(&other, a, b, c, out, alpha, beta);
    }
    jobs all; /* set field by field: clearing the whole structure would take longer than a small product */
    all.plan = plan, all.batch = 1;
    all.whole.a = a, all.whole.b = b, all.whole.c = c, all.whole.out = out;
    all.whole.alpha = alpha, all.whole.beta = beta, all.whole.accumulate = plan->accumulate;
    all.whole.prepacked = plan->prepacked ? b : NULL;
    all.whole.prepacked_n = plan->prepacked ? round_up(plan->n, plan->kernel->nr) : 0;
    orient(&all, plan);
    for (int axis = 0; axis < plan->batch_ndim; axis++) all.batch *= plan->batch_shape[axis];

    const gemm_acquired acquired = gemm_acquire_threads(GEMM_PRODUCT_POOL, serial_ns(&all), plan->threads);
    int threads = acquired.threads, result = GEMM_OK;

    char stack[STACK_BYTES + GEMM_ALIGNMENT], *memory = stack;
    choose_blocking(&all, threads);
    if (threads > 1 || all.workspace_bytes > STACK_BYTES) {
        /* All memory is allocated at once, before any work. If the allocation fails, out is therefore unchanged. */
        memory = (char *)malloc((size_t)(all.workspace_bytes * threads + GEMM_ALIGNMENT));
        if (!memory && threads > 1) {
            threads = 1;
            choose_blocking(&all, threads);
            memory = (char *)malloc((size_t)(all.workspace_bytes + GEMM_ALIGNMENT));
        }
    }
    if (memory) {
        all.workspace = memory + (GEMM_ALIGNMENT - (uintptr_t)memory % GEMM_ALIGNMENT) % GEMM_ALIGNMENT;
        gemm_parallel(acquired, run_job, &all, ceil_div(all.batch, all.batch_per_job) * all.grid_m * all.grid_n,
                      threads);
    } else {
        result = GEMM_NO_MEMORY;
    }
    gemm_release_threads(acquired);
    if (memory != stack) free(memory);
    return result;
}

/* Many products of one plan. A job computes `run` of them. */
typedef struct many {
    jobs one; /* the first product, oriented and blocked for one thread */
    const gemm_place *at;
    int64_t count, run;
    int transposed;
    char *workspace;
} many;

/* Returns the operands of product `index`, exchanged if the driver computes the transposed product. */
static gemm_place oriented(const many *all, int64_t index) {
    const gemm_place x = all->at[index];
    return all->transposed ? (gemm_place){x.b, x.a, x.c, x.out} : x;
}

static void run_job_of_many(void *context, int64_t index, int slot) {
    enum { AHEAD = 2 }; /* prefetch distance in products; with 1, the operands would arrive too late */
    const many *all = (const many *)context;
    const int64_t start = index * all->run, stop = min64(start + all->run, all->count);
    series loop = series_of(&all->one.whole, &all->one.blocking, all->workspace + slot * all->one.workspace_bytes);
    const gemm_environment saved = gemm_set_environment();
    for (int64_t i = start; i < stop; i++) {
        const gemm_place here = oriented(all, i), next = oriented(all, i + AHEAD < stop ? i + AHEAD : i);
        for (int64_t item = 0; item < all->one.batch; item++) {
            const gemm_place place = all->one.batch > 1 ? place_of(&all->one, here, item) : here;
            compute_next(&loop, &place, item || i + AHEAD >= stop ? NULL : &next);
        }
    }
    gemm_restore_environment(saved);
}

int gemm_run_many(const gemm_plan *plan, int64_t count, const gemm_place *at, const gemm_scalar *alpha,
                  const gemm_scalar *beta) {
    enum { JOBS = 8 }; /* jobs per thread; several, so that a thread that starts late leaves jobs to the others */
    for (int64_t i = 0; i < count; i++)
        if (unaligned(plan, at[i].a, at[i].b, at[i].c, at[i].out)) return GEMM_UNALIGNED;
    if (count < 1) return GEMM_OK;
    if (!gemm_in_range(plan, count, at)) {
        const gemm_plan other = gemm_plan_otherwise(plan);
        return gemm_run_many(&other, count, at, alpha, beta);
    }
    many all = {.one = {.plan = plan, .batch = 1}, .at = at, .count = count};
    jobs *one = &all.one;
    one->whole.a = at->a, one->whole.b = at->b, one->whole.c = at->c, one->whole.out = at->out;
    one->whole.alpha = alpha, one->whole.beta = beta, one->whole.accumulate = plan->accumulate;
    all.transposed = orient(one, plan);
    for (int axis = 0; axis < plan->batch_ndim; axis++) one->batch *= plan->batch_shape[axis];
    choose_blocking(one, 1);
    char stack[STACK_BYTES + GEMM_ALIGNMENT], *memory = stack;
    const gemm_acquired acquired =
        gemm_acquire_threads(GEMM_PRODUCT_POOL, serial_ns(one) * (double)count, plan->threads);
    int threads = acquired.threads, result = GEMM_OK;
    if (threads > 1 || one->workspace_bytes > STACK_BYTES) {
        memory = (char *)malloc((size_t)(one->workspace_bytes * threads + GEMM_ALIGNMENT));
        if (!memory && threads > 1) {
            threads = 1;
            memory = (char *)malloc((size_t)(one->workspace_bytes + GEMM_ALIGNMENT));
        }
    }
    if (memory) {
        all.workspace = memory + (GEMM_ALIGNMENT - (uintptr_t)memory % GEMM_ALIGNMENT) % GEMM_ALIGNMENT;
        all.run = threads > 1 ? ceil_div(count, (int64_t)JOBS * threads) : count;
        gemm_parallel(acquired, run_job_of_many, &all, ceil_div(count, all.run), threads);
    } else {
        result = GEMM_NO_MEMORY;
    }
    gemm_release_threads(acquired);
    if (memory != stack) free(memory);
    return result;
}
