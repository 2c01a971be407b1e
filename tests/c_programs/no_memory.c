/* Products while no memory is to be had, set against those with memory: linked with -Wl,--wrap=malloc to libgemm.a. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gemm_cblas.h"

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static int empty;
static long refused;

void *__wrap_malloc(size_t size) {
    refused += empty;
    return empty ? NULL : __real_malloc(size);
}

enum { M = 150, N = 300, K = 700, MANY = 90 };

/* Room for `count` doubles, full of doubles or of floats. */
static void fill(double *x, size_t count, int floats) {
    for (size_t i = 0; i < count; i++) x[i] = rand() / (double)RAND_MAX - .5;
    for (size_t i = 0; floats && i < 2 * count; i++) ((float *)x)[i] = (float)(rand() / (double)RAND_MAX - .5);
}

static double *room(size_t count) {
    return (double *)malloc(count * sizeof(double));
}

int main(void) {
    double *a = room(2 * M * K), *b = room(2 * K * N), *first = room(2 * M * N), *second = room(2 * M * N);
    const double alpha[2] = {.5, .25}, beta[2] = {2, -1};
    const float alphas[2] = {.5f, .25f}, betas[2] = {2, -1};
    const double *as[MANY], *bs[MANY];
    double *cs[MANY];
    const CBLAS_TRANSPOSE none = CblasNoTrans, turned = CblasTrans;
    const int few = 9, count = MANY, k = K;
    if (!a || !b || !first || !second) return 2;
    for (int type = 0; type < 5; type++) {
        const int floats = type == 0 || type == 2;
        fill(a, 2 * M * K, floats), fill(b, 2 * K * N, floats), fill(first, 2 * M * N, floats);
        memcpy(second, first, 2 * M * N * sizeof *first);
        double *const results[] = {first, second};
        for (empty = 0; empty < 2; empty++) {
            double *c = results[empty];
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
            else
                cblas_dgemm_batch(CblasRowMajor, &none, &turned, &few, &few, &k, alpha, as, &k, bs, &k, beta, cs, &few,
                                  1, &count);
            if (empty && !refused) return 3;
        }
        empty = 0;
        if (memcmp(first, second, 2 * M * N * sizeof *first)) return 10 + type;
    }
    puts("the same bits");
    return 0;
}
