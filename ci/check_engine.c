/* The engine without Python: small products of many shapes, strides and scalars, whose every element must have the bits of
 * the contract's chain. KERNELS(F, D) lists rows of float, F(name), and of double, D(name). Prints how many products
 * agree; exits 1 at the first that does not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

#define DECLARE(name) extern const gemm_kernel name;
KERNELS(DECLARE, DECLARE)

enum { ROOM = 130 };
static unsigned state = 1;

static double number(void) { /* of either sign, over some binades */
    state = state * 1664525u + 1013904223u;
    const double x = (double)(state >> 8) / (1 << 24) - 0.5;
    return x * (1 << (state >> 4 & 7));
}

typedef struct product {
    int m, n, k, layout, kc; /* bits of layout: a, b, c by columns */
    double alpha, beta;
} product;

#define CHECK(T, NAME, FMA)                                                                                         \
    static int NAME(const gemm_kernel *kernel, product x) {                                                         \
        static T a[ROOM * ROOM], b[ROOM * ROOM], c[ROOM * ROOM], want[ROOM * ROOM];                                 \
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
                                .threads = 1,                                                                       \
                                .ordered = 1,                                                                       \
                                .a = as,                                                                            \
                                .b = bs,                                                                            \
                                .c = cs,                                                                            \
                                .out = cs};                                                                         \
        const gemm_scalar alpha = {.re = (T)x.alpha}, beta = {.re = (T)x.beta};                                     \
        const int result = gemm_run(&plan, a, b, x.beta == 0 ? NULL : c, c, &alpha, &beta);                         \
        return result == GEMM_OK && !memcmp(c, want, sizeof c); /* nor was anything else written */                 \
    }
CHECK(float, check_float, fmaf)
CHECK(double, check_double, fma)

typedef int check(const gemm_kernel *, product);

static int done;

static void check_kernel(const gemm_kernel *kernel, check *agrees) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 25, 31, 50, 97}, depths[] = {0, 1, 6, 37};
    static const double betas[] = {0, 1, -0.7};
    enum { SIZES = sizeof sizes / sizeof *sizes, DEPTHS = sizeof depths / sizeof *depths };
    for (int at = 0; at < SIZES * SIZES * DEPTHS; at++, done++) {
        const int row = at % SIZES, column = at / SIZES % SIZES, sum = row + column + at / (SIZES * SIZES);
        const product x = {sizes[row],        sizes[column], depths[at / (SIZES * SIZES)], at % 8, sum % 5 ? 64 : 16,
                           sum % 2 ? 1 : 1.3, betas[sum % 3]};
        if (agrees(kernel, x)) continue;
        printf("%s: %d x %d x %d, layout %d, kc %d, alpha %g, beta %g: differs\n", kernel->name, x.m, x.n, x.k,
               x.layout, x.kc, x.alpha, x.beta);
        exit(1);
    }
}

int main(void) {
    static check *const checks[] = {check_float, check_double};
#define FLOAT(name) check_kernel(&name, checks[0]);
#define DOUBLE(name) check_kernel(&name, checks[1]);
    KERNELS(FLOAT, DOUBLE)
    printf("%d products agree\n", done);
    return 0;
}
