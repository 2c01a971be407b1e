/* Makes illegal calls of every routine and prints what the library reports for each: "position routine". With
 * -DHANDLERS, this program defines the error handlers; otherwise it uses the library's. Exits with 1 if an illegal call
 * wrote to C, or if a legal call after them fails. */
#include <stdio.h>
#include <string.h>

#include "gemm_cblas.h"

void sgemm_(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
            const int *, const float *, const int *, const float *, float *, const int *);
void zgemm_(const char *, const char *, const int *, const int *, const int *, const void *, const void *, const int *,
            const void *, const int *, const void *, void *, const int *);

#ifdef HANDLERS
void cblas_xerbla(int position, const char *routine, const char *form, ...) {
    printf("%d %s%s\n", position, routine, form);
}

void xerbla_(const char *routine, const int *position, size_t length) {
    printf("%d %.*s\n", *position, (int)length, routine);
}
#endif

enum { R = CblasRowMajor, F = CblasColMajor, N = CblasNoTrans, T = CblasTrans, C = CblasConjTrans };

int main(void) {
    float a[16] = {0}, b[16] = {0}, c[16], one = 1;
    double za[32] = {0}, zc[32], zone[2] = {1, 0};
    const float *as[2] = {a, a}, *bs[2] = {b, b};
    float *cs[2] = {c, c + 4};
    memset(c, 1, sizeof c), memset(zc, 1, sizeof zc);

#define S(layout, ta, tb, m, n, k, lda, ldb, ldc) \
    cblas_sgemm((CBLAS_LAYOUT)layout, (CBLAS_TRANSPOSE)ta, (CBLAS_TRANSPOSE)tb, m, n, k, 1, a, lda, b, ldb, 0, c, ldc)
    S(0, N, N, 2, 2, 2, 2, 2, 2);
    S(R, 0, N, 2, 2, 2, 2, 2, 2);
    S(R, N, 114, 2, 2, 2, 2, 2, 2);
    S(R, N, N, -1, 2, 2, 2, 2, 2);
    S(R, N, N, 2, -1, 2, 2, 2, 2);
    S(R, N, N, 2, 2, -1, 2, 2, 2);
    S(R, N, N, 1, 1, 2, 1, 1, 1); /* a row of A has 2 elements */
    S(F, N, N, 2, 1, 1, 1, 1, 2);
    S(R, T, N, 2, 1, 1, 1, 1, 1);
    S(R, N, N, 1, 2, 1, 1, 1, 2);
    S(F, N, T, 1, 2, 1, 1, 1, 1);
    S(R, N, N, 1, 2, 1, 1, 2, 1);
    S(F, N, N, 2, 1, 1, 2, 1, 1);
    S(R, N, N, 0, 0, 0, 0, 1, 1); /* illegal although the product is empty */
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, (float *)((char *)a + 1), 1, b, 1, 0, c, 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, a, 1, (float *)((char *)b + 2), 1, 0, c, 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, a, 1, b, 1, 0, (float *)((char *)c + 2), 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 0, 1, a, 1, b, 1, 1, (float *)((char *)c + 1), 1);
    cblas_zgemm(CblasRowMajor, CblasConjTrans, CblasNoTrans, 1, 1, 1, zone, za, 1, za, 1, zone, (char *)zc + 4, 1);

#define STRIDED(m, lda, ldb, ldc, b, size)                                                                            \
    cblas_sgemm_batch_strided(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, 2, 2, 1, a, lda, 4, b, ldb, 4, 0, c, ldc, \
                              4, size)
    STRIDED(-1, 2, 2, 2, b, 1);
    STRIDED(2, 1, 2, 2, b, 1);
    STRIDED(2, 2, 1, 2, b, 1);
    STRIDED(2, 2, 2, 1, b, 1);
    STRIDED(2, 2, 2, 2, (float *)((char *)b + 2), 1);
    STRIDED(2, 2, 2, 2, b, -1);
    cblas_sgemm_batch_strided(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1, a, 2, 4, b, 2, 4, 0,
                              (float *)((char *)c + 1), 2, 4, 1);

    /* The second group is illegal. Then the first group must not be computed, either. */
    const CBLAS_TRANSPOSE none[2] = {CblasNoTrans, CblasNoTrans};
    const int two[2] = {2, 2}, short_line[2] = {2, 1}, sizes[2] = {1, 1}, negative[2] = {1, -1};
    const float ones[2] = {1, 1}, zeros[2] = {0, 0};
#define BATCH(ldb, count, sizes) \
    cblas_sgemm_batch(CblasRowMajor, none, none, two, two, two, ones, as, two, bs, ldb, zeros, cs, two, count, sizes)
    BATCH(short_line, 2, sizes);
    BATCH(two, -1, sizes);
    BATCH(two, 2, negative);

    const int i2 = 2, i1 = 1, less = -1;
    sgemm_("X", "N", &i2, &i2, &i2, &one, a, &i2, b, &i2, &one, c, &i2);
    sgemm_("n", "q", &i2, &i2, &i2, &one, a, &i2, b, &i2, &one, c, &i2);
    sgemm_("n", "t", &less, &i2, &i2, &one, a, &i2, b, &i2, &one, c, &i2);
    sgemm_("N", "T", &i2, &i2, &i2, &one, a, &i1, b, &i2, &one, c, &i2);
    sgemm_("N", "C", &i2, &i2, &i2, &one, a, &i2, b, &i1, &one, c, &i2);
    zgemm_("C", "c", &i2, &i2, &i2, zone, za, &i2, za, &i2, zone, zc, &i1);

    for (size_t i = 0; i < sizeof c; i++)
        if (((char *)c)[i] != 1) return 1;
    for (size_t i = 0; i < sizeof zc; i++)
        if (((char *)zc)[i] != 1) return 1;
    a[0] = 3, b[0] = 5;
    S(R, N, N, 1, 1, 1, 1, 1, 1);
    return c[0] != 15;
}
