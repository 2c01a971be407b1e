/* The C ABI of the CPU engine, and the contract between its driver and its kernels.
 *
 * A kernel computes a block of C whose operands fit the caches, tile by tile in registers. It neither allocates, nor
 * starts threads, nor looks at the machine. The driver (csrc/driver/) does all of that and no arithmetic at all: it
 * moves elements. So the numerical contract lies entirely with the kernels:
 *
 *     acc = from[i,j] or +0                               raw sums of earlier k, exact because stored unscaled
 *     acc = fma(a[i,p], b[p,j], acc)                      p = 0 ... k-1, in this order
 *     t   = alpha == 1 ? acc : alpha * acc                rounded on its own
 *     to[i,j] = c == NULL ? t : fma(beta, c[i,j], t)
 *
 * In float and double nothing is reassociated, split over k, flushed or skipped: every kernel gives the same bits. One
 * exception: of a product with m = 1 whose b has its columns adjacent along k, sums may be split unless `ordered`. Such
 * a kernel stops at k; were it to pad k, +0 would be wrong: a sum that underflowed to -0 must stay -0. Narrower types
 * are summed in a wider one, the sum type; integers wrap. Complex numbers have an order of their own, complex.h's, with
 * the same exception; there a matrix times a vector is such a product too, wherever the matrix lies.
 */
#ifndef GEMM_H
#define GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* alpha or beta, already rounded to the type of C: `re` and, for complex types, `im`; `integer` for integer types. */
typedef struct gemm_scalar {
    double re, im;
    int64_t integer;
} gemm_scalar;

/* A block of C, m x n, for one call of a kernel. Strides are in elements of their own operand.
 *
 *   a[i,p] = a[i / MR * a_ts + i % MR * a_rs + p * a_ps]     packed: a_rs = 1, a_ps = MR, a_ts = MR * k
 *   b[p,j] = b[j / NR * b_ts + p * b_ps + j % NR]            packed: b_ps = NR, b_ts = NR * k
 *
 * Unpacked, a_ts = MR * a_rs and b_ts = NR. Panels are 64-byte aligned and padded to whole ones with zeros; nothing
 * outside an unpacked operand is ever read. b_cs, from column to column of b, is 1 but for GEMM_UNPACKED_DOTS (m = 1,
 * k > 1). Columns of from, c and to are adjacent. With k = 0 neither a nor b is read.
 */
typedef struct gemm_block {
    int64_t m, n, k;
    const void *a, *b;
    int64_t a_rs, a_ps, a_ts, b_ps, b_cs, b_ts;
    const void *from; /* raw sums to go on from, of the sum type, or NULL for +0; may equal `to` */
    const void *c;    /* NULL exactly when beta is 0; may equal `to` */
    void *to;         /* all of m x n is written, nothing else */
    int64_t from_rs, c_rs, to_rs;
    const gemm_scalar *alpha, *beta;
    int32_t raw;     /* `to` takes raw sums, of the sum type: no alpha, no c */
    int32_t panels;  /* b is packed */
    int32_t ordered; /* nothing may be split over k */
} gemm_block;

typedef void gemm_block_function(const gemm_block *block);

/* Packs `rows` x `k` elements x[i * rs + p * ps] into panels of `width` rows (a's rows, or b's columns), each panel by
 * p and, within, groups of `k_group`; what misses in the last panel and the last group becomes zero. */
typedef void gemm_pack_function(void *to, const void *x, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                                int64_t width);

/* What a kernel's file defines, under the name of its row in the catalog. Sizes are bytes of an element. */
typedef struct gemm_kernel {
    const char *name;
    int32_t a_size, b_size, c_size, sum_size; /* in memory; c_size of c and out */
    int32_t a_packed, b_packed;               /* in panels */
    int32_t mr, nr, k_group;                  /* k_group: panels hold k rounded up to a multiple; 1 for float, double */
    int32_t flags;                            /* what it accepts, of the flags below */
    gemm_block_function *compute;
    gemm_pack_function *pack_a, *pack_b;
} gemm_kernel;

/* a or b where they lie, columns of b adjacent; b with b_ps = 1 and any b_cs if m = 1 and k > 1; a and b not exchanged
 * for the transposed product, because it would be rounded otherwise (with DOTS: but for n = 1), or their types differ;
 * whole panels of b only with panels of a, and sooner done than what is not packed; elements that are two numbers each,
 * and aligned as one of them. */
enum {
    GEMM_UNPACKED_A = 1,
    GEMM_UNPACKED_B = 2,
    GEMM_UNPACKED_DOTS = 4,
    GEMM_FIXED_ORDER = 8,
    GEMM_MIXED = 16,
    GEMM_FAST_PANELS = 32,
    GEMM_COMPLEX = 64
};

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
    int32_t prepacked;  /* b is what gemm_prepack made, not a matrix */
    int32_t ordered;    /* reproducible=True: the chain above for products of a vector, too */
    int32_t batch_ndim; /* 0 for a single product */
    const int64_t *batch_shape;
    gemm_strides a, b, c, out;
    const gemm_block *direct; /* what gemm_is_direct filled in, or NULL, which is slower for small products */
    int32_t
        accumulate; /* out holds raw sums of earlier k, from which the chain goes on: alpha is 1, c NULL, out's columns
                        adjacent and its type that of the kernel's sums */
} gemm_plan;

/* Whether the whole product is one call of the kernel in the calling thread, with nothing to pack. `block` is then that
 * call, but for pointers, for plan->direct: a small product need not find out. */
int gemm_is_direct(const gemm_plan *plan, gemm_block *block);

enum { GEMM_OK = 0, GEMM_NO_MEMORY = 1, GEMM_UNALIGNED = 2 };

/* out = alpha * a * b + beta * c. c is NULL exactly when beta is 0; it is disjoint from out or the same elements.
 * Inputs may have zero and negative strides. Re-entrant. On any other result than GEMM_OK nothing was written:
 * GEMM_NO_MEMORY for the workspace, GEMM_UNALIGNED when a pointer is no multiple of the size of a number. */
int gemm_run(const gemm_plan *plan, const void *a, const void *b, const void *c, void *out, const gemm_scalar *alpha,
             const gemm_scalar *beta);

/* Where one of many products lies; c as for gemm_run. */
typedef struct gemm_place {
    const void *a, *b, *c;
    void *out;
} gemm_place;

/* gemm_run for each of `count` products of one plan that is not `prepared`, in as many threads as pay for all together; the bits are those of
 * gemm_run. No out overlaps what another product reads or writes, and either all have c == out or none has. */
int gemm_run_many(const gemm_plan *plan, int64_t count, const gemm_place *at, const gemm_scalar *alpha,
                  const gemm_scalar *beta);

/* Packs the single matrix b of a plan (its kernel, n, k, kc and strides of b count) for plans that say `prepared`:
 * into `to`, 64-byte aligned, of gemm_prepacked_bytes bytes. */
int64_t gemm_prepacked_bytes(const gemm_plan *plan);
void gemm_prepack(const gemm_plan *plan, const void *b, void *to);

/* Copies elements of `size` bytes between arrays of one shape, disjoint, by as many threads as pay, which are not those
 * of products: while one runs, of gemm_get_num_threads what it leaves. Strides in bytes, at most 64 axes, outermost
 * first: innermost are best those whose elements are adjacent. With `stream` they are stored past the caches, where the
 * CPU has that: for what is large, and not read again soon. */
void gemm_copy(void *to, const void *from, int32_t ndim, const int64_t *shape, const int64_t *to_strides,
               const int64_t *from_strides, int64_t size, int32_t stream);

/* Calls work(context, index, slot) for each index below `count`, in as many threads as pay for what takes some `ns`
 * nanoseconds in one; returns when all are done. The caller is slot 0. Threads are worth waking for `more_ns`, too,
 * which the caller is about to share next. */
typedef void gemm_work(void *context, int64_t index, int slot);
void gemm_share(gemm_work *work, void *context, int64_t count, double ns, double more_ns);

/* The threads that any product of this process may use, the caller's included; as of the next product, whatever was
 * planned before. gemm_set_num_threads sets a number; with 0, as at first, there are as many as are granted: the CPUs
 * that the calling thread may run on at that moment, at most those of gemm_grant_threads. */
int gemm_get_num_threads(void);
void gemm_set_num_threads(int threads);
void gemm_grant_threads(int most);
/* Lets products that the calling thread asks for leave so many of those threads' CPUs to others, 0 as at first; one
 * thread is always left to them. */
void gemm_leave_threads(int count);

/* What this CPU and its operating system can run: bit i stands for gemm_feature_names[i]; NULL ends the names. */
enum {
    GEMM_AVX2 = 1,
    GEMM_FMA = 2,
    GEMM_AVX512F = 4,
    GEMM_NEON = 8,
    GEMM_F16C = 16,
    GEMM_AVX512DQ = 32,
    GEMM_AVX512BW = 64, /* and VL, which no CPU has without it nor lacks with it */
    GEMM_AVX512VNNI = 128,
    GEMM_AVX512BF16 = 256,
    GEMM_AVXVNNI = 512,
    GEMM_FP16 = 1024,
    GEMM_DOTPROD = 2048,
    GEMM_BF16 = 4096,
    GEMM_I8MM = 8192,
    GEMM_VFPV4 = 16384,   /* and NEON, on 32-bit Arm */
    GEMM_AMXINT8 = 32768, /* and the tiles, and AVX512F and BW, which no CPU with these lacks */
    GEMM_AMXBF16 = 65536,
};
extern const char *const gemm_feature_names[];
uint32_t gemm_features(void);

/* The architecture that the engine was compiled for: "x86_64", "aarch64", "arm" or "other". */
extern const char *const gemm_architecture;

#ifdef __cplusplus
}
#endif
#endif
