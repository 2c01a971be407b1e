// What the CUDA kernels share: the arguments of a product, the order of tiles, the epilogue.
//
// A kernel's file defines its parameters' defaults and includes this. Who compiles it chooses the types with -DA_TYPE,
// -DB_TYPE and -DOUT_TYPE (number.cuh); sums are SUM, and alpha, beta and the bias are applied in SCALE.
#ifndef GEMM_CUDA_GEMM
#define GEMM_CUDA_GEMM

#include "number.cuh"

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
#ifndef POINTERS
#define POINTERS 0 // 1: each product's operands lie by themselves: see `item`; only kernels that say so may be
#endif

#if __CUDA_ARCH__ >= 700
#define ARGUMENT const __grid_constant__ // read where the launch has put it; older chips copy what is indexed
#else
#define ARGUMENT const
#endif

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
    void *memory;                 // null, or room for sums of parts: see join.cuh, gemm_cuda_ffma_tma
    unsigned *arrivals;           // zeros, before and after: as many as tiles, or blocks and one more
    int parts;                    // shares of k that a tile is cut into
    int activation;               // 0 none, 1 relu, 2 gelu by erf, 3 gelu by tanh
    int raster;                   // columns of tiles that are walked together; 0: all
    int mapped;                   // 1: out is stored through its tensor map, where the kernel has one
    alignas(16) SCALE alpha;
    alignas(16) SCALE beta;
};

// Where an operand of batch item z begins, of which `base` is the first. With POINTERS `base` is where a table has that
// one's address, and `step` counts addresses.
template <class T> INLINE T *item(T *base, long long z, long long step) {
    return POINTERS ? ((T *const *)base)[z * step] : base + z * step;
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

#ifndef ACTIVATION
#define ACTIVATION INLINE // a source that would inline it for each sum makes it a function, which compiles sooner
#endif
ACTIVATION float activate(float x, int kind) {
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
        : g(g), out(item(g.out, z, g.out_batch)), c(g.c ? item(g.c, z, g.c_batch) : nullptr) {
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
