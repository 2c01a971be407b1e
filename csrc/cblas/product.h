/* BLAS's GEMM as the driver's: what interface.c hands to product.c. */
#ifndef GEMM_CBLAS_PRODUCT_H
#define GEMM_CBLAS_PRODUCT_H

#include "gemm.h"

typedef enum blas_type { BLAS_S, BLAS_D, BLAS_C, BLAS_Z, BLAS_TYPES } blas_type;

/* The arguments of cblas_?gemm but for the matrices. */
typedef struct blas_call {
    blas_type type;
    int layout, transa, transb, m, n, k, lda, ldb, ldc;
    gemm_scalar alpha, beta;
} blas_call;

/* The position of the first illegal argument in cblas_?gemm, from 1, or 0: of the numbers, of the matrices' addresses,
 * which must be multiples of the size of a real number. */
int blas_wrong_number(const blas_call *x);
int blas_wrong_matrix(const blas_call *x, const void *a, const void *b, const void *c);

/* A legal product; `count` of them, `strides` elements apart; products first, first + 1, ... of three lists of addresses. */
void blas_run(const blas_call *x, const void *a, const void *b, void *c);
void blas_run_strided(const blas_call *x, const void *a, const void *b, void *c, const int64_t strides[3],
                      int64_t count);
void blas_run_listed(const blas_call *x, const void *a, const void *b, const void *c, int64_t first, int64_t count);

/* Entry i of a list of addresses, whatever they are declared to point to. */
void *blas_listed(const void *list, int64_t i);

#endif
