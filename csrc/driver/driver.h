/* Shared among the driver's files: packing and blocking (block.c), the thread pool (pool.c), and gemm_run (run.c). */
#ifndef GEMM_DRIVER_H
#define GEMM_DRIVER_H

#include "gemm.h"

enum {
    GEMM_ALIGNMENT = 64,   /* bytes: a cache line and the widest vector */
    GEMM_TILE_BYTES = 4096 /* room for any kernel's tile on the stack */
};

/* A block of one product: rows i and columns j of operands at base + i * rs + j * cs elements. */
typedef struct gemm_block {
    int64_t m, n, k;
    const void *a, *b, *c; /* c may be NULL */
    void *out;
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs, out_rs, out_cs;
    double alpha, beta;
} gemm_block;

/* How blocks are cut for the caches, and what one thread needs for it: packed a, packed b, and, where out cannot hold
 * raw sums because it is c, those of `stripe` rows. */
typedef struct gemm_blocking {
    const gemm_kernel *kernel;
    int64_t mc, kc, nc;
    int64_t stripe; /* rows that share a packing of b; all, unless raw sums need a place of their own */
    int64_t a_bytes, b_bytes, sums_bytes; /* sums_bytes is 0 where raw sums stay in out */
} gemm_blocking;

/* Cuts for blocks of at most m x n. */
gemm_blocking gemm_cut(const gemm_plan *plan, int64_t m, int64_t n, int out_is_c);

/* One block in the calling thread; `workspace` is aligned and has the bytes that `blocking` names. */
void gemm_block_float(const gemm_block *block, const gemm_blocking *blocking, char *workspace);
void gemm_block_double(const gemm_block *block, const gemm_blocking *blocking, char *workspace);

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
    return round_up(ceil_div(total, ceil_div(total, most)), unit);
}

#endif
