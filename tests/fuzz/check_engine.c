/* Tests the engine without Python. Each float and double kernel that this CPU can run computes products of many shapes,
 * strides and scalars. Every element must have the bits that the contract in csrc/gemm.h defines. Then the thread pool
 * is tested. Prints the number of correct products. Exits with 1 at the first wrong one.
 *
 *     check_engine [PART]    PART: only kernels whose names contain it */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels.h"

enum { ROOM = 130, THREADS = 4 };
static unsigned state = 1;

static double number(void) { /* of either sign, over several powers of two */
    state = state * 1664525u + 1013904223u;
    const double x = (double)(state >> 8) / (1 << 24) - 0.5;
    return x * (1 << (state >> 4 & 7));
}

typedef struct product {
    int m, n, k, layout, kc; /* layout: bits for a, b and c; a set bit means column-major */
    double alpha, beta;
    int times; /* number of repetitions; more than one use threads */
} product;

#define CHECK(T, NAME, FMA)                                                                                         \
    static int NAME(const gemm_kernel *kernel, product x) {                                                         \
        static T a[ROOM * ROOM], b[ROOM * ROOM], c[ROOM * ROOM], want[ROOM * ROOM], out[ROOM * ROOM];               \
        const int by_a = x.layout & 1, by_b = x.layout & 2, by_c = x.layout & 4;                                    \
        const gemm_strides as = {by_a ? 1 : x.k + 1, by_a ? x.m + 1 : 1, NULL};                                     \
        const gemm_strides bs = {by_b ? 1 : x.n + 1, by_b ? x.k + 1 : 1, NULL};                                     \
        const gemm_strides cs = {by_c ? 1 : x.n + 1, by_c ? x.m + 1 : 1, NULL};                                     \
        for (int i = 0; i < ROOM * ROOM; i++) a[i] = (T)number(), b[i] = (T)number(), c[i] = want[i] = (T)number(); \
        for (int i = 0; i < x.m; i++)                                                                               \
            for (int j = 0; j < x.n; j++) {                                                                         \
                T sum = 0, *to = want + i * cs.row + j * cs.column;                                                 \
                for (int p = 0; p < x.k; p++)                                                                       \
                    sum = FMA(a[i * as.row + p * as.column], b[p * bs.row + j * bs.column], sum);                   \
                if (x.alpha != 1) sum = (T)x.alpha * sum;                                                           \
                *to = x.beta == 0 ? sum : FMA((T)x.beta, *to, sum);                                                 \
            }                                                                                                       \
        const gemm_plan plan = {.kernel = kernel,                                                                   \
                                .m = x.m,                                                                           \
                                .n = x.n,                                                                           \
                                .k = x.k,                                                                           \
                                .mc = 24,                                                                           \
                                .kc = x.kc,                                                                         \
                                .nc = 48,                                                                           \
                                .threads = x.times > 1 ? THREADS : 1,                                               \
                                .ordered = 1,                                                                       \
                                .a = as,                                                                            \
                                .b = bs,                                                                            \
                                .c = cs,                                                                            \
                                .out = cs};                                                                         \
        const gemm_scalar alpha = {.re = (T)x.alpha}, beta = {.re = (T)x.beta};                                     \
        int right = 1;                                                                                              \
        for (int time = 0; time < x.times; time++) {                                                                \
            memcpy(out, c, sizeof c);                                                                               \
            right &= gemm_run(&plan, a, b, x.beta == 0 ? NULL : out, out, &alpha, &beta) == GEMM_OK;                \
            right &= !memcmp(out, want, sizeof out); /* this also detects writes outside of c */                    \
        }                                                                                                           \
        return right;                                                                                               \
    }
CHECK(float, check_float, fmaf)
CHECK(double, check_double, fma)

typedef int check(const gemm_kernel *, product);

static int done;

static void agree(const gemm_kernel *kernel, check *agrees, product x) {
    done += x.times;
    if (agrees(kernel, x)) return;
    printf("%s: %d x %d x %d, layout %d, kc %d, alpha %g, beta %g, %d times: differs\n", kernel->name, x.m, x.n, x.k,
           x.layout, x.kc, x.alpha, x.beta, x.times);
    exit(1);
}

static void check_kernel(const gemm_kernel *kernel, check *agrees) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 25, 31, 50, 97}, depths[] = {0, 1, 6, 37};
    static const double betas[] = {0, 1, -0.7};
    enum { SIZES = sizeof sizes / sizeof *sizes, DEPTHS = sizeof depths / sizeof *depths, LARGE = ROOM - 2, RUN = 20 };
    for (int at = 0; at < SIZES * SIZES * DEPTHS; at++) {
        const int row = at % SIZES, column = at / SIZES % SIZES, sum = row + column + at / (SIZES * SIZES);
        const product x = {sizes[row],
                           sizes[column],
                           depths[at / (SIZES * SIZES)],
                           at % 8,
                           sum % 5 ? 64 : 16,
                           sum % 2 ? 1 : 1.3,
                           betas[sum % 3],
                           1};
        agree(kernel, agrees, x);
    }
    for (int layout = 0; layout < 8; layout += 3) /* in such a fast series, even these products use threads */
        agree(kernel, agrees, (product){LARGE, LARGE, LARGE, layout, 64, 1.3, betas[layout / 3], RUN});
}

#ifdef __aarch64__
/* Checks that kernels for SME save the contents of ZA for a caller further up that needs it (csrc/sme/sme.h). The
 * instructions of SME are written as codes, as there. */
static void check_za(const gemm_kernel *kernel, check *agrees) {
    enum { LONGEST = 256 }; /* bytes of a vector */
    static uint8_t want[LONGEST * LONGEST], got[LONGEST * LONGEST];
    uint64_t bytes, left;
    __asm__ volatile(".inst 0x04bf582d\n\tmov %0, x13" : "=r"(bytes) : : "x13"); /* rdsvl x13, #1 */
    const struct {
        void *to;
        uint16_t vectors;
        uint8_t reserved[6];
    } saving = {got, (uint16_t)bytes, {0}};
    for (int i = 0; i < LONGEST * LONGEST; i++) want[i] = (uint8_t)(i * 37 + (i >> 8)), got[i] = 0;
    __asm__ volatile(".inst 0xd503457f" : : : "memory"); /* smstart za */
    for (uint64_t i = 0; i < bytes; i++)                 /* ldr za[w12, 0], [x10] */
        __asm__ volatile("mov x12, %0\n\tmov x10, %1\n\t.inst 0xe1000140"
                         :
                         : "r"(i), "r"(want + i * bytes)
                         : "x12", "x10", "memory");
    __asm__ volatile("msr S3_3_C13_C0_5, %0" : : "r"(&saving) : "memory"); /* TPIDR2_EL0 */
    agree(kernel, agrees, (product){33, 34, 35, 0, 16, 1, 0, 1});
    __asm__ volatile("mrs %0, S3_3_C13_C0_5" : "=r"(left) : : "memory");
    __asm__ volatile(".inst 0xd503447f" : : : "memory"); /* smstop za */
    if (!left && !memcmp(got, want, bytes * bytes)) return;
    printf("%s: ZA is not saved\n", kernel->name);
    exit(1);
}
#endif

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The number of jobs that have begun. Each job waits for the others, so every thread must take one. */
static atomic_int begun;
static const double PATIENCE = 20; /* seconds; then a faulty engine is detected instead of waiting forever */

static void meet(void *threads, int64_t index, int slot) {
    (void)index, (void)slot;
    atomic_fetch_add(&begun, 1);
    for (const double end = seconds() + PATIENCE; atomic_load(&begun) < *(int *)threads && seconds() < end;) continue;
}

/* Checks that every thread of the pool takes a job, whether it spins or sleeps. */
static void check_pool(void) {
    enum { MEETINGS = 30 };
    int threads = gemm_get_num_threads();
    for (int meeting = 0; meeting < MEETINGS; meeting++) {
        atomic_store(&begun, 0);
        const double start = seconds();
        gemm_share(meet, &threads, threads, 1e9, 0);
        if (seconds() - start >= PATIENCE || atomic_load(&begun) != threads) {
            printf("not all of %d threads took a job\n", threads);
            exit(1);
        }
        /* long enough that the workers sleep */
        for (const double end = seconds() + 0.003; meeting % 2 && seconds() < end;) continue;
    }
    printf("%d threads met %d times\n", threads, MEETINGS);
}

int main(int count, char **arguments) {
    gemm_set_num_threads(THREADS); /* independent of the number of CPUs */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gemm_kernel *kernel = rows[i].kernel;
        if (count > 1 && !strstr(kernel->name, arguments[1])) continue;
        check *const agrees = !strncmp(kernel->name, "sgemm", 5)   ? check_float
                              : !strncmp(kernel->name, "dgemm", 5) ? check_double
                                                                   : NULL;
        if (agrees && runs_here(rows[i].needs)) check_kernel(kernel, agrees);
#ifdef __aarch64__
        if (agrees && strstr(rows[i].needs, "sme") && runs_here(rows[i].needs)) check_za(kernel, agrees);
#endif
        if (!runs_here(rows[i].needs)) printf("%s: this CPU lacks one of %s\n", kernel->name, rows[i].needs);
    }
    printf("%d products agree\n", done);
    check_pool();
    return 0;
}
