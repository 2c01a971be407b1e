/* BLAS's GEMM calls, as interface.c passes them to product.c. */
#ifndef GEMM_CBLAS_PRODUCT_H
#define GEMM_CBLAS_PRODUCT_H

#include "gemm.h"

typedef enum blas_type { BLAS_S, BLAS_D, BLAS_C, BLAS_Z, BLAS_TYPES } blas_type;

/* The arguments of cblas_?gemm, except the matrices. */
typedef struct blas_call {
    blas_type type;
    int layout, transa, transb;
    int64_t m, n, k, lda, ldb, ldc;
    gemm_scalar alpha, beta;
} blas_call;

/* Return the position of the first illegal argument among the arguments of cblas_?gemm, counted from 1. Return 0 if no
 * argument is illegal. blas_wrong_number checks all arguments except the matrices. blas_wrong_matrix checks that the
 * matrices' addresses are multiples of the size of a real number. */
int blas_wrong_number(const blas_call *x);
int blas_wrong_matrix(const blas_call *x, const void *a, const void *b, const void *c);

/* Compute products whose arguments are legal. blas_run computes one product. blas_run_strided computes `count` products
 * whose a, b and c are strides[0], strides[1] and strides[2] elements apart. For blas_run_listed, a, b and c are lists
 * of addresses; it computes `count` products, whose matrices are entries first, first + 1, ... of the lists. */
void blas_run(const blas_call *x, const void *a, const void *b, void *c);
void blas_run_strided(const blas_call *x, const void *a, const void *b, void *c, const int64_t strides[3],
                      int64_t count);
void blas_run_listed(const blas_call *x, const void *a, const void *b, const void *c, int64_t first, int64_t count);

/* Returns entry i of a list of addresses, whatever the list's declared type. */
void *blas_listed(const void *list, int64_t i);

#endif
