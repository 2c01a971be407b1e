/* opaque(x) returns the constant x but hides its value from the compiler, which therefore creates the constant where it
 * is used. Otherwise compilers load the constants of a tile's epilogue before the k loop and spill accumulators to make
 * room for them, which halves the speed. */
#ifndef GEMM_OPAQUE_H
#define GEMM_OPAQUE_H

static inline int opaque(int x) {
#ifdef __GNUC__
    __asm__ volatile("" : "+r"(x));
#endif
    return x;
}

#endif
