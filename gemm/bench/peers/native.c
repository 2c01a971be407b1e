/* Loops around calls of C functions, so that timings exclude the overhead of Python; and microbenchmarks of a CPU core
 * and of memory. */
#include <stddef.h>
#include <stdint.h>

/* The arguments of `function`, which is a cblas_?gemm or, if batch > 0, a cblas_?gemm_batch_strided. trans_a and
 * trans_b are values of CBLAS_TRANSPOSE. step_a, step_b and step_c are the distances in elements from one matrix of a
 * stack to the next. */
typedef struct {
    void *function;
    int64_t trans_a, trans_b, m, n, k, lda, ldb, ldc;
    int64_t step_a, step_b, step_c, batch;
    const void *a, *b;
    void *c;
} product;

enum { ROW_MAJOR = 101 };
static const double one_z[2] = {1, 0}, zero_z[2] = {0, 0};
static const float one_c[2] = {1, 0}, zero_c[2] = {0, 0};

/* Defines a function that computes the product x `times` times, with alpha = one and beta = zero. INT: the library's
 * integer type. SCALAR: the type of alpha and beta as the library takes them. */
#define LOOP(name, INT, SCALAR, one, zero)                                                                       \
    void name(const product *x, int64_t times) {                                                                 \
        typedef void single(int, int, int, INT, INT, INT, SCALAR, const void *, INT, const void *, INT, SCALAR,  \
                            void *, INT);                                                                        \
        typedef void stack(int, int, int, INT, INT, INT, SCALAR, const void *, INT, INT, const void *, INT, INT, \
                           SCALAR, void *, INT, INT, INT);                                                       \
        const INT m = (INT)x->m, n = (INT)x->n, k = (INT)x->k, lda = (INT)x->lda, ldb = (INT)x->ldb;             \
        const INT ldc = (INT)x->ldc;                                                                             \
        const int ta = (int)x->trans_a, tb = (int)x->trans_b;                                                    \
        for (; times > 0 && !x->batch; times--)                                                                  \
            ((single *)x->function)(ROW_MAJOR, ta, tb, m, n, k, one, x->a, lda, x->b, ldb, zero, x->c, ldc);     \
        for (; times > 0; times--)                                                                               \
            ((stack *)x->function)(ROW_MAJOR, ta, tb, m, n, k, one, x->a, lda, (INT)x->step_a, x->b, ldb,        \
                                   (INT)x->step_b, zero, x->c, ldc, (INT)x->step_c, (INT)x->batch);              \
    }

LOOP(cblas_s32, int32_t, float, 1.0f, 0.0f)
LOOP(cblas_s64, int64_t, float, 1.0f, 0.0f)
LOOP(cblas_d32, int32_t, double, 1.0, 0.0)
LOOP(cblas_d64, int64_t, double, 1.0, 0.0)
LOOP(cblas_c32, int32_t, const void *, one_c, zero_c)
LOOP(cblas_c64, int64_t, const void *, one_c, zero_c)
LOOP(cblas_z32, int32_t, const void *, one_z, zero_z)
LOOP(cblas_z64, int64_t, const void *, one_z, zero_z)

/* The same for MKL's product of unsigned by signed bytes, which has 32-bit results. All offsets are 0. */
void cblas_u8s8(const product *x, int64_t times) {
    typedef void function(int, int, int, int, int, int, int, float, const void *, int, char, const void *, int, char,
                          float, void *, int, const int32_t *);
    enum { ONE_OFFSET = 173 };
    static const int32_t no_offset = 0;
    for (; times > 0; times--)
        ((function *)x->function)(ROW_MAJOR, (int)x->trans_a, (int)x->trans_b, ONE_OFFSET, (int)x->m, (int)x->n,
                                  (int)x->k, 1.0f, x->a, (int)x->lda, 0, x->b, (int)x->ldb, 0, 0.0f, x->c, (int)x->ldc,
                                  &no_offset);
}

/* Calls gemm_run of csrc/gemm.h in a loop. Returns 0, or the error of the first call that fails. */
int gemm_loop(void *run, int64_t times, const void *plan, const void *a, const void *b, void *out, const void *alpha,
              const void *beta) {
    typedef int function(const void *, const void *, const void *, const void *, void *, const void *, const void *);
    int failed = 0;
    for (; times > 0 && !failed; times--) failed = ((function *)run)(plan, a, b, NULL, out, alpha, beta);
    return failed;
}

/* Defines a function that computes CHAINS independent chains of fused multiply-adds in registers. A pass adds one
 * multiply-add to each chain. The function returns the number of floating-point operations. On all known cores, CHAINS
 * exceeds the latency in cycles times the number of fma units. The compiler needs -ffp-contract=fast. The seeds are 0.5
 * and 1, so that the values stay near 2. */
#define CHAINS_OF(name, TYPE, BYTES, CHAINS, TARGET)                                        \
    TARGET static int64_t name(int64_t passes, const volatile double *seed, double *sink) { \
        typedef TYPE vector __attribute__((vector_size(BYTES)));                            \
        const vector x = (vector){0} + (TYPE)seed[0], y = (vector){0} + (TYPE)seed[1];      \
        vector chain[CHAINS];                                                               \
        for (int i = 0; i < CHAINS; i++) chain[i] = y;                                      \
        for (int64_t pass = 0; pass < passes; pass++)                                       \
            for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * x + y;                   \
        for (int i = 1; i < CHAINS; i++) chain[0] += chain[i];                              \
        *sink = (double)chain[0][0];                                                        \
        return passes * 2 * CHAINS * (BYTES / (int64_t)sizeof(TYPE));                       \
    }

#if defined(__x86_64__)
CHAINS_OF(avx2_s, float, 32, 12, __attribute__((target("avx2,fma"))))
CHAINS_OF(avx2_d, double, 32, 12, __attribute__((target("avx2,fma"))))
CHAINS_OF(avx512_s, float, 64, 24, __attribute__((target("avx512f"))))
CHAINS_OF(avx512_d, double, 64, 24, __attribute__((target("avx512f"))))
#elif defined(__aarch64__)
CHAINS_OF(neon_s, float, 16, 24, )
CHAINS_OF(neon_d, double, 16, 24, )
#endif

/* Executes `passes` passes over the chains, with vectors of `bytes` bytes, and returns the number of floating-point
 * operations. Returns 0 if this CPU has no such instructions. */
int64_t fma_burst(int bytes, int is_double, int64_t passes) {
    static const volatile double seed[2] = {0.5, 1};
    double sink;
#if defined(__x86_64__)
    if (bytes == 64 && __builtin_cpu_supports("avx512f")) return (is_double ? avx512_d : avx512_s)(passes, seed, &sink);
    if (bytes == 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (is_double ? avx2_d : avx2_s)(passes, seed, &sink);
#elif defined(__aarch64__)
    if (bytes == 16) return (is_double ? neon_d : neon_s)(passes, seed, &sink);
#endif
    (void)bytes, (void)is_double, (void)passes, (void)seed, (void)sink;
    return 0;
}

/* Reads `lines` lines of 64 bytes as `streams` interleaved streams. Each line is prefetched `ahead` lines before its
 * load. The returned sum keeps the compiler from removing the reads. An iteration reads four lines, so lines / streams
 * must be a multiple of four. */
int64_t read_lines(const void *from, int64_t lines, int64_t streams, int64_t ahead) {
    typedef int64_t line __attribute__((vector_size(64), aligned(8), may_alias));
    const line *x = from;
    const int64_t part = lines / streams;
    line sum = {0}, other = {0};
    for (int64_t i = 0; i < part; i += 4)
        for (const line *at = x + i, *end = x + lines; at < end; at += part) {
            for (int j = 0; j < 4 && ahead; j++) __builtin_prefetch(at + ahead + j);
            sum += at[0];
            other += at[1];
            sum += at[2];
            other += at[3];
        }
    sum += other;
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}
