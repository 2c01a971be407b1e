/* Compiler directives. EACH is a loop that the compiler must unroll completely. The loops over a tile need this:
 * otherwise the compiler keeps the accumulators in memory. */
#ifndef GEMM_PANEL_COMPILER_H
#define GEMM_PANEL_COMPILER_H

#if defined(__clang__)
#define EACH(i, count) _Pragma("clang loop unroll(full)") for (int i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))
#elif defined(__GNUC__)
#define EACH(i, count) _Pragma("GCC unroll 64") for (int i = 0; i < (count); i++)
#define INLINE static inline __attribute__((always_inline))
#else
#define EACH(i, count) for (int i = 0; i < (count); i++)
#define INLINE static __forceinline
#endif
#ifdef __GNUC__
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) (void)(p)
#endif
#ifndef TARGET
#define TARGET
#endif

#include <stdint.h>

/* The start of the block of `depth` steps along k after the block at p. If `depth` does not divide k >= depth, the last
 * block starts before the end of the block before it. After the last block, returns k. */
static inline int64_t next_block(int64_t p, int64_t depth, int64_t k) {
    const int64_t next = p + depth;
    return next < k && next + depth > k ? k - depth : next;
}

#endif
