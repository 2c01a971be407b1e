/* Translates BLAS's products into plans for the driver. A column-major product is computed as the row-major product of
 * the transposes (C^T = B^T * A^T), so the rows of the driver's out are contiguous. Packing conjugates if required. */
#include "product.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm_cblas.h"

/* build.py generates rows.h from the catalog: one row for each kernel for BLAS's types on this architecture. For each
 * type, the kernels that suit all products come first, and of these the fastest first. */
#define ROW(type, name, target, needs) extern const gemm_kernel name;
#include "rows.h"
#undef ROW

typedef struct row {
    blas_type type;
    const gemm_kernel *kernel;
    const char *target;
    uint32_t needs;
} row;

static const row rows[] = {
#define ROW(type, name, target, needs) {type, &name, target, needs},
#include "rows.h"
#undef ROW
};
enum { ROWS = sizeof rows / sizeof *rows };

/* For each type, the row of the kernel to use; NULL until it is chosen. All threads choose the same row, so a race is
 * harmless. */
static _Atomic(const row *) chosen[BLAS_TYPES];

/* Returns the first row of `type` whose kernel this CPU can run. If GEMM_CPU_ISA names a target, rows of this target
 * have priority. */
static const row *choose(blas_type type) {
    const char *wish = getenv("GEMM_CPU_ISA");
    const row *best = NULL;
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].type != type || (gemm_features() & rows[i].needs) != rows[i].needs) continue;
        if (!best) best = &rows[i];
        if (wish && !strcmp(rows[i].target, wish)) {
            best = &rows[i];
            break;
        }
    }
    atomic_store_explicit(&chosen[type], best, memory_order_release);
    return best;
}

static const row *row_of(blas_type type) {
    const row *found = atomic_load_explicit(&chosen[type], memory_order_acquire);
    return found ? found : choose(type);
}

#ifdef __GNUC__
__attribute__((constructor))
#endif
static void
grant_threads(void) {
    const char *wish = getenv("GEMM_NUM_THREADS");
    if (wish && atoi(wish) > 0) gemm_grant_threads(atoi(wish));
}

/* Packs an operand and conjugates it. The function conjugates a small piece at a time and calls the kernel's own
 * packing function for this piece. Therefore the order of elements in a panel does not matter, except for one property
 * of all complex kernels: in a panel of `width` rows, step p along k starts at element p * width. If there is only one
 * step, kernels may use another order. Therefore no piece has a single step, unless k is 1. */
#define PACK_CONJUGATED(NAME, T, TYPE, PACK, PACKED)                                                                  \
    static void NAME(void *to, const void *x, int64_t rs, int64_t ps, int64_t rows, int64_t k, int64_t width) {       \
        enum { CAPACITY = 512 };                                                                                      \
        const gemm_kernel *kernel = row_of(TYPE)->kernel;                                                             \
        T conjugated[CAPACITY][2];                                                                                    \
        const int64_t step = CAPACITY / width;                                                                        \
        for (int64_t i0 = 0; i0 < rows; i0 += width)                                                                  \
            for (int64_t p0 = 0, depth; p0 < k; p0 += depth) {                                                        \
                const int64_t count = rows - i0 < width ? rows - i0 : width, left = k - p0;                           \
                depth = left <= step ? left : left == step + 1 ? step - 1 : step;                                     \
                for (int64_t p = 0; p < depth; p++)                                                                   \
                    for (int64_t i = 0; i < count; i++) {                                                             \
                        const T *number = (const T *)x + 2 * ((i0 + i) * rs + (p0 + p) * ps);                         \
                        T *put = conjugated[p * width + i];                                                           \
                        put[0] = number[0], put[1] = -number[1];                                                      \
                    }                                                                                                 \
                kernel->PACK((char *)to + (i0 * k + p0 * width) * kernel->PACKED, conjugated, 1, width, count, depth, \
                             width);                                                                                  \
            }                                                                                                         \
    }
PACK_CONJUGATED(conjugate_a_c, float, BLAS_C, pack_a, a_packed)
PACK_CONJUGATED(conjugate_b_c, float, BLAS_C, pack_b, b_packed)
PACK_CONJUGATED(conjugate_a_z, double, BLAS_Z, pack_a, a_packed)
PACK_CONJUGATED(conjugate_b_z, double, BLAS_Z, pack_b, b_packed)

static int is_zero(const gemm_scalar *x) {
    return x->re == 0 && x->im == 0;
}

static int is_one(const gemm_scalar *x) {
    return x->re == 1 && x->im == 0;
}

static int is_complex(const blas_call *x) {
    return x->type == BLAS_C || x->type == BLAS_Z;
}

/* op(X) is the matrix X or its transpose, as `trans` says. Returns whether op(X) is stored row by row. */
static int by_rows(const blas_call *x, int trans) {
    return (x->layout == CblasRowMajor) == (trans == CblasNoTrans);
}

int blas_wrong_number(const blas_call *x) {
    if (x->layout != CblasRowMajor && x->layout != CblasColMajor) return 1;
    if (x->transa < CblasNoTrans || x->transa > CblasConjTrans) return 2;
    if (x->transb < CblasNoTrans || x->transb > CblasConjTrans) return 3;
    if (x->m < 0) return 4;
    if (x->n < 0) return 5;
    if (x->k < 0) return 6;
    const int64_t line_a = by_rows(x, x->transa) ? x->k : x->m, line_b = by_rows(x, x->transb) ? x->n : x->k;
    const int64_t line_c = x->layout == CblasRowMajor ? x->n : x->m;
    if (x->lda < 1 || x->lda < line_a) return 9;
    if (x->ldb < 1 || x->ldb < line_b) return 11;
    if (x->ldc < 1 || x->ldc < line_c) return 14;
    return 0;
}

/* Returns whether the product reads A and B. */
static int multiplies(const blas_call *x) {
    return x->k > 0 && !is_zero(&x->alpha);
}

int blas_wrong_matrix(const blas_call *x, const void *a, const void *b, const void *c) {
    const uintptr_t rest = (x->type == BLAS_S || x->type == BLAS_C ? sizeof(float) : sizeof(double)) - 1;
    if (multiplies(x) && (uintptr_t)a & rest) return 8;
    if (multiplies(x) && (uintptr_t)b & rest) return 10;
    return (uintptr_t)c & rest ? 13 : 0;
}

/* A plan and the objects that it points to. */
typedef struct task {
    gemm_plan plan;
    gemm_kernel conjugating;
    gemm_scalar alpha, beta;
    int swapped; /* the driver's a is B, and its b is A */
    int reads_c;
} task;

static void set_scalars(task *t, const blas_call *x) {
    t->reads_c = !is_zero(&x->beta);
    /* If the product does not read A and B, the driver gets k = 0, and all sums are +0. If C is not read, alpha = 1
     * keeps the +0. If C is read, alpha = -0 makes the sum -0, because adding -0 keeps the sign of beta * c. */
    t->alpha = multiplies(x) ? x->alpha : (gemm_scalar){.re = t->reads_c ? -0.0 : 1};
    t->beta = x->beta;
}

/* Makes the plan of a call. Returns 0 if there is nothing to compute because C does not change. */
static int make_task(task *t, const blas_call *x) {
    if (!x->m || !x->n || (!multiplies(x) && is_one(&x->beta))) return 0;
    const row *row = row_of(x->type);
    const int a_rows = by_rows(x, x->transa), b_rows = by_rows(x, x->transb);
    const gemm_strides a = {a_rows ? x->lda : 1, a_rows ? 1 : x->lda, NULL};
    const gemm_strides b = {b_rows ? x->ldb : 1, b_rows ? 1 : x->ldb, NULL}, c = {x->ldc, 1, NULL};
    t->swapped = x->layout == CblasColMajor;
    set_scalars(t, x);
    t->plan = (gemm_plan){.kernel = row->kernel,
                          .m = t->swapped ? x->n : x->m,
                          .n = t->swapped ? x->m : x->n,
                          .k = multiplies(x) ? x->k : 0,
                          .threads = INT32_MAX,
                          .a = t->swapped ? (gemm_strides){b.column, b.row, NULL} : a,
                          .b = t->swapped ? (gemm_strides){a.column, a.row, NULL} : b,
                          .c = c,
                          .out = c};
    gemm_set_blocks(&t->plan);
    const int first = (t->swapped ? x->transb : x->transa) == CblasConjTrans;
    const int second = (t->swapped ? x->transa : x->transb) == CblasConjTrans;
    if (is_complex(x) && (first || second)) {
        t->conjugating = *row->kernel;
        t->conjugating.flags &= ~(GEMM_UNPACKED_A | GEMM_UNPACKED_B | GEMM_UNPACKED_DOTS);
        if (first) t->conjugating.pack_a = x->type == BLAS_C ? conjugate_a_c : conjugate_a_z;
        if (second) t->conjugating.pack_b = x->type == BLAS_C ? conjugate_b_c : conjugate_b_z;
        t->plan.kernel = &t->conjugating;
    }
    return 1;
}

static void run(task *t, const void *a, const void *b, void *c) {
    const void *left = t->swapped ? b : a, *right = t->swapped ? a : b, *addend = t->reads_c ? c : NULL;
    if (gemm_run(&t->plan, left, right, addend, c, &t->alpha, &t->beta) != GEMM_NO_MEMORY) return;
    /* BLAS has no way to report a failure. Therefore retry with blocks so small that the driver's workspace fits on the
     * stack. Block sizes do not affect the bits of the result. */
    gemm_plan frugal = t->plan;
    frugal.mc = frugal.kernel->mr, frugal.kc = 8, frugal.nc = frugal.kernel->nr, frugal.threads = 1;
    if (gemm_run(&frugal, left, right, addend, c, &t->alpha, &t->beta) != GEMM_NO_MEMORY) return;
    fputs("libgemm: no memory for a product\n", stderr); /* returning would silently leave c unchanged */
    abort();
}

/* Each thread's most recent call and its plan. Calls whose arguments differ only in alpha, beta and the matrices'
 * addresses use the plan again. For small products, making a plan would take most of the time. */
static _Thread_local struct {
    blas_call call;
    task task;
    gemm_block block;
} last;

void blas_run(const blas_call *x, const void *a, const void *b, void *c) {
    if (multiplies(x) && !memcmp(&last.call, x, offsetof(blas_call, alpha))) {
        set_scalars(&last.task, x);
    } else {
        last.call.layout = 0; /* no legal call has this layout: the stored plan is not used until it is complete */
        if (!make_task(&last.task, x)) return;
        if (gemm_is_direct(&last.task.plan, &last.block)) last.task.plan.direct = &last.block;
        if (multiplies(x)) last.call = *x;
    }
    run(&last.task, a, b, c);
}

void blas_run_strided(const blas_call *x, const void *a, const void *b, void *c, const int64_t strides[3],
                      int64_t count) {
    task t;
    if (!count || !make_task(&t, x)) return;
    t.plan.batch_ndim = 1, t.plan.batch_shape = &count;
    t.plan.a.batch = &strides[t.swapped], t.plan.b.batch = &strides[!t.swapped];
    t.plan.c.batch = t.plan.out.batch = &strides[2];
    run(&t, a, b, c);
}

void *blas_listed(const void *list, int64_t i) {
    void *address;
    memcpy(&address, (const char *)list + i * (int64_t)sizeof address, sizeof address);
    return address;
}

void blas_run_listed(const blas_call *x, const void *a, const void *b, const void *c, int64_t first, int64_t count) {
    enum { SOME = 64 };
    task t;
    if (!make_task(&t, x)) return;
    gemm_block block;
    if (gemm_is_direct(&t.plan, &block)) t.plan.direct = &block;
    gemm_place some[SOME], *all = count > SOME ? (gemm_place *)malloc((size_t)count * sizeof *all) : NULL;
    gemm_place *const places = all ? all : some;
    const int64_t capacity = all ? count : SOME;
    for (int64_t done = 0, number; done < count; done += number) {
        number = count - done < capacity ? count - done : capacity;
        for (int64_t i = 0; i < number; i++) {
            const int64_t at = first + done + i;
            void *const out = blas_listed(c, at);
            places[i] = (gemm_place){blas_listed(t.swapped ? b : a, at), blas_listed(t.swapped ? a : b, at),
                                     t.reads_c ? out : NULL, out};
        }
        if (gemm_run_many(&t.plan, number, places, &t.alpha, &t.beta) != GEMM_NO_MEMORY) continue;
        for (int64_t i = done; i < done + number; i++)
            run(&t, blas_listed(a, first + i), blas_listed(b, first + i), blas_listed(c, first + i));
    }
    free(all);
}
