// What the CUDA kernels share: element types, the arguments of a product, the order of tiles, the epilogue.
//
// A kernel's file defines its parameters' defaults and includes this. Who compiles it chooses the types with -DA_TYPE,
// -DB_TYPE and -DOUT_TYPE. Products are summed in SUM, and alpha, beta and the bias are applied in SCALE: float for
// float and all narrower ones, double, complex numbers, and integers modulo 2^32 or 2^64, of which OUT_TYPE is a part.
#ifndef GEMM_CUDA_GEMM
#define GEMM_CUDA_GEMM

#ifndef A_TYPE
#define A_TYPE float
#endif
#ifndef B_TYPE
#define B_TYPE float
#endif
#ifndef OUT_TYPE
#define OUT_TYPE float
#endif
#ifndef EPILOGUE
#define EPILOGUE 0 // 1: bias and activation too
#endif

#define INLINE static __device__ __forceinline__

#if __CUDA_ARCH__ >= 700
#define ARGUMENT const __grid_constant__ // read where the launch has put it; older chips copy what is indexed
#else
#define ARGUMENT const
#endif

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
struct e4m3 { // no infinity, and one NaN of either sign: e4m3fn
    unsigned char bits;
};
struct e5m2 { // the upper byte of a float16
    unsigned char bits;
};
struct alignas(8) complex64 {
    float re, im;
};
struct alignas(16) complex128 {
    double re, im;
};

// Adjacent elements, moved by one instruction.
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
typedef Scale<OUT_TYPE>::type SCALE;
typedef SCALE SUM;

// The arguments of a product, by value. Strides count elements and have any sign. k = 0 is allowed; then a and b may be
// null. c is null exactly when beta is 0, so that a C full of NaN is never read; it may be out itself.
struct Gemm {
    const A_TYPE *a;
    const B_TYPE *b;
    const OUT_TYPE *c;
    OUT_TYPE *out;
    const OUT_TYPE *bias; // or null
    long long m, n, k, batch;
    long long a_row, a_col, a_batch, b_row, b_col, b_batch, c_row, c_col, c_batch, out_row, out_col, out_batch;
    long long bias_row, bias_col; // strides of bias along m and along n; one of them is 0
    void *memory;                 // null, or room for the parts' sums: see join.cuh
    unsigned *arrivals;           // as many zeros as tiles, before and after
    int parts;                    // shares of k that a tile is cut into
    int activation;               // 0 none, 1 relu, 2 gelu by erf, 3 gelu by tanh
    int raster;                   // columns of tiles that are walked together; 0: all
    int spare;
    alignas(16) SCALE alpha;
    alignas(16) SCALE beta;
};

// Arithmetic in which each step is rounded once, whatever the compiler's flags.

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

// Complex: four real steps in the order of csrc/complex.h, without any test for infinities. A real alpha or beta scales
// both parts on their own: as a complex number its zero would turn an infinity beside it into NaN.
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

// beta * c + t
template <class T> INLINE T scale_add(T s, T x, T y) {
    return multiply_add(s, x, y);
}
INLINE complex64 scale_add(complex64 s, complex64 x, complex64 y) {
    return complex_scale_add(s, x, y);
}
INLINE complex128 scale_add(complex128 s, complex128 x, complex128 y) {
    return complex_scale_add(s, x, y);
}

// Conversions: exact upwards, to nearest even downwards, where too large a number becomes infinity and a NaN stays one.

INLINE float widen(float16 x) {
    const unsigned magnitude = (x.bits & 0x7FFFu) << 13, sign = (x.bits & 0x8000u) << 16;
    // 2^112 moves the exponent's bias, subnormals included, exactly; above all numbers lie infinity and NaN
    const float value = magnitude < 0x0F800000u ? __fmul_rn(__uint_as_float(magnitude), 0x1p112f)
                                                : __uint_as_float(magnitude | 0x7F800000u);
    return __uint_as_float(__float_as_uint(value) | sign);
}
INLINE float widen(bfloat16 x) {
    return __uint_as_float((unsigned)x.bits << 16);
}
INLINE float widen(e5m2 x) {
    return widen(float16{(unsigned short)(x.bits << 8)});
}
INLINE float widen(e4m3 x) {
    const unsigned magnitude = x.bits & 0x7Fu, sign = (x.bits & 0x80u) << 24;
    const float value = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f); // as above: the bias is 7, not 127
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
        const unsigned bits = __float_as_uint(x);
        const unsigned rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        return bfloat16{(unsigned short)(x == x ? rounded : bits >> 16 | 0x40)};
    }
};
template <> struct Narrow<float16> {
    static __device__ __forceinline__ float16 from(float x) {
        const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
        unsigned rounded = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
        if (magnitude < 0x38800000) // below 2^-14: an addition rounds at the subnormals' last bit, 2^-24
            rounded = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3F000000;
        if (magnitude >= 0x477FF000) rounded = 0x7C00; // from 65520 on
        if (magnitude > 0x7F800000) rounded = 0x7E00 | (magnitude >> 13 & 0x3FF);
        return float16{(unsigned short)(sign | rounded)};
    }
};
template <class T, class S> INLINE T narrow(S x) {
    return Narrow<T>::from(x);
}

// The order of work. A block does part `blockIdx.x % parts` of tile `blockIdx.x / parts`.

struct Tile {
    long long top, left; // its first row and column of out
};

// Tiles of one product are walked in bands of `raster` columns of tiles, row by row in a band: blocks that run at the
// same time then share rows of a and columns of b, which lie in L2.
template <int HIGH, int WIDE> INLINE Tile tile_of(const Gemm &g, unsigned index) {
    const unsigned down = (unsigned)((g.m + HIGH - 1) / HIGH), across = (unsigned)((g.n + WIDE - 1) / WIDE);
    const unsigned band = g.raster > 0 && (unsigned)g.raster < across ? g.raster : across;
    const unsigned first = index / (band * down) * band, rest = index - first * down;
    const unsigned width = min(band, across - first);
    return Tile{(long long)(rest / width) * HIGH, (long long)(first + rest % width) * WIDE};
}

template <int HIGH, int WIDE> INLINE unsigned tiles_of(const Gemm &g) {
    return (unsigned)((g.m + HIGH - 1) / HIGH) * (unsigned)((g.n + WIDE - 1) / WIDE);
}

struct Share {
    int first, steps; // in steps of DEEP along k; the last step of all may be a shorter one
};

// Part `part` of k: all parts but the last ones have as many whole steps; there may be none left for the last.
template <int DEEP> INLINE Share share_of(const Gemm &g, int part) {
    const int all = (int)((g.k + DEEP - 1) / DEEP), share = (all + g.parts - 1) / g.parts;
    const int first = min(part * share, all);
    return Share{first, min(share, all - first)};
}

// The epilogue: t = alpha * sum; t = beta * c + t; t += bias; t = activation(t); out = t rounded. Each step is rounded
// on its own, so that an element's bits do not depend on the kernel that has summed it.

INLINE float activate(float x, int kind) {
    if (kind == 1) return x < 0 ? 0.f : x; // a NaN stays one
    if (kind == 2) return 0.5f * x * erfcf(x * -0.70710678118654752f);
    if (kind == 3) return x / (1.f + expf(-1.5957691216057308f * fmaf(0.044715f * x, x * x, x)));
    return x;
}
INLINE double activate(double x, int kind) {
    if (kind == 1) return x < 0 ? 0. : x;
    if (kind == 2) return 0.5 * x * erfc(x * -0.70710678118654752);
    if (kind == 3) return x / (1. + exp(-1.5957691216057308 * fma(0.044715 * x, x * x, x)));
    return x;
}
template <class T> INLINE T activate(T x, int) {
    return x;
}

// Where the outputs of batch item z go, in runs of RUN neighbours of a row: one access where memory allows it.
template <int RUN> struct Output {
    const Gemm &g;
    OUT_TYPE *out;
    const OUT_TYPE *c;
    bool vectors; // whole runs that start at multiples of RUN lie aligned

    __device__ __forceinline__ Output(const Gemm &g, long long z)
        : g(g), out(g.out + z * g.out_batch), c(g.c ? g.c + z * g.c_batch : nullptr) {
        const unsigned long long bytes = sizeof(OUT_TYPE) * RUN;
        vectors = g.out_col == 1 && ((unsigned long long)out | g.out_row * sizeof(OUT_TYPE)) % bytes == 0;
        if (c) vectors = vectors && g.c_col == 1 && ((unsigned long long)c | g.c_row * sizeof(OUT_TYPE)) % bytes == 0;
    }

    __device__ __forceinline__ OUT_TYPE finish(SUM sum, SCALE old, long long i, long long j) const {
        SCALE t = multiply(g.alpha, (SCALE)sum);
        if (c) t = scale_add(g.beta, old, t);
        if (EPILOGUE) {
            if (g.bias) t = add(t, (SCALE)widen(g.bias[i * g.bias_row + j * g.bias_col]));
            t = activate(t, g.activation);
        }
        return narrow<OUT_TYPE>(t);
    }

    // Stores sums of (i, j) to (i, j + RUN - 1), as far as these exist; j is a multiple of RUN.
    __device__ __forceinline__ void put(long long i, long long j, const SUM (&sums)[RUN]) const {
        if (i >= g.m || j >= g.n) return;
        OUT_TYPE *to = out + i * g.out_row + j * g.out_col;
        const OUT_TYPE *from = c + (c ? i * g.c_row + j * g.c_col : 0);
        if (vectors && j + RUN <= g.n) {
            Vector<OUT_TYPE, RUN> old = {}, result;
            if (c) old = *(const Vector<OUT_TYPE, RUN> *)from;
#pragma unroll
            for (int x = 0; x < RUN; ++x) result.at[x] = finish(sums[x], (SCALE)widen(old.at[x]), i, j + x);
            *(Vector<OUT_TYPE, RUN> *)to = result;
            return;
        }
#pragma unroll
        for (int x = 0; x < RUN; ++x) {
            if (j + x >= g.n) break;
            const SCALE old = c ? (SCALE)widen(from[x * g.c_col]) : SCALE{};
            to[x * g.out_col] = finish(sums[x], old, i, j + x);
        }
    }
};

#endif
