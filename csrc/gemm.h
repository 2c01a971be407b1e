/* The C ABI of the CPU engine, and the contract between its driver and its kernels.
 *
 * The first part of this header is the interface of a kernel: gemm_block, gemm_kernel. The second part is the interface
 * of the driver: gemm_plan, gemm_run and the functions after it. Terms:
 *
 *   tile      the elements of C that a kernel keeps in registers; with packed operands, at most MR x NR elements
 *   panel     MR rows of a, or NR columns of b, packed in the order in which the kernel reads them
 *   block     the part of C that one kernel call computes; with packed operands, at most mc x nc elements over at most
 *             kc steps along k (see gemm_plan)
 *   raw sum   the accumulator of an element of C, before alpha, beta and c are applied
 *
 * A kernel computes one block of C, tile by tile in registers. The block's operands fit the caches. A kernel allocates
 * no memory, starts no threads and does not query the machine: the driver (csrc/driver) does. The driver only moves
 * elements. Therefore the numerical contract concerns only the kernels. For each element (i, j) of the block:
 *
 *     acc = from[i,j], or +0 if from == NULL         from: raw sums of earlier steps along k, stored without rounding
 *     acc = fma(a[i,p], b[p,j], acc)                 for p = 0 ... k-1, in this order
 *     t   = alpha == 1 ? acc : alpha * acc           alpha * acc is rounded before the next line uses it
 *     to[i,j] = c == NULL ? t : fma(beta, c[i,j], t)
 *
 * Float and double: a kernel never reassociates a sum, never splits a sum over k, never flushes subnormals and never
 * skips a term. Every kernel gives the same bits. There is one exception. If m = 1 and b's stride along k is 1, a
 * kernel may split the sums over k, unless `ordered` is set. A kernel of these types must not pad k with zeros: a sum
 * that underflowed to -0 must stay -0, and adding +0 would change its sign.
 *
 * float16, bfloat16 and 8- and 16-bit integers: the sums have a wider type, the sum type. Integers wrap.
 *
 * Complex numbers: complex.h defines the order of operations. For complex numbers, the exception above covers every
 * product of a matrix and a vector, whatever the layout of the matrix.
 */
#ifndef GEMM_H
#define GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* alpha or beta, rounded to the type of C. Floats use `re`, complex numbers `re` and `im`, integers `integer`. */
typedef struct gemm_scalar {
    double re, im;
    int64_t integer;
} gemm_scalar;

/* The arguments of one kernel call, which computes a block of m x n elements of C. MR and NR are the numbers of rows
 * and columns of the kernel's tile. All strides count elements of their own operand. The kernel reads a in pieces of MR
 * rows and b in pieces of NR columns, one piece of each per tile:
 *
 *   a[i,p] = a[i / MR * a_ts + i % MR * a_rs + p * a_ps]     packed: a_rs = 1, a_ps = MR, a_ts = MR * k
 *   b[p,j] = b[j / NR * b_ts + p * b_ps + j % NR]            packed: b_ps = NR, b_ts = NR * k
 *
 * If a is not packed, a_ts = MR * a_rs. If b is not packed, b_ts = NR. In the names of strides, r stands for row, c for
 * column, p for a step along k, t for tile. If the kernel's k_group is above 1, panels have the order that
 * gemm_pack_function describes, and k in the formulas of a_ts and b_ts is rounded up to a multiple of k_group.
 *
 * Panels (packed operands) are aligned to 64 bytes, and zeros complete the last panel. The kernel never reads memory
 * outside an unpacked operand. b_cs, the stride between columns of b, is 1, except with GEMM_UNPACKED_DOTS or
 * GEMM_FEW_ROWS (and k > 1). Each row of `from`, c and `to` is contiguous (the stride between columns is 1). If k = 0, a
 * and b are not read.
 */
typedef struct gemm_block {
    int64_t m, n, k;
    const void *a, *b;
    int64_t a_rs, a_ps, a_ts, b_ps, b_cs, b_ts;
    const void *from; /* initial raw sums, of the sum type; NULL means +0; may equal `to` */
    const void *c;    /* NULL exactly when beta is 0; may equal `to` */
    void *to;         /* the kernel writes all m x n elements and nothing else */
    int64_t from_rs, c_rs, to_rs;
    const gemm_scalar *alpha, *beta;
    int32_t raw;     /* `to` receives raw sums, of the sum type; alpha, beta and c are not applied */
    int32_t panels;  /* b is packed */
    int32_t ordered; /* no sum may be split over k */
} gemm_block;

typedef void gemm_block_function(const gemm_block *block);

/* Packs a matrix of `rows` x `k` elements, x[i * rs + p * ps], into panels of `width` rows. For b, a "row" i is a
 * column of b. Within a panel, elements are stored by groups of `k_group` steps along k; in each group, the k_group
 * elements of a row are contiguous. Zeros complete the last panel and the last group. */
typedef void gemm_pack_function(void *to, const void *x, int64_t rs, int64_t ps, int64_t rows, int64_t k,
                                int64_t width);

/* Returns the least biased exponent of the nonzero elements x[i * rs + p * ps] of a `rows` x `k` matrix: 0 if there is a
 * subnormal element, and more than 255 if all elements are zero. The function is fast if ps is 1. */
typedef int32_t gemm_least_exponent_function(const void *x, int64_t rs, int64_t ps, int64_t rows, int64_t k);

/* The descriptor that each kernel's file defines. Its name is the name of the kernel's row in the catalog
 * (gemm/catalog). Sizes are in bytes per element. */
typedef struct gemm_kernel {
    const char *name;
    int32_t a_size, b_size, c_size, sum_size; /* sizes of a, b, c (and out) in matrices, and of the sum type */
    int32_t a_packed, b_packed;               /* sizes of a and b in panels */
    int32_t mr, nr, lanes;                    /* rows and columns of a tile; columns that count as one vector */
    int32_t k_group;                          /* panels pad k to a multiple of k_group, which is 1 for float, double */
    int32_t flags;                            /* a combination of the GEMM_ flags below */
    gemm_block_function *compute;
    gemm_pack_function *pack_a, *pack_b;
    /* Both are NULL, or the kernel is a checked one: its instructions treat numbers below the least normal float as
     * zero. If a number that small could occur, gemm_run computes the product with `otherwise`. See checked.h. */
    gemm_least_exponent_function *least_exponent;
    const struct gemm_kernel *otherwise;
} gemm_kernel;

/* The flags of a kernel:
 *
 *   UNPACKED_A      The kernel can read an unpacked a.
 *   UNPACKED_B      The kernel can read an unpacked b whose rows are contiguous (b_cs = 1).
 *   UNPACKED_DOTS   The kernel can read an unpacked b with any b_cs, if m = 1, k > 1 and b_ps = 1.
 *   FEW_ROWS        What UNPACKED_DOTS says about m = 1 holds for every m that exceeds neither GEMM_FEW nor MR.
 *   FIXED_ORDER     The driver must not exchange a and b to compute the transposed product, because the result would be
 *                   rounded differently. Exception: n = 1 with UNPACKED_DOTS, unless the plan is `ordered`.
 *   MIXED           a and b have different types, so the driver cannot exchange them either.
 *   FAST_PANELS     The kernel is faster with packed operands. If n >= NR and b is packed, a must be packed, too.
 *   COMPLEX         An element consists of two real numbers. It is aligned like one real number.
 */
enum {
    GEMM_UNPACKED_A = 1,
    GEMM_UNPACKED_B = 2,
    GEMM_UNPACKED_DOTS = 4,
    GEMM_FIXED_ORDER = 8,
    GEMM_MIXED = 16,
    GEMM_FAST_PANELS = 32,
    GEMM_COMPLEX = 64,
    GEMM_FEW_ROWS = 128
};
enum { GEMM_FEW = 5 };
/* Packing functions read rows that are contiguous in pieces of at most so many bytes, which go to several panels. */
enum { GEMM_PIECE_OF_ROW = 2048 };
/* Up to this k, writing C takes longer than the multiply-adds. */
enum { GEMM_SHORT_K = 16 };

/* The strides of an operand in elements: between rows, between columns, and along each batch axis. */
typedef struct gemm_strides {
    int64_t row, column;
    const int64_t *batch;
} gemm_strides;

/* A description of a product without its data. The engine only reads a plan, so threads may share it. */
typedef struct gemm_plan {
    const gemm_kernel *kernel;
    int64_t m, n, k;
    int64_t mc, kc, nc; /* sizes of the cache blocks: mc x kc elements of a, kc x nc elements of b. If m <= 2 * mc, all
                         * rows are one block. gemm_set_blocks chooses the sizes. All sizes give the same bits. */
    int32_t threads;    /* upper limit, including the calling thread */
    int32_t prepacked;  /* the pointer to b is the output of gemm_prepack, not a matrix; not for checked kernels */
    int32_t ordered;    /* reproducible=True: sums of matrix-vector products are not split over k either */
    int32_t batch_ndim; /* 0 for a single product */
    const int64_t *batch_shape;
    gemm_strides a, b, c, out;
    const gemm_block *direct; /* filled in by gemm_is_direct; or NULL: small products are then slower */
    /* If nonzero, out holds raw sums of earlier steps along k, and this product continues them. This requires c = NULL,
     * alpha = 1, out.column = 1 and an out of the sum type. */
    int32_t accumulate;
} gemm_plan;

/* The data caches of a CPU. The arrays have an element for each of the levels 1 to 3. size: in bytes; 0 for an L3 cache
 * that does not exist. shared: the number of logical CPUs that share the cache. */
typedef struct gemm_caches {
    int64_t size[3];
    int32_t l1_ways, shared[3];
    const char *source; /* where the sizes come from: "cpuid", "sysfs", ..., "GEMM_CPU_CACHES", or "default" */
} gemm_caches;

/* Returns the caches of this CPU, or those that the environment variable GEMM_CPU_CACHES describes: "L1/ways,L2/shared,
 * L3/shared" with sizes in KiB; the numbers after the slashes are optional. The first call reads the caches; all later
 * calls return the same. Caches that cannot be read, or that no CPU has, are replaced by those of common CPUs. */
gemm_caches gemm_get_caches(void);

/* Sets plan->mc, kc and nc, unless they are set, from the caches, the kernel and plan->k. gemm_run, gemm_prepack and the
 * other functions below require positive sizes. gemm_block_sizes computes {mc, kc, nc} for any caches. */
void gemm_set_blocks(gemm_plan *plan);
void gemm_block_sizes(const gemm_kernel *kernel, const gemm_caches *caches, int64_t k, int64_t sizes[3]);

/* Describes how gemm_run would compute a product with the most threads that are worthwhile. mc, kc and nc are the sizes
 * of the equal pieces into which the product is cut. They are 0 if the product is a single kernel call. pack_a, pack_b:
 * whether a and b are packed. panel: bytes of a panel of b. in_l1: whether gemm_set_blocks expects a panel of b in the
 * L1 cache. If `transposed` is set, the driver exchanges a and b to compute the transposed product. The other fields
 * then describe the exchanged operands. */
typedef struct gemm_description {
    int64_t mc, kc, nc, panel;
    int32_t threads, pack_a, pack_b, transposed, in_l1;
} gemm_description;

gemm_description gemm_describe(const gemm_plan *plan, const void *a, const void *b, const void *out);

/* For tests. gemm_parse_caches reads a value of GEMM_CPU_CACHES and returns whether it is well-formed.
 * gemm_note_cpuid_cache adds the cache that eax, ebx and ecx of cpuid's leaf 4 (Intel) or 0x8000001D (AMD) describe, and
 * returns 0 if they describe none. gemm_check_caches replaces sizes that no CPU has. */
int gemm_parse_caches(gemm_caches *found, const char *text);
int gemm_note_cpuid_cache(gemm_caches *found, const uint32_t registers[3]);
void gemm_check_caches(gemm_caches *found);

/* Returns whether the whole product is a single kernel call in the calling thread, without packing. If so, fills in
 * `block` for that call, except for the pointers. If plan->direct points to the block, gemm_run skips this decision,
 * which is expensive compared with a small product. */
int gemm_is_direct(const gemm_plan *plan, gemm_block *block);

enum { GEMM_OK = 0, GEMM_NO_MEMORY = 1, GEMM_UNALIGNED = 2 };

/* Computes out = alpha * a * b + beta * c. c is NULL exactly when beta is 0. Either c is out itself, with the same
 * strides, or c does not overlap out. Strides of inputs may be zero or negative. The function is re-entrant.
 *
 * Returns GEMM_OK; GEMM_NO_MEMORY if the workspace cannot be allocated; or GEMM_UNALIGNED if the address of an operand
 * is not a multiple of the size of a number. After an error, out is unchanged. */
int gemm_run(const gemm_plan *plan, const void *a, const void *b, const void *c, void *out, const gemm_scalar *alpha,
             const gemm_scalar *beta);

/* The operands of one product in gemm_run_many. The rules for c are those of gemm_run. */
typedef struct gemm_place {
    const void *a, *b, *c;
    void *out;
} gemm_place;

/* Computes `count` products with one plan, alpha and beta. The results have the same bits as those of `count` calls of
 * gemm_run, with one exception: a checked kernel computes all of the products or none of them. The number of threads is
 * chosen once for all products. Requirements: the plan is not `prepacked`; no out overlaps memory that another product
 * reads or writes; and either every product has c == out, or none has. */
int gemm_run_many(const gemm_plan *plan, int64_t count, const gemm_place *at, const gemm_scalar *alpha,
                  const gemm_scalar *beta);

/* Packs the single matrix b for plans that set `prepacked`. Only the kernel, n, k, kc and the strides of b matter in
 * `plan`. `to` is aligned to 64 bytes and has gemm_prepacked_bytes(plan) bytes. */
int64_t gemm_prepacked_bytes(const gemm_plan *plan);
void gemm_prepack(const gemm_plan *plan, const void *b, void *to);

/* Copies elements of `size` bytes between two arrays of the same shape that do not overlap. Strides are in bytes. There
 * are at most 64 axes, outermost first; the copy is fastest if the elements of the innermost axis are contiguous.
 *
 * Copies have a thread pool of their own, separate from the pool of products. A copy that starts while a product runs
 * takes only as many threads as the product leaves free.
 *
 * `stream` selects stores that bypass the caches, if the CPU has them: for large data that is not read again soon. */
void gemm_copy(void *to, const void *from, int32_t ndim, const int64_t *shape, const int64_t *to_strides,
               const int64_t *from_strides, int64_t size, int32_t stream);

/* A parallel loop: calls work(context, index, slot) for each index below `count`, and returns when all calls are done.
 * `slot` is the number of the executing thread; the calling thread has slot 0.
 *
 * `ns` is the estimated time of the whole loop on one thread, in nanoseconds. It determines how many threads are
 * worthwhile. `more_ns` is the same estimate for the loops that the caller starts right after this one: those loops
 * also benefit from threads that this loop wakes. */
typedef void gemm_work(void *context, int64_t index, int slot);
void gemm_share(gemm_work *work, void *context, int64_t count, double ns, double more_ns);

/* The maximum number of threads of a product of this process, including the calling thread.
 *
 * gemm_set_num_threads sets the number, gemm_get_num_threads returns it. A change takes effect with the next product,
 * even if that product's plan was made before the change. The number 0, the default, means the number of CPUs that the
 * calling thread may run on when the product starts, but at most the number set by gemm_grant_threads. */
int gemm_get_num_threads(void);
void gemm_set_num_threads(int threads);
void gemm_grant_threads(int most);
/* Makes products of the calling thread use `count` threads fewer than gemm_get_num_threads(), but at least one. This
 * leaves `count` CPUs free for other work. The default is 0. */
void gemm_leave_threads(int count);

/* Instruction sets that this CPU and its operating system support: bit i of gemm_features() belongs to
 * gemm_feature_names[i]. A NULL ends the array. */
enum {
    GEMM_AVX2 = 1,
    GEMM_FMA = 2,
    GEMM_AVX512F = 4,
    GEMM_NEON = 8,
    GEMM_F16C = 16,
    GEMM_AVX512DQ = 32,
    GEMM_AVX512BW = 64, /* and AVX512VL: every CPU has both or neither */
    GEMM_AVX512VNNI = 128,
    GEMM_AVX512BF16 = 256,
    GEMM_AVXVNNI = 512,
    GEMM_FP16 = 1024,
    GEMM_DOTPROD = 2048,
    GEMM_BF16 = 4096,
    GEMM_I8MM = 8192,
    GEMM_VFPV4 = 16384,   /* 32-bit Arm; includes NEON */
    GEMM_AMXINT8 = 32768, /* includes AMX-TILE, AVX512F and AVX512BW, which every CPU with AMX-INT8 has */
    GEMM_AMXBF16 = 65536,
    GEMM_SME = 131072, /* includes outer products of int8, bfloat16 and float */
    GEMM_SMEF64F64 = 262144,
};
extern const char *const gemm_feature_names[];
uint32_t gemm_features(void);

/* The architecture that the engine was compiled for: "x86_64", "aarch64", "arm" or "other". */
extern const char *const gemm_architecture;

#ifdef __cplusplus
}
#endif
#endif
