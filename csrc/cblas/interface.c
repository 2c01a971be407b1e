/* The functions of gemm_cblas.h and those of Fortran's BLAS. This file checks the arguments and reports errors. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "gemm_cblas.h"
#include "product.h"

#ifdef __GNUC__
#define EXPORT __attribute__((visibility("default")))
#define REPLACEABLE __attribute__((weak)) /* a program's own definition has priority, even over the static library */
#else
#define EXPORT
#define REPLACEABLE
#endif

EXPORT REPLACEABLE void cblas_xerbla(int position, const char *routine, const char *form, ...) {
    va_list more;
    fprintf(stderr, "Parameter %d to routine %s was incorrect\n", position, routine);
    va_start(more, form);
    vfprintf(stderr, form, more);
    va_end(more);
}

/* The error handler of Fortran's BLAS. The string `routine` has no terminator. As usual in Fortran, the compiler passes
 * its length after the other arguments. */
EXPORT REPLACEABLE void xerbla_(const char *routine, const int *position, size_t length);

void xerbla_(const char *routine, const int *position, size_t length) {
    fprintf(stderr, "Parameter %d to routine %.*s was incorrect\n", *position, (int)length, routine);
}

static gemm_scalar scalar(blas_type type, const void *list, int i) {
    const float *f = (const float *)list;
    const double *d = (const double *)list;
    switch (type) {
    case BLAS_S:
        return (gemm_scalar){.re = f[i]};
    case BLAS_D:
        return (gemm_scalar){.re = d[i]};
    case BLAS_C:
        return (gemm_scalar){.re = f[2 * (ptrdiff_t)i], .im = f[2 * (ptrdiff_t)i + 1]};
    default:
        return (gemm_scalar){.re = d[2 * (ptrdiff_t)i], .im = d[2 * (ptrdiff_t)i + 1]};
    }
}

static void single(const char *routine, const blas_call *x, const void *a, const void *b, void *c) {
    int wrong = blas_wrong_number(x);
    if (!wrong) wrong = blas_wrong_matrix(x, a, b, c);
    if (wrong)
        cblas_xerbla(wrong, routine, "");
    else
        blas_run(x, a, b, c);
}

static int trans_of(const char *letter) {
    switch (*letter) {
    case 'N':
    case 'n':
        return CblasNoTrans;
    case 'T':
    case 't':
        return CblasTrans;
    case 'C':
    case 'c':
        return CblasConjTrans;
    default:
        return 0;
    }
}

static void fortran(const char *routine, const blas_call *x, const void *a, const void *b, void *c) {
    int wrong = blas_wrong_number(x);
    if (!wrong) wrong = blas_wrong_matrix(x, a, b, c);
    wrong -= 1; /* Fortran's routines have no layout argument, the first argument of cblas_?gemm */
    if (wrong > 0)
        xerbla_(routine, &wrong, 6);
    else
        blas_run(x, a, b, c);
}

static void strided(const char *routine, const blas_call *x, const void *a, const void *b, void *c,
                    const int64_t strides[3], int count) {
    int wrong = blas_wrong_number(x);
    if (!wrong) wrong = blas_wrong_matrix(x, a, b, c);
    /* In cblas_?gemm_batch_strided, a's stride follows lda (argument 9) and b's stride follows ldb (argument 11 of
     * cblas_?gemm). The positions of later arguments are therefore 1 or 2 higher than in cblas_?gemm. */
    wrong += (wrong > 9) + (wrong > 11);
    if (!wrong && count < 0) wrong = 18;
    if (wrong)
        cblas_xerbla(wrong, routine, "");
    else
        blas_run_strided(x, a, b, c, strides, count);
}

/* The arguments of cblas_?gemm_batch. alpha and beta point to numbers of `type`; a, b and c are lists of addresses of
 * matrices. `count` is the number of groups, `sizes` has the number of products of each group. */
typedef struct groups {
    blas_type type;
    int layout;
    const CBLAS_TRANSPOSE *transa, *transb;
    const int *m, *n, *k;
    const void *alpha, *a;
    const int *lda;
    const void *b;
    const int *ldb;
    const void *beta, *c;
    const int *ldc;
    int count;
    const int *sizes;
} groups;

static blas_call group(const groups *all, int g) {
    return (blas_call){.type = all->type,
                       .layout = all->layout,
                       .transa = (int)all->transa[g],
                       .transb = (int)all->transb[g],
                       .m = all->m[g],
                       .n = all->n[g],
                       .k = all->k[g],
                       .lda = all->lda[g],
                       .ldb = all->ldb[g],
                       .ldc = all->ldc[g],
                       .alpha = scalar(all->type, all->alpha, g),
                       .beta = scalar(all->type, all->beta, g)};
}

static int wrong_in(const groups *all) {
    if (all->count < 0) return 15;
    int64_t first = 0;
    for (int g = 0; g < all->count; first += all->sizes[g++]) {
        const blas_call x = group(all, g);
        int wrong = blas_wrong_number(&x);
        if (!wrong && all->sizes[g] < 0) wrong = 16;
        for (int64_t i = first; !wrong && i < first + all->sizes[g]; i++)
            wrong = blas_wrong_matrix(&x, blas_listed(all->a, i), blas_listed(all->b, i), blas_listed(all->c, i));
        if (wrong) return wrong;
    }
    return 0;
}

static void batch(const char *routine, const groups *all) {
    const int wrong = wrong_in(all);
    if (wrong) {
        cblas_xerbla(wrong, routine, "");
        return;
    }
    int64_t first = 0;
    for (int g = 0; g < all->count; first += all->sizes[g++]) {
        const blas_call x = group(all, g);
        blas_run_listed(&x, all->a, all->b, all->c, first, all->sizes[g]);
    }
}

#define CALL(TYPE, LAYOUT, TRANSA, TRANSB, M, N, K, ALPHA, LDA, LDB, BETA, LDC) \
    {.type = TYPE,                                                              \
     .layout = (int)(LAYOUT),                                                   \
     .transa = (int)(TRANSA),                                                   \
     .transb = (int)(TRANSB),                                                   \
     .m = M,                                                                    \
     .n = N,                                                                    \
     .k = K,                                                                    \
     .lda = LDA,                                                                \
     .ldb = LDB,                                                                \
     .ldc = LDC,                                                                \
     .alpha = scalar(TYPE, ALPHA, 0),                                           \
     .beta = scalar(TYPE, BETA, 0)}

/* CBLAS_ROUTINE and FORTRAN_ROUTINE define the routine NAME, which computes one product. INT: the type of the sizes. S:
 * the letter of the type in BLAS. SCALAR: the type of alpha and beta in cblas_?gemm. AT: the operator that makes an
 * address of a SCALAR; empty if SCALAR is a pointer. T: the type to which pointers to matrices point. */
#define CBLAS_ROUTINE(NAME, INT, S, SCALAR, AT, T)                                                                    \
    EXPORT void NAME(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, INT m, INT n, INT k,        \
                     SCALAR alpha, const T *a, INT lda, const T *b, INT ldb, SCALAR beta, T *c, INT ldc);             \
                                                                                                                      \
    void NAME(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, INT m, INT n, INT k, SCALAR alpha, \
              const T *a, INT lda, const T *b, INT ldb, SCALAR beta, T *c, INT ldc) {                                 \
        const blas_call x = CALL(BLAS_##S, layout, transa, transb, m, n, k, AT alpha, lda, ldb, AT beta, ldc);        \
        single(#NAME, &x, a, b, c);                                                                                   \
    }

#define FORTRAN_ROUTINE(NAME, INT, S, T)                                                                               \
    EXPORT void NAME(const char *transa, const char *transb, const INT *m, const INT *n, const INT *k, const T *alpha, \
                     const T *a, const INT *lda, const T *b, const INT *ldb, const T *beta, T *c, const INT *ldc);     \
                                                                                                                       \
    void NAME(const char *transa, const char *transb, const INT *m, const INT *n, const INT *k, const T *alpha,        \
              const T *a, const INT *lda, const T *b, const INT *ldb, const T *beta, T *c, const INT *ldc) {           \
        const blas_call x = CALL(BLAS_##S, CblasColMajor, trans_of(transa), trans_of(transb), *m, *n, *k, alpha, *lda, \
                                 *ldb, beta, *ldc);                                                                    \
        fortran(#S "GEMM ", &x, a, b, c);                                                                              \
    }

/* Defines all routines of a type. s and S are the letter of the type. The routines of cblas with 64-bit sizes have two
 * names each: that of Netlib and MKL (_64), and that of OpenBLAS (64_). For Fortran's routine, all of these libraries
 * use the name ?gemm_64_. */
#define ROUTINES(s, S, SCALAR, AT, T)                                                                                  \
    CBLAS_ROUTINE(cblas_##s##gemm, int, S, SCALAR, AT, T)                                                              \
    CBLAS_ROUTINE(cblas_##s##gemm_64, int64_t, S, SCALAR, AT, T)                                                       \
    CBLAS_ROUTINE(cblas_##s##gemm64_, int64_t, S, SCALAR, AT, T)                                                       \
    FORTRAN_ROUTINE(s##gemm_, int, S, T)                                                                               \
    FORTRAN_ROUTINE(s##gemm_64_, int64_t, S, T)                                                                        \
                                                                                                                       \
    EXPORT void cblas_##s##gemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb,     \
                                              int m, int n, int k, SCALAR alpha, const T *a, int lda, int stridea,     \
                                              const T *b, int ldb, int strideb, SCALAR beta, T *c, int ldc,            \
                                              int stridec, int batch_size) {                                           \
        const blas_call x = CALL(BLAS_##S, layout, transa, transb, m, n, k, AT alpha, lda, ldb, AT beta, ldc);         \
        strided("cblas_" #s "gemm_batch_strided", &x, a, b, c, (const int64_t[]){stridea, strideb, stridec},           \
                batch_size);                                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    EXPORT void cblas_##s##gemm_batch(                                                                                 \
        CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa, const CBLAS_TRANSPOSE *transb, const int *m, const int *n, \
        const int *k, const T *alpha, const T *const *a, const int *lda, const T *const *b, const int *ldb,            \
        const T *beta, T *const *c, const int *ldc, int group_count, const int *group_size) {                          \
        const groups all = {BLAS_##S, (int)layout, transa, transb, m, n,   k,           alpha,     a,                  \
                            lda,      b,           ldb,    beta,   c, ldc, group_count, group_size};                   \
        batch("cblas_" #s "gemm_batch", &all);                                                                         \
    }

ROUTINES(s, S, float, &, float)
ROUTINES(d, D, double, &, double)
ROUTINES(c, C, const void *, , void)
ROUTINES(z, Z, const void *, , void)
