/* Shared among the driver's files: packing and blocking (block.c), the thread pool (pool.c), and gemm_run (run.c). */
#ifndef GEMM_DRIVER_H
#define GEMM_DRIVER_H

#include "gemm.h"

enum {
    GEMM_ALIGNMENT = 64 /* bytes: a cache line and the widest vector */
};

/* A rectangle of one product: rows i and columns j of operands at base + i * rs + j * cs elements. */
typedef struct gemm_subproblem {
    int64_t m, n, k;
    const void *a, *b, *c; /* c may be NULL */
    void *out;
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs, out_rs, out_cs;
    const void *prepacked;                 /* all of b's panels, or NULL */
    int64_t prepacked_n, prepacked_column; /* their columns, and the one that this sub begins with */
    const gemm_scalar *alpha, *beta;
    int accumulate; /* as in the plan */
} gemm_subproblem;

/* How parts are blocking for the caches, and what one thread needs for it: packed a, packed b, raw sums where out cannot
 * hold them, and a tile of out where its columns are not adjacent. A size of 0: not needed. */
typedef struct gemm_blocking {
    const gemm_kernel *kernel;
    int64_t mc, kc, nc;
    int64_t stripe;     /* rows that share a packing of b; all, unless raw sums need a position of their own */
    int pack_a, pack_b; /* or the kernel reads the operand where it lies */
    int single_use;     /* no panel of b is used twice: all are packed in the same position */
    int ordered;        /* as in the plan */
    int direct;         /* a sub is one call of the kernel, without any workspace */
    int64_t panels;     /* of b that are packed, just before their use, at a time */
    int64_t a_bytes, b_bytes, sums_bytes, tile_bytes, bytes;
} gemm_blocking;

/* Cuts for parts of at most m x n. */
void gemm_choose_blocking(gemm_blocking *blocking, const gemm_plan *plan, const gemm_subproblem *whole, int64_t m,
                          int64_t n);

/* The call of the kernel that a sub is if blocking->direct. */
gemm_block gemm_block_of(const gemm_subproblem *sub, const gemm_blocking *blocking);

/* One sub in the calling thread; `workspace` is aligned and has blocking->bytes. */
void gemm_compute(const gemm_subproblem *sub, const gemm_blocking *blocking, char *workspace);

/* The depth of blocks: a matter of the plan alone, so that packed panels fit whatever threads there are. */
int64_t gemm_depth(const gemm_plan *plan);

static inline int64_t min64(int64_t x, int64_t y) {
    return x < y ? x : y;
}

static inline int64_t ceil_div(int64_t x, int64_t y) {
    return (x + y - 1) / y;
}

static inline int64_t round_up(int64_t x, int64_t unit) {
    return ceil_div(x, unit) * unit;
}

/* The size of equal pieces of `total`, none above `most`, in multiples of `unit`: no sliver is left for the end. */
static inline int64_t equal_pieces(int64_t total, int64_t most, int64_t unit) {
    return total <= most ? round_up(total, unit) : round_up(ceil_div(total, ceil_div(total, most)), unit);
}

static inline const void *gemm_at(const void *base, int64_t elements, int64_t size) {
    return base ? (const char *)base + elements * size : base;
}

#endif
