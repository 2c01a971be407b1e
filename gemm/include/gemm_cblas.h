/* BLAS's GEMM on the CPU engine of gemm, for programs in C and C++: link to libgemm. docs/c-api.md tells how.
 *
 *     C = alpha * op(A) * op(B) + beta * C        op(A) is m x k, op(B) k x n, C m x n
 *
 * The names, arguments and binary interface are those of CBLAS, of MKL's batches, and of Fortran's BLAS (sgemm_, ...),
 * with 32-bit integers; cblas_?gemm_64 and ?gemm_64_ have 64-bit integers. Sizes count in elements; offsets within a
 * matrix may exceed 2^31. Alpha and beta of cblas_cgemm and cblas_zgemm are pointers to one complex number, as CBLAS
 * has it.
 *
 * With beta = 0 C is never read, with alpha = 0 or k = 0 neither A nor B; NaN and infinity in what is read come through.
 * Real products have the same bits in row-major and column-major order, with any number of threads and alone or in a
 * batch, but for those of one row or column. A's and B's memory may overlap; C's must be apart from both. Every function
 * may be called by many threads at once, and after a fork.
 */
#ifndef GEMM_CBLAS_H
#define GEMM_CBLAS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cblas.h that was included before has these already, with the same values. */
#if !defined(CBLAS_H) && !defined(__MKL_CBLAS_H__) && !defined(__GSL_CBLAS_H__)
typedef enum CBLAS_LAYOUT { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_LAYOUT;
typedef enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 } CBLAS_TRANSPOSE;
#endif

/* An illegal argument: its position in the call, from 1 for `layout`, and the function's name. Nothing was computed.
 * The library's own prints a line to stderr and returns; a program's definition takes its place. */
void cblas_xerbla(int position, const char *routine, const char *form, ...);

/* One product. lda, ldb and ldc: from row to row of the matrix in memory, or from column to column by CblasColMajor. */
void cblas_sgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void cblas_dgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k, double alpha,
                 const double *a, int lda, const double *b, int ldb, double beta, double *c, int ldc);
void cblas_cgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                 const void *alpha, const void *a, int lda, const void *b, int ldb, const void *beta, void *c, int ldc);
void cblas_zgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                 const void *alpha, const void *a, int lda, const void *b, int ldb, const void *beta, void *c, int ldc);

/* The same with sizes of 64 bits. The library also has OpenBLAS's names, cblas_sgemm64_ ... */
void cblas_sgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                    float *c, int64_t ldc);
void cblas_dgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, double alpha, const double *a, int64_t lda, const double *b, int64_t ldb, double beta,
                    double *c, int64_t ldc);
void cblas_cgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                    const void *beta, void *c, int64_t ldc);
void cblas_zgemm_64(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int64_t m, int64_t n,
                    int64_t k, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                    const void *beta, void *c, int64_t ldc);

/* Groups of products: group g has group_size[g] products that share transa[g], transb[g], m[g], ... ldc[g]; a, b and c
 * list the matrices of all groups one after another. No c overlaps anything else. Every group is checked before the
 * first is computed. Alpha and beta of complex products: arrays of complex numbers. */
void cblas_sgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa, const CBLAS_TRANSPOSE *transb, const int *m,
                       const int *n, const int *k, const float *alpha, const float *const *a, const int *lda,
                       const float *const *b, const int *ldb, const float *beta, float *const *c, const int *ldc,
                       int group_count, const int *group_size);
void cblas_dgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa, const CBLAS_TRANSPOSE *transb, const int *m,
                       const int *n, const int *k, const double *alpha, const double *const *a, const int *lda,
                       const double *const *b, const int *ldb, const double *beta, double *const *c, const int *ldc,
                       int group_count, const int *group_size);
void cblas_cgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa, const CBLAS_TRANSPOSE *transb, const int *m,
                       const int *n, const int *k, const void *alpha, const void *const *a, const int *lda,
                       const void *const *b, const int *ldb, const void *beta, void *const *c, const int *ldc,
                       int group_count, const int *group_size);
void cblas_zgemm_batch(CBLAS_LAYOUT layout, const CBLAS_TRANSPOSE *transa, const CBLAS_TRANSPOSE *transb, const int *m,
                       const int *n, const int *k, const void *alpha, const void *const *a, const int *lda,
                       const void *const *b, const int *ldb, const void *beta, void *const *c, const int *ldc,
                       int group_count, const int *group_size);

/* batch_size products whose matrices lie stridea, strideb and stridec elements apart; a stride of 0 shares A or B. */
void cblas_sgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               float alpha, const float *a, int lda, int stridea, const float *b, int ldb, int strideb,
                               float beta, float *c, int ldc, int stridec, int batch_size);
void cblas_dgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               double alpha, const double *a, int lda, int stridea, const double *b, int ldb,
                               int strideb, double beta, double *c, int ldc, int stridec, int batch_size);
void cblas_cgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               const void *alpha, const void *a, int lda, int stridea, const void *b, int ldb,
                               int strideb, const void *beta, void *c, int ldc, int stridec, int batch_size);
void cblas_zgemm_batch_strided(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, int m, int n, int k,
                               const void *alpha, const void *a, int lda, int stridea, const void *b, int ldb,
                               int strideb, const void *beta, void *c, int ldc, int stridec, int batch_size);

/* The threads that any product may use, the caller's included, as of the next one; 0 restores what holds at first: the
 * CPUs that the calling thread may run on, and no more than the environment variable GEMM_NUM_THREADS says. */
int gemm_get_num_threads(void);
void gemm_set_num_threads(int threads);

#ifdef __cplusplus
}
#endif

#endif
