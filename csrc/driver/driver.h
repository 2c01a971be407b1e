/* Shared among the driver's files: packing and blocking (block.c), the thread pool (pool.c), and gemm_run (run.c). */
#ifndef GEMM_DRIVER_H
#define GEMM_DRIVER_H

#include "gemm.h"

enum {
    GEMM_ALIGNMENT = 64 /* bytes: a cache line and the widest vector */
};

/* A rectangle of one product: rows i and columns j of operands at base + i * rs + j * cs elements. */
typedef struct gemm_part {
    int64_t m, n, k;
    const void *a, *b, *c; /* c may be NULL */
    void *out;
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs, out_rs, out_cs;
    const void *prepared;              /* all of b's panels, or NULL */
    int64_t prepared_n, prepared_from; /* their columns, and the one that this part begins with */
    const gemm_scalar *alpha, *beta;
    int goes_on; /* as in the plan */
} gemm_part;

/* How parts are cut for the caches, and what one thread needs for it: packed a, packed b, raw sums where out cannot
 * hold them, and a tile of out where its columns are not adjacent. A size of 0: not needed. */
typedef struct gemm_cut {
    const gemm_kernel *kernel;
    int64_t mc, kc, nc;
    int64_t stripe;     /* rows that share a packing of b; all, unless raw sums need a place of their own */
    int pack_a, pack_b; /* or the kernel reads the operand where it lies */
    int once;           /* no panel of b is used twice: all are packed in the same place */
    int ordered;        /* as in the plan */
    int direct;         /* a part is one call of the kernel, without any workspace */
    int64_t panels;     /* of b that are packed, just before their use, at a time */
    int64_t a_bytes, b_bytes, sums_bytes, tile_bytes, bytes;
} gemm_cut;

/* Cuts for parts of at most m x n. */
void gemm_cut_for(gemm_cut *cut, const gemm_plan *plan, const gemm_part *whole, int64_t m, int64_t n);

/* The call of the kernel that a part is if cut->direct. */
gemm_block gemm_block_of(const gemm_part *part, const gemm_cut *cut);

/* One part in the calling thread; `workspace` is aligned and has cut->bytes. */
void gemm_compute(const gemm_part *part, const gemm_cut *cut, char *workspace);

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
