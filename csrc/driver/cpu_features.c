/* Which instruction sets this CPU has and its operating system saves. */
#include "gemm.h"

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
#endif

const char *const gemm_feature_names[] = {"avx2", "fma", "avx512f", "neon", 0};

#if defined(__x86_64__) || defined(_M_X64)
const char *const gemm_architecture = "x86_64";
#elif defined(__aarch64__) || defined(_M_ARM64)
const char *const gemm_architecture = "aarch64";
#else
const char *const gemm_architecture = "other";
#endif

uint32_t gemm_features(void) {
    uint32_t found = 0;
#if defined(__GNUC__) && defined(__x86_64__)
    /* a load: the compiler's run-time library asked cpuid and xgetbv (does the OS save the registers?) at start-up */
    if (__builtin_cpu_supports("avx2")) found |= GEMM_AVX2;
    if (__builtin_cpu_supports("fma")) found |= GEMM_FMA;
    if (__builtin_cpu_supports("avx512f")) found |= GEMM_AVX512F;
#elif defined(_MSC_VER) && defined(_M_X64)
    int leaf1[4], leaf7[4];
    __cpuid(leaf1, 1);
    __cpuidex(leaf7, 7, 0);
    if (!(leaf1[2] & 1 << 27)) return 0; /* no OSXSAVE: xgetbv would be illegal */
    const uint64_t state = _xgetbv(0);
    if ((state & 0x06) == 0x06) {
        if (leaf7[1] & 1 << 5) found |= GEMM_AVX2;
        if (leaf1[2] & 1 << 12) found |= GEMM_FMA;
        if ((state & 0xE0) == 0xE0 && leaf7[1] & 1 << 16) found |= GEMM_AVX512F;
    }
#elif defined(__aarch64__) || defined(_M_ARM64)
    found |= GEMM_NEON; /* asimd is part of every AArch64 that runs an operating system's binaries */
#endif
    return found;
}
