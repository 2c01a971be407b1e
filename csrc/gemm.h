/* The C ABI of the CPU engine, and the contract between its driver and its micro-kernels.
 *
 * A micro-kernel is one small file: it computes one MR x NR tile of C from packed panels, in registers. It neither
 * allocates, nor starts threads, nor looks at the machine. The driver (csrc/driver/) does all of that and no
 * arithmetic at all: it moves elements. So the numerical contract lies entirely with the kernels:
 *
 *     acc = from[i,j] or +0                               raw sums of earlier k, exact because stored unscaled
 *     acc = fma(a[i,p], b[p,j], acc)                      p = 0 ... k-1, in this order
 *     t   = alpha == 1 ? acc : alpha * acc                rounded on its own
 *     to[i,j] = c == NULL ? t : fma(beta, c[i,j], t)
 *
 * Nothing is reassociated, split over k, flushed or skipped: every kernel gives the same bits. A kernel stops at k;
 * were it to pad k, +0 would be wrong: a sum that underflowed to -0 must stay -0.
 */
#ifndef GEMM_H
#define GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One tile; all strides are in elements, all columns adjacent. Anything else the driver stages through a small tile. */
typedef struct gemm_tile {
    const void *from; /* raw sums to go on from, or NULL for +0; may equal `to` */
    const void *c;    /* NULL exactly when beta is 0; may equal `to` */
    void *to;         /* every element of the tile is written */
    int64_t from_rs, c_rs, to_rs;
    double alpha, beta; /* already rounded to the element type; raw sums are stored with alpha = 1, c = NULL */
} gemm_tile;

/* a: k columns of MR elements; b: k rows of NR elements; both 64-byte aligned and padded to whole panels with zeros.
 * With k = 0 neither is read. */
typedef void gemm_tile_function(int64_t k, const void *a, const void *b, const gemm_tile *tile);

/* What a kernel's file defines, under the name of its row in the catalog. */
typedef struct gemm_kernel {
    const char *name;
    int32_t element; /* bytes: 4 float, 8 double */
    int32_t mr, nr;
    gemm_tile_function *function;
} gemm_kernel;

/* Strides of an operand in elements: from row to row, from column to column, and along each batch axis. */
typedef struct gemm_strides {
    int64_t row, column;
    const int64_t *batch;
} gemm_strides;

/* All of a product but its data. Only read, so that threads may share it. */
typedef struct gemm_plan {
    const gemm_kernel *kernel;
    int64_t m, n, k;
    int64_t mc, kc, nc; /* cache blocks: a is packed mc x kc, b kc x nc; they never change a bit of the result */
    int32_t threads;    /* at most so many, the caller's included */
    int32_t batch_ndim; /* 0 for a single product */
    const int64_t *batch_shape;
    gemm_strides a, b, c, out;
} gemm_plan;

enum { GEMM_OK = 0, GEMM_NO_MEMORY = 1, GEMM_UNALIGNED = 2 };

/* out = alpha * a * b + beta * c. c is NULL exactly when beta is 0; it is disjoint from out or the same elements.
 * Inputs may have zero and negative strides. Re-entrant. On any other result than GEMM_OK nothing was written:
 * GEMM_NO_MEMORY for the workspace, GEMM_UNALIGNED when a pointer is no multiple of the element size. */
int gemm_run(const gemm_plan *plan, const void *a, const void *b, const void *c, void *out, double alpha, double beta);

/* What this CPU and its operating system can run: bit i stands for gemm_feature_names[i]; NULL ends the names. */
enum { GEMM_AVX2 = 1, GEMM_FMA = 2, GEMM_AVX512F = 4, GEMM_NEON = 8 };
extern const char *const gemm_feature_names[];
uint32_t gemm_features(void);

/* The architecture that the engine was compiled for: "x86_64", "aarch64" or "other". */
extern const char *const gemm_architecture;

#ifdef __cplusplus
}
#endif
#endif
