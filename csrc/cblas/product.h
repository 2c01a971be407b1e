/* BLAS's GEMM calls, as interface.c passes them to product.c. */
#ifndef GEMM_CBLAS_PRODUCT_H
#define GEMM_CBLAS_PRODUCT_H

#include "gemm.h"

typedef enum blas_type { BLAS_S, BLAS_D, BLAS_C, BLAS_Z, BLAS_TYPES } blas_type;

/* The arguments of cblas_?gemm, except the matrices. */
typedef struct blas_call {
    blas_type type;
    int layout, transa, transb, m, n, k, lda, ldb, ldc;
    gemm_scalar alpha, beta;
} blas_call;

/* Return the position of the first illegal argument in cblas_?gemm, counted from 1, or 0. blas_wrong_number checks the
 * numbers. blas_wrong_matrix checks that the matrices' addresses are multiples of the size of a real number. */
int blas_wrong_number(const blas_call *x);
int blas_wrong_matrix(const blas_call *x, const void *a, const void *b, const void *c);

/* Compute legal products: blas_run a single one; blas_run_strided `count` products whose operands are `strides`
 * elements apart; blas_run_listed the products first, first + 1, ... of three lists of addresses. */
void blas_run(const blas_call *x, const void *a, const void *b, void *c);
void blas_run_strided(const blas_call *x, const void *a, const void *b, void *c, const int64_t strides[3],
                      int64_t count);
void blas_run_listed(const blas_call *x, const void *a, const void *b, const void *c, int64_t first, int64_t count);

/* Returns entry i of a list of addresses, whatever its declared type. */
void *blas_listed(const void *list, int64_t i);

#endif
