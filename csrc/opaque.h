/* opaque(x): a constant that is made where it is used. Compilers hoist the constants of a tile's end above its k loop, and
 * there spill accumulators for them: half the speed. */
#ifndef GEMM_LATE_H
#define GEMM_LATE_H

static inline int opaque(int x) {
#ifdef __GNUC__
    __asm__ volatile("" : "+r"(x));
#endif
    return x;
}

#endif
