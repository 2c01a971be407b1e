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
#define PREFETCH_L2(p) __builtin_prefetch(p, 0, 2)
#else
#define PREFETCH(p) (void)(p)
#define PREFETCH_L2(p) (void)(p)
#endif
#ifndef TARGET
#define TARGET
#endif

#include <stdint.h>

/* For a loop over blocks of `depth` <= k steps along k. Returns the start of the block that follows the block at p, or
 * k if the block at p is the last one. If `depth` does not divide k, the last block overlaps the block before it. */
static inline int64_t next_block(int64_t p, int64_t depth, int64_t k) {
    const int64_t next = p + depth;
    return next < k && next + depth > k ? k - depth : next;
}

#endif
