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

#endif
