/* Compares products whose memory allocations fail with products that have memory. Link it with libgemm.a and
 * -Wl,--wrap=malloc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm_cblas.h"

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static int no_memory;
static long refused;

void *__wrap_malloc(size_t size) {
    refused += no_memory;
    return no_memory ? NULL : __real_malloc(size);
}

enum { M = 150, N = 300, K = 700, MANY = 50, SIDE = 100 };

/* Fills the memory of `count` doubles with doubles or with floats. */
static void fill(double *x, size_t count, int floats) {
    for (size_t i = 0; i < count; i++) x[i] = rand() / (double)RAND_MAX - .5;
    for (size_t i = 0; floats && i < 2 * count; i++) ((float *)x)[i] = (float)(rand() / (double)RAND_MAX - .5);
}

static double *allocate(size_t count) {
    return (double *)malloc(count * sizeof(double));
}

int main(void) {
    double *a = allocate(2 * M * K), *b = allocate(2 * K * N), *first = allocate(2 * M * N),
           *second = allocate(2 * M * N);
    const double alpha[2] = {.5, .25}, beta[2] = {2, -1};
    const float alphas[2] = {.5f, .25f}, betas[2] = {2, -1};
    const double *as[MANY], *bs[MANY];
    double *cs[MANY];
    const CBLAS_TRANSPOSE none = CblasNoTrans, transposed = CblasTrans;
    const int few = 40, count = MANY, k = K; /* with 40, one thread also needs more workspace than the stack has */
    if (!a || !b || !first || !second) return 2;
    for (int type = 0; type < 7; type++) {
        const int floats = type == 0 || type == 2 || type == 5;
        fill(a, 2 * M * K, floats), fill(b, 2 * K * N, floats), fill(first, 2 * M * N, floats);
        memcpy(second, first, 2 * M * N * sizeof *first);
        double *const results[] = {first, second};
        for (no_memory = 0; no_memory < 2; no_memory++) {
            double *c = results[no_memory];
            refused = 0;
            for (int i = 0; i < MANY; i++) as[i] = a + i, bs[i] = b + i, cs[i] = c + i * few * few;
            if (type == 0)
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, .5f, (float *)a, K, (float *)b, K, 2.f,
                            (float *)c, N);
            else if (type == 1)
                cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, M, N, K, .5, a, K, b, K, 2, c, M);
            else if (type == 2)
                cblas_cgemm(CblasRowMajor, CblasConjTrans, CblasNoTrans, M, N, K, alphas, a, M, b, N, betas, c, N);
            else if (type == 3)
                cblas_zgemm(CblasColMajor, CblasNoTrans, CblasConjTrans, M, N, K, alpha, a, M, b, N, beta, c, M);
            else if (type == 5) /* raw sums and copies of C at the same time: the largest workspace */
                cblas_sgemm(CblasRowMajor, CblasTrans, CblasTrans, SIDE, SIDE, K, .5f, (float *)a, SIDE, (float *)b, K,
                            2.f, (float *)c, SIDE);
            else if (type == 6)
                cblas_dgemm(CblasRowMajor, CblasTrans, CblasTrans, SIDE, SIDE, K, .5, a, SIDE, b, K, 2, c, SIDE);
            else
                cblas_dgemm_batch(CblasRowMajor, &none, &transposed, &few, &few, &k, alpha, as, &k, bs, &k, beta, cs,
                                  &few, 1, &count);
            if (no_memory && !refused) return 3;
        }
        no_memory = 0;
        if (memcmp(first, second, 2 * M * N * sizeof *first)) return 10 + type;
    }
    puts("the same bits");
    return 0;
}
