/* Declares the functions of block.c (cache blocking and packing) and block_sizes.c that other files of the driver call.
 * Also defines small functions that these files share. */
#ifndef GEMM_DRIVER_H
#define GEMM_DRIVER_H

#include "gemm.h"

enum {
    GEMM_ALIGNMENT = 64 /* bytes: a cache line, and the widest vector */
};

/* A part of one product: a rectangle of C, with all of k. Element (i, j) of an operand is at base + i * rs + j * cs, in
 * elements. */
typedef struct gemm_subproblem {
    int64_t m, n, k;
    const void *a, *b, *c; /* c may be NULL */
    void *out;
    int64_t a_rs, a_cs, b_rs, b_cs, c_rs, c_cs, out_rs, out_cs;
    const void *prepacked;                 /* panels of the whole b, or NULL */
    int64_t prepacked_n, prepacked_column; /* columns of those panels, with padding; the rectangle's first column */
    const gemm_scalar *alpha, *beta;
    int accumulate; /* as in gemm_plan */
} gemm_subproblem;

/* The cache blocking of a subproblem, and the size of the workspace that one thread needs. The workspace has four
 * parts: packed a, packed b, raw sums (if out cannot hold them), and copies of tile_columns columns of out and of c (if
 * out_cs or c_cs is not 1). If a size is 0, that part is not needed. `bytes` is the sum of the sizes. */
typedef struct gemm_blocking {
    const gemm_kernel *kernel;
    int64_t mc, kc, nc;
    int64_t stripe;     /* rows of C per packing of b: all rows, or fewer to limit the workspace for raw sums */
    int pack_a, pack_b; /* 0: the kernel reads the unpacked operand */
    int single_use;     /* each panel of b is used only once, so all panels are packed into the same memory */
    int ordered;        /* as in gemm_plan */
    int direct;         /* 1: each subproblem is a single kernel call and needs no workspace */
    int64_t panels;     /* number of panels of b that are packed at a time, just before their use */
    int64_t tile_columns;
    int64_t a_bytes, b_bytes, sums_bytes, tile_bytes, bytes;
} gemm_blocking;

/* Chooses the blocking for subproblems of the product `whole`. A subproblem has at most m x n elements of C. */
void gemm_choose_blocking(gemm_blocking *blocking, const gemm_plan *plan, const gemm_subproblem *whole, int64_t m,
                          int64_t n);

/* Returns the kernel call that computes a subproblem. blocking->direct must be set. */
gemm_block gemm_block_of(const gemm_subproblem *sub, const gemm_blocking *blocking);

/* Computes a subproblem in the calling thread. `workspace` is aligned and has blocking->bytes bytes. */
void gemm_compute(const gemm_subproblem *sub, const gemm_blocking *blocking, char *workspace);

/* Returns the position, in elements, of product `item` of the plan's stack. `strides`: of an operand's batch axes. */
int64_t gemm_batch_offset(const gemm_plan *plan, const int64_t *strides, int64_t item);

/* Returns whether the plan's kernel computes all of `count` products without replacing a number by zero. To find out, the
 * function reads a and b if the kernel is a checked one. For all other kernels it returns 1. If it returns 0, all of the
 * products are computed with the plan that gemm_plan_otherwise returns. */
int gemm_in_range(const gemm_plan *plan, int64_t count, const gemm_place *at);
gemm_plan gemm_plan_otherwise(const gemm_plan *plan);

/* Returns whether a panel of b with `kc` steps along k fits the L1 cache, as block_sizes.c estimates. */
int gemm_panel_fits(const gemm_kernel *kernel, int64_t kc);

/* Returns the kc that the driver uses: plan->kc, or less, so that k is split into pieces of nearly equal size. The
 * result depends only on the plan. Therefore prepacked panels are valid for any number of threads. */
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

/* Splits `total` into pieces of nearly equal size, so that the last piece is not much smaller than the others. Returns
 * the size of a piece: at most `most`, and a multiple of `unit`. */
static inline int64_t equal_pieces(int64_t total, int64_t most, int64_t unit) {
    return total <= most ? round_up(total, unit) : round_up(ceil_div(total, ceil_div(total, most)), unit);
}

/* Returns the largest m for which the kernel reads an unpacked b with contiguous columns; 0 if there is none. See
 * GEMM_FEW_ROWS. */
static inline int64_t few_rows(const gemm_kernel *kernel) {
    return kernel->flags & GEMM_FEW_ROWS ? min64(GEMM_FEW, kernel->mr) : kernel->flags & GEMM_UNPACKED_DOTS ? 1 : 0;
}

/* Returns whether the kernel can read b without packing because b's columns are contiguous and m is small. */
static inline int reads_columns(const gemm_kernel *kernel, int64_t m, int64_t k, int64_t b_rs) {
    return m <= few_rows(kernel) && k > 1 && b_rs == 1;
}

static inline const void *gemm_at(const void *base, int64_t elements, int64_t size) {
    return base ? (const char *)base + elements * size : base;
}

#endif
