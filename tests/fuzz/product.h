/* Random products for sanitizers and fuzzers. The kernel, shape, strides, batch, scalars, blocks and threads are
 * decoded from a string of bytes. Every operand is at the end of its own heap block, so the address sanitizer detects
 * each access beyond it. The gaps between the elements of an operand are filled with poison: it must not affect the
 * result, and it must not change.
 *
 * The code does not depend on the element type. A kernel's descriptor gives the sizes, and the data are bit patterns
 * that are small finite numbers in every floating-point type. In integers they are arbitrary numbers. The result is
 * compared bit by bit with a reference: the same product with contiguous copies, one thread, other block sizes, and one
 * matrix of the batch at a time. Matrix-vector products are not compared if their sums may be split.
 */
#ifndef PRODUCT_H
#define PRODUCT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GUARD(p, bytes) __asan_poison_memory_region(p, bytes)
#define UNGUARD(p, bytes) __asan_unpoison_memory_region(p, bytes)
#endif
#endif
#ifdef GUARD
void __asan_poison_memory_region(void const volatile *p, size_t bytes);
void __asan_unpoison_memory_region(void const volatile *p, size_t bytes);
#else
#define GUARD(p, bytes) ((void)(p), (void)(bytes))
#define UNGUARD(p, bytes) ((void)(p), (void)(bytes))
#endif

enum { AXES = 2, POISON = 0xFF };

typedef struct stream {
    const uint8_t *at, *end;
    uint64_t state; /* of a random generator, used after the last byte */
} stream;

static uint32_t next(stream *s, uint32_t below) {
    if (s->at < s->end) return *s->at++ % below;
    s->state = s->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->state >> 33) % below;
}

static void fail(const gemm_plan *plan, const char *what) {
    fprintf(stderr, "%s: %s, m %lld n %lld k %lld, blocks %lld %lld %lld, %d threads, prepacked %d, %d batch axes\n",
            plan->kernel->name, what, (long long)plan->m, (long long)plan->n, (long long)plan->k, (long long)plan->mc,
            (long long)plan->kc, (long long)plan->nc, plan->threads, plan->prepacked, plan->batch_ndim);
    abort();
}

/* An operand: the batch axes shape[0 ... AXES - 1], then rows and columns. Its first element is at `first`. Strides are
 * in elements. */
typedef struct operand {
    char *block, *first;
    int64_t bytes, front, size, shape[AXES + 2], strides[AXES + 2];
} operand;

static int64_t elements(const operand *x) {
    int64_t count = 1;
    for (int axis = 0; axis < AXES + 2; axis++) count *= x->shape[axis];
    return count;
}

static char *element(const operand *x, int64_t index) {
    int64_t offset = 0;
    for (int axis = AXES + 1; axis >= 0; axis--) {
        offset += index % x->shape[axis] * x->strides[axis];
        index /= x->shape[axis];
    }
    return x->first + offset * x->size;
}

/* Writes an element: a number whose magnitude is below about 2 ** 15 in half, bfloat16, float and double, of either
 * sign. Zeros and ones are frequent. */
static void put(char *to, int64_t size, stream *s) {
    static const uint16_t high[] = {0x3C00, 0xBC00, 0x0000, 0x8000, 0x3F80, 0xBE00, 0x3D55, 0x3A31};
    for (int64_t i = 0; i < size; i++) to[i] = (char)next(s, 256);
    const int64_t word = size < 4 ? size : 4;
    for (int64_t end = word; size > 1 && end <= size; end += word) memcpy(to + end - 2, &high[next(s, 8)], 2);
}

/* Allocates an operand of `shape` with random strides. The strides of the axes in `broadcast` are 0. */
static operand make_operand(stream *s, int64_t size, const int64_t *shape, unsigned broadcast) {
    operand x = {.size = size};
    memcpy(x.shape, shape, sizeof x.shape);
    const int swap = (int)next(s, 3) == 0; /* transposed: the column axis has the larger stride */
    int64_t step = next(s, 6) ? 1 : 2 + next(s, 2), low = 0, high = 0;
    for (int next_axis = AXES + 1; next_axis >= 0; next_axis--) {
        const int axis = swap && next_axis >= AXES ? 2 * AXES + 1 - next_axis : next_axis;
        if (broadcast >> axis & 1) continue;
        x.strides[axis] = next(s, 5) ? step : -step;
        const int64_t reach = x.strides[axis] * (shape[axis] > 0 ? shape[axis] - 1 : 0);
        *(reach < 0 ? &low : &high) += reach;
        step = step * (shape[axis] ? shape[axis] : 1) + (next(s, 3) ? 0 : next(s, 9));
    }
    const int empty = elements(&x) == 0;
    x.front = next(s, 17) * size;
    x.bytes = x.front + (empty ? 0 : (high - low + 1) * size);
    x.block = (char *)malloc((size_t)x.bytes);
    if (!x.block && x.bytes) abort();
    memset(x.block, POISON, (size_t)x.bytes);
    x.first = x.block + x.front - low * size;
    for (int64_t i = 0; i < elements(&x); i++) put(element(&x, i), size, s);
    GUARD(x.block, (size_t)x.front);
    return x;
}

static operand contiguous_copy(const operand *x) {
    operand y = {.size = x->size, .bytes = elements(x) * x->size};
    memcpy(y.shape, x->shape, sizeof y.shape);
    for (int64_t axis = AXES + 1, step = 1; axis >= 0; step *= y.shape[axis--]) y.strides[axis] = step;
    y.block = y.first = (char *)malloc((size_t)y.bytes);
    if (!y.block && y.bytes) abort();
    for (int64_t i = 0; i < elements(x); i++) memcpy(element(&y, i), element(x, i), (size_t)x->size);
    return y;
}

static gemm_strides strides_of(const operand *x) {
    return (gemm_strides){x->strides[AXES], x->strides[AXES + 1], x->strides};
}

static gemm_scalar scalar(stream *s) {
    static const double values[] = {1, 0, -1, 0.5, -2, 1. / 3};
    const uint32_t at = next(s, 6);
    return (gemm_scalar){values[at], next(s, 3) ? 0 : at ? 0.25 : 0, (int64_t)values[at]};
}

static int64_t length(stream *s, int large) {
    if (large) return 60 + next(s, 50); /* large enough for threads */
    const uint32_t kind = next(s, 12);
    return kind == 0 ? 0 : kind < 8 ? 1 + next(s, 20) : kind < 11 ? 1 + next(s, 75) : 1 + next(s, 240);
}

/* Returns whether all bytes outside of x's elements are the same as in `before`. */
static int unchanged_elsewhere(const operand *x, char *before) {
    for (int64_t i = 0; i < elements(x); i++)
        memcpy(before + (element(x, i) - x->block), element(x, i), (size_t)x->size);
    return !memcmp(before + x->front, x->block + x->front, (size_t)(x->bytes - x->front));
}

static char *copy_of(const operand *x) {
    char *copy = (char *)malloc((size_t)x->bytes + 1);
    if (!copy) abort();
    memcpy(copy + x->front, x->block + x->front, (size_t)(x->bytes - x->front));
    return copy;
}

static void release(operand *x) {
    UNGUARD(x->block, (size_t)x->front);
    free(x->block);
}

/* The reference: the simplest way to compute the same result. */
static void reference(const gemm_plan *like, const operand *a, const operand *b, const operand *c, operand *out,
                      const gemm_scalar *alpha, const gemm_scalar *beta) {
    gemm_plan plan = *like;
    plan.batch_ndim = 0, plan.threads = 1, plan.prepacked = 0, plan.direct = 0, plan.mc = 97, plan.kc = 61,
    plan.nc = 103;
    plan.kc = (plan.kc + plan.kernel->k_group - 1) / plan.kernel->k_group * plan.kernel->k_group;
    plan.a = strides_of(a), plan.b = strides_of(b), plan.out = strides_of(out);
    if (c) plan.c = strides_of(c);
    const int64_t stacks = out->shape[0] * out->shape[1], mn = plan.m * plan.n;
    for (int64_t i = 0; i < stacks && mn; i++)
        if (gemm_run(&plan, a->first + i * plan.m * plan.k * a->size, b->first + i * plan.k * plan.n * b->size,
                     c ? c->first + i * mn * c->size : NULL, out->first + i * mn * out->size, alpha, beta) != GEMM_OK)
            fail(&plan, "the reference product failed");
}

/* Computes and checks one product on at most `threads` threads. */
static void product(stream *s, int threads) {
    const uint32_t row = next(s, sizeof rows / sizeof *rows);
    if (!runs_here(rows[row].needs)) return;
    const gemm_kernel *kernel = rows[row].kernel;
    const int64_t group = kernel->k_group;
    const int large = !next(s, 6);
    gemm_plan plan = {.kernel = kernel, .m = length(s, large), .n = length(s, large), .k = length(s, large)};
    int64_t batch[AXES] = {1, 1};
    plan.batch_ndim = next(s, 3) ? 0 : AXES;
    if (plan.batch_ndim) batch[0] = 1 + next(s, 3), batch[1] = 1 + next(s, 4);
    plan.batch_shape = batch;
    plan.threads = large ? threads : 1 + (int)next(s, (uint32_t)threads);
    plan.mc = kernel->mr * (1 + next(s, 12)), plan.nc = kernel->nr * (1 + next(s, 6));
    plan.kc = group * (1 + next(s, next(s, 2) ? 90 : 12));
    if (!plan.m || !plan.n) return; /* the engine's callers never request these */
    plan.ordered = (int)next(s, 2);
    /* then the bits depend on the strides and blocks */
    const int may_split = !plan.ordered && (plan.m == 1 || plan.n == 1);
    const gemm_scalar alpha = scalar(s), beta = scalar(s);
    const int no_c = beta.re == 0 && beta.im == 0 && beta.integer == 0;

    const int64_t sa[] = {batch[0], batch[1], plan.m, plan.k}, sb[] = {batch[0], batch[1], plan.k, plan.n},
                  sc[] = {batch[0], batch[1], plan.m, plan.n};
    const int fixed_b = plan.batch_ndim == 0 && !next(s, 5); /* b is prepacked */
    operand a = make_operand(s, kernel->a_size, sa, next(s, 4) ? 0 : next(s, 16));
    operand b = make_operand(s, kernel->b_size, sb, next(s, 4) ? 0 : next(s, 16));
    operand out = make_operand(s, kernel->c_size, sc, 0);
    const int in_place = !no_c && next(s, 2);
    operand c = in_place ? out : make_operand(s, kernel->c_size, sc, next(s, 4) ? 0 : next(s, 16));
    plan.a = strides_of(&a), plan.b = strides_of(&b), plan.c = strides_of(&c), plan.out = strides_of(&out);

    operand pa = contiguous_copy(&a), pb = contiguous_copy(&b), pc = contiguous_copy(&c),
            expected = contiguous_copy(&out);
    reference(&plan, &pa, &pb, no_c ? NULL : &pc, &expected, &alpha, &beta);
    char *a_before = copy_of(&a), *b_before = copy_of(&b), *c_before = copy_of(&c), *out_before = copy_of(&out);

    const void *b_data = b.first;
    void *panels = NULL, *memory = NULL;
    if (fixed_b) {
        const size_t bytes = (size_t)gemm_prepacked_bytes(&plan);
        memory =
            /* malloc aligns to 16 bytes; aligned_alloc would add padding that the sanitizer does not check */
            malloc(bytes + 63);
        panels = (char *)memory + (64 - (uintptr_t)memory % 64) % 64;
        gemm_prepack(&plan, b.first, panels);
        plan.prepacked = 1, b_data = panels;
    }
    gemm_block block;
    plan.direct = next(s, 2) && gemm_is_direct(&plan, &block) ? &block : 0;
    if (gemm_run(&plan, a.first, b_data, no_c ? NULL : c.first, out.first, &alpha, &beta) != GEMM_OK)
        fail(&plan, "the product failed");

    for (int64_t i = 0; i < elements(&out) && !may_split; i++)
        if (memcmp(element(&out, i), element(&expected, i), (size_t)out.size))
            fail(&plan, "the bits differ from the reference");
    if (memcmp(a_before + a.front, a.block + a.front, (size_t)(a.bytes - a.front)) ||
        memcmp(b_before + b.front, b.block + b.front, (size_t)(b.bytes - b.front)))
        fail(&plan, "an input was written");
    if (!in_place && memcmp(c_before + c.front, c.block + c.front, (size_t)(c.bytes - c.front)))
        fail(&plan, "c was written");
    if (!unchanged_elsewhere(&out, out_before)) fail(&plan, "memory outside of out was written");
    if (!next(s, 8) && kernel->c_size > 1) {
        char *now = copy_of(&out);
        if (gemm_run(&plan, a.first, b_data, no_c ? NULL : c.first, out.first + 1, &alpha, &beta) != GEMM_UNALIGNED)
            fail(&plan, "an unaligned out was accepted");
        if (memcmp(now + out.front, out.block + out.front, (size_t)(out.bytes - out.front)))
            fail(&plan, "an unaligned out was written");
        free(now);
    }

    char *const copies[] = {a_before, b_before, c_before, out_before, (char *)memory};
    for (int i = 0; i < 5; i++) free(copies[i]);
    operand *const all[] = {&a, &b, &pa, &pb, &pc, &expected, &out, &c};
    for (int i = 0; i < 8 - in_place; i++) release(all[i]);
}

#endif
