// The exponents that scale the rows (columns) of a split operand, shared by gemm_cuda_split and gemm_cuda_emulated.
#ifndef GEMM_CUDA_PLANES
#define GEMM_CUDA_PLANES

#include "gemm.cuh"

enum : int { SPECIAL = 1 << 20 }; // the exponent of a row or column that contains an infinity or NaN

// Returns x * 2^n for |n| < 250. Multiplies in two steps, because float cannot represent 2^n itself for every such n.
INLINE float times_power(float x, int n) {
    const int half = n / 2;
    return __fmul_rn(__fmul_rn(x, __int_as_float((half + 127) << 23)), __int_as_float((n - half + 127) << 23));
}

template <class T> struct Top {}; // exponent of the largest element of a row (column) after scaling
template <> struct Top<bfloat16> {
    enum { AT = 0 };
};
template <> struct Top<float16> {
    enum { AT = 14 };
};

// Returns the scaling exponent of a row (column). `largest` is the bits of the largest finite magnitude in the row
// (column).
template <class T> INLINE int exponent_of(unsigned largest) {
    if (largest == 0) return 0;
    const int normal = (int)(largest >> 23) - 127;
    // A subnormal number's exponent follows from the leading zeros of its bits: 2^-149, the smallest, has 31 of them.
    return (normal > -127 ? normal : -118 - __clz(largest)) - Top<T>::AT;
}

#endif
