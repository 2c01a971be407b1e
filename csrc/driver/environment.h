/* The floating-point environment of a product: round to nearest, keep subnormals, trap nothing. gemm_set_environment
 * sets this environment, whatever mode the caller or another library has set. (For example, the start-up code of
 * -ffast-math sets flush-to-zero for a whole process.) gemm_restore_environment restores the caller's environment,
 * including its status flags. */
#ifndef GEMM_ENVIRONMENT_H
#define GEMM_ENVIRONMENT_H

#include <stdint.h>

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>

typedef struct gemm_environment {
    unsigned mxcsr;
} gemm_environment;

static inline gemm_environment gemm_set_environment(void) {
    const gemm_environment saved = {_mm_getcsr()};
    if ((saved.mxcsr & ~0x3Fu) != 0x1F80)
        _mm_setcsr(0x1F80); /* only if necessary: a write costs more than a read. The low 6 bits are status flags. */
    return saved;
}

static inline void gemm_restore_environment(gemm_environment saved) {
    _mm_setcsr(saved.mxcsr);
}

#elif defined(__aarch64__)

typedef struct gemm_environment {
    uint64_t fpcr, fpsr;
} gemm_environment;

static inline gemm_environment gemm_set_environment(void) {
    gemm_environment saved;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved.fpcr), "=r"(saved.fpsr) : : "memory");
    /* written only if necessary, because the write stalls some cores */
    if (saved.fpcr) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return saved;
}

static inline void gemm_restore_environment(gemm_environment saved) {
    if (saved.fpcr) __asm__ volatile("msr fpcr, %0" : : "r"(saved.fpcr) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(saved.fpsr) : "memory");
}

#else /* other CPUs: no flush-to-zero mode is known that a library could set */

typedef struct gemm_environment {
    int none;
} gemm_environment;

static inline gemm_environment gemm_set_environment(void) {
    const gemm_environment saved = {0};
    return saved;
}

static inline void gemm_restore_environment(gemm_environment saved) {
    (void)saved;
}

#endif
#endif
