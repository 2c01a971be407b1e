// What gemm_cuda_split and gemm_cuda_emulated agree on: the exponents by which lines of an operand are scaled.
#ifndef GEMM_CUDA_PLANES
#define GEMM_CUDA_PLANES

#include "gemm.cuh"

enum : int { SPECIAL = 1 << 20 }; // of a line that has an infinity or NaN

// x * 2^n, in two steps, since 2^n itself may be out of range: |n| < 250.
INLINE float times_power(float x, int n) {
    const int half = n / 2;
    return __fmul_rn(__fmul_rn(x, __int_as_float((half + 127) << 23)), __int_as_float((n - half + 127) << 23));
}

template <class T> struct Top {}; // exponent of a line's largest element after scaling
template <> struct Top<bfloat16> {
    enum { AT = 0 };
};
template <> struct Top<float16> {
    enum { AT = 14 };
};

// Of a line whose largest magnitude has these bits.
template <class T> INLINE int exponent_of(unsigned largest) {
    if (largest == 0) return 0;
    const int normal = (int)(largest >> 23) - 127;
    return (normal > -127 ? normal : -118 - __clz(largest)) - Top<T>::AT; // the bits of 2^-149 have 31 leading zeros
}

#endif
