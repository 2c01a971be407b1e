// The element types of the CUDA kernels, their arithmetic and conversions. Narrow floats are stored as their bits.
//
// Kernels accumulate, scale and add the bias in Scale<type of the result>: float for float and narrower floats, double
// for double, complex for complex. Integers are computed modulo 2^32 or 2^64; narrower results keep the low bits.
#ifndef GEMM_CUDA_NUMBER
#define GEMM_CUDA_NUMBER

#include "ptx.cuh"

#define INLINE static __device__ __forceinline__

typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef int int32;
typedef long long int64;

struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};
struct e4m3 { // the format e4m3fn: no infinity, and one NaN of each sign
    unsigned char bits;
};
struct e5m2 { // has the layout of the upper byte of a float16
    unsigned char bits;
};
struct alignas(8) complex64 {
    float re, im;
};
struct alignas(16) complex128 {
    double re, im;
};

// N adjacent elements that one instruction loads or stores.
template <class T, int N> struct alignas(sizeof(T) * N) Vector {
    T at[N];
};

template <class T> struct Scale {
    typedef T type;
};
template <> struct Scale<float16> {
    typedef float type;
};
template <> struct Scale<bfloat16> {
    typedef float type;
};
template <> struct Scale<int8> {
    typedef unsigned type;
};
template <> struct Scale<uint8> {
    typedef unsigned type;
};
template <> struct Scale<int16> {
    typedef unsigned type;
};
template <> struct Scale<int32> {
    typedef unsigned type;
};
template <> struct Scale<int64> {
    typedef unsigned long long type;
};

// Arithmetic in which each step is rounded once, whatever the compiler flags are.

INLINE float multiply(float x, float y) {
    return __fmul_rn(x, y);
}
INLINE double multiply(double x, double y) {
    return __dmul_rn(x, y);
}
INLINE float multiply_add(float x, float y, float z) {
    return __fmaf_rn(x, y, z);
}
INLINE double multiply_add(double x, double y, double z) {
    return __fma_rn(x, y, z);
}
INLINE float add(float x, float y) {
    return __fadd_rn(x, y);
}
INLINE double add(double x, double y) {
    return __dadd_rn(x, y);
}
template <class T> INLINE T multiply(T x, T y) {
    return x * y;
}
template <class T> INLINE T multiply_add(T x, T y, T z) {
    return x * y + z;
}
template <class T> INLINE T add(T x, T y) {
    return x + y;
}

// Complex arithmetic: four real operations in the order of csrc/complex.h, without tests for infinities. csrc/complex.h
// explains why a real alpha or beta scales the real and imaginary parts separately.
template <class T> INLINE T complex_multiply(T s, T x) {
    if (s.im == 0) return T{multiply(s.re, x.re), multiply(s.re, x.im)};
    return T{multiply_add(-s.im, x.im, multiply(s.re, x.re)), multiply_add(s.im, x.re, multiply(s.re, x.im))};
}
template <class T> INLINE T complex_scale_add(T s, T x, T y) {
    const T sum = {multiply_add(s.re, x.re, y.re), multiply_add(s.re, x.im, y.im)};
    if (s.im == 0) return sum;
    return T{multiply_add(-s.im, x.im, sum.re), multiply_add(s.im, x.re, sum.im)};
}
template <class T> INLINE T complex_multiply_add(T x, T y, T z) {
    return T{multiply_add(-x.im, y.im, multiply_add(x.re, y.re, z.re)),
             multiply_add(x.im, y.re, multiply_add(x.re, y.im, z.im))};
}
INLINE complex64 multiply(complex64 x, complex64 y) {
    return complex_multiply(x, y);
}
INLINE complex128 multiply(complex128 x, complex128 y) {
    return complex_multiply(x, y);
}
INLINE complex64 multiply_add(complex64 x, complex64 y, complex64 z) {
    return complex_multiply_add(x, y, z);
}
INLINE complex128 multiply_add(complex128 x, complex128 y, complex128 z) {
    return complex_multiply_add(x, y, z);
}
INLINE complex64 add(complex64 x, complex64 y) {
    return complex64{add(x.re, y.re), add(x.im, y.im)};
}
INLINE complex128 add(complex128 x, complex128 y) {
    return complex128{add(x.re, y.re), add(x.im, y.im)};
}

// s * x + y: the epilogue computes beta * c + t.
template <class T> INLINE T scale_add(T s, T x, T y) {
    return multiply_add(s, x, y);
}
INLINE complex64 scale_add(complex64 s, complex64 x, complex64 y) {
    return complex_scale_add(s, x, y);
}
INLINE complex128 scale_add(complex128 s, complex128 x, complex128 y) {
    return complex_scale_add(s, x, y);
}

// Conversions. Widening is exact. Narrowing rounds to nearest even; overflow gives infinity, and NaN stays NaN.

INLINE float widen(float16 x) {
    return f16_to_float(x.bits);
}
INLINE float widen(bfloat16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}
INLINE float widen(e5m2 x) {
    return widen(float16{(unsigned short)(x.bits << 8)});
}
INLINE float widen(e4m3 x) {
    const unsigned magnitude = x.bits & 0x7Fu, sign = (x.bits & 0x80u) << 24;
    // 2^(127 - 7) corrects the exponent bias (7 for e4m3, 127 for float). The product is exact, also for subnormals.
    const float value = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f);
    return __uint_as_float((magnitude == 0x7F ? 0x7FC00000u : __float_as_uint(value)) | sign);
}
template <class T> INLINE T widen(T x) {
    return x;
}

template <class T> struct Narrow {
    template <class S> static __device__ __forceinline__ T from(S x) {
        return (T)x;
    }
};
template <> struct Narrow<bfloat16> {
    static __device__ __forceinline__ bfloat16 from(float x) {
#if __CUDA_ARCH__ >= 800
        return bfloat16{float_to_bf16(x)};
#else
        const unsigned bits = __float_as_uint(x);
        const unsigned rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        return bfloat16{(unsigned short)(x == x ? rounded : bits >> 16 | 0x40)};
#endif
    }
};
template <> struct Narrow<float16> {
    static __device__ __forceinline__ float16 from(float x) {
        return float16{float_to_f16(x)};
    }
};
template <class T, class S> INLINE T narrow(S x) {
    return Narrow<T>::from(x);
}

#endif
