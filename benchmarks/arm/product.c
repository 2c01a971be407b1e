/* Compute one product of n x n matrices between the two marks that count.c recognises:  product N
 *
 * T is float or double. If KERNEL is defined, it names a gemm_kernel of our engine, which computes the product. The
 * engine's blocks then fit the caches that CACHES describes, because an emulator has no caches. If KERNEL is not
 * defined, CBLAS names a function of a BLAS library, which computes the product. */
#include <stdio.h>
#include <stdlib.h>

#ifdef KERNEL
#include "gemm.h"
extern const gemm_kernel KERNEL;

static int multiply(int n, const T *a, const T *b, T *c) {
    gemm_caches caches = {.source = ""};
    int64_t sizes[3];
    if (!gemm_parse_caches(&caches, CACHES)) return 1;
    gemm_block_sizes(&KERNEL, &caches, n, sizes);
    const gemm_plan plan = {.kernel = &KERNEL,
                            .m = n,
                            .n = n,
                            .k = n,
                            .mc = sizes[0],
                            .kc = sizes[1],
                            .nc = sizes[2],
                            .threads = 1,
                            .a = {n, 1, NULL},
                            .b = {n, 1, NULL},
                            .c = {n, 1, NULL},
                            .out = {n, 1, NULL}};
    const gemm_scalar one = {.re = 1, .integer = 1}, none = {0};
    return gemm_run(&plan, a, b, NULL, c, &one, &none);
}
#else
extern void CBLAS(int, int, int, int, int, int, T, const T *, int, const T *, int, T, T *, int);

static int multiply(int n, const T *a, const T *b, T *c) {
    enum { ROW_MAJOR = 101, PLAIN = 111 };
    CBLAS(ROW_MAJOR, PLAIN, PLAIN, n, n, n, 1, a, n, b, n, 0, c, n);
    return 0;
}
#endif

int main(int count, char **words) {
    const int n = count > 1 ? atoi(words[1]) : 0;
    T *const a = (T *)calloc((size_t)n * n, sizeof(T)), *const b = (T *)calloc((size_t)n * n, sizeof(T));
    T *const c = (T *)calloc((size_t)n * n, sizeof(T));
    if (n < 1 || !a || !b || !c) return 1;
    for (int i = 0; i < n * n; i++) a[i] = (T)(i % 7 - 3), b[i] = (T)(i % 5 - 2);
    if (multiply(n < 32 ? n : 32, a, b, c)) return 2; /* let the library initialise itself */
    __asm__ volatile("mov x11, x11" ::: "memory");
    const int failed = multiply(n, a, b, c);
    __asm__ volatile("mov x12, x12" ::: "memory");
    for (int i = 0; i < n; i++) {   /* operands are small integers, so results are exact in any order */
        const int at = i * (n - 1); /* elements of the antidiagonal, except its last one, and element 0 */
        T sum = 0;
        for (int p = 0; p < n; p++) sum += a[at / n * n + p] * b[p * n + at % n];
        if (c[at] != sum) return 3;
    }
    printf("%d\n", n);
    return failed;
}
