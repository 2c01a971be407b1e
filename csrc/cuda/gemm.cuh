// The code that all CUDA kernels share: the arguments of a product, the order of tiles, and the epilogue.
//
// Each kernel's .cu file defines the defaults of its parameters and then includes this header. The compile command
// chooses the element types with -DA_TYPE, -DB_TYPE and -DOUT_TYPE (see number.cuh). Kernels accumulate in type SUM.
// They apply alpha, beta and the bias in type SCALE. A kernel is ORDERED if it computes the sum of each output as one
// chain of fma in ascending k, starting at +0: all ORDERED kernels give the same bits.
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
#define EPILOGUE 0 // 1: the kernel also adds a bias and applies an activation
#endif
#ifndef POINTERS
// 1: tables hold the addresses of each product's operands (see `item`). Only gemm_cuda_small supports 1.
#define POINTERS 0
#endif

#if __CUDA_ARCH__ >= 700
// With __grid_constant__, the kernel reads its arguments in constant memory, where the launch stored them. GPUs before
// sm_70 do not support __grid_constant__. Without it, the compiler copies an argument to local memory if the kernel
// indexes the argument.
#define ARGUMENT const __grid_constant__
#else
#define ARGUMENT const
#endif

typedef Scale<OUT_TYPE>::type SCALE;
typedef SCALE SUM;

// The arguments of a product, passed by value. Strides count elements and may be negative. If k is 0, a and b may be
// null. c is null if and only if beta is 0: then C is not read, and NaN in C has no effect. c may be out's memory.
struct Gemm {
    const A_TYPE *a;
    const B_TYPE *b;
    const OUT_TYPE *c;
    OUT_TYPE *out;
    const OUT_TYPE *bias; // may be null
    long long m, n, k, batch;
    long long a_row, a_col, a_batch, b_row, b_col, b_batch, c_row, c_col, c_batch, out_row, out_col, out_batch;
    long long bias_row, bias_col; // strides of bias along m and along n; one of the two is 0
    void *memory;                 // null, or memory for partial sums: see join.cuh and gemm_cuda_ffma_tma
    unsigned *arrivals;           // counters, 0 before and after the launch: one per tile (join.cuh), or one per block
                                  // plus one (gemm_cuda_ffma_tma)
    int parts;                    // split-K: number of parts of k per tile
    int activation;               // 0 none, 1 relu, 2 gelu by erf, 3 gelu by tanh
    int raster;                   // number of columns of tiles in a band, see tile_of; 0: all columns of tiles
    int mapped;                   // 1: store out through its tensor map, if the kernel has one
    alignas(16) SCALE alpha;
    alignas(16) SCALE beta;
};

// Returns the address of the operand of batch item z. `base` is the address of item 0, and `step` counts elements. With
// POINTERS, `base` is the address of item 0's entry in a table of addresses, and `step` counts table entries.
template <class T> INLINE T *item(T *base, long long z, long long step) {
    return POINTERS ? ((T *const *)base)[z * step] : base + z * step;
}

// The order of work, except with hopper.cuh: block x computes part x % parts of tile x / parts.

struct Tile {
    long long top, left; // first row and first column of the tile in out
};

// The tiles of one product are ordered in bands of `raster` columns of tiles, and inside a band row by row. Blocks that
// run at the same time therefore read the same rows of a and columns of b, which stay in the L2 cache.
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
    int first, steps; // first step, number of steps; a step is DEEP elements of k (see share_of), or fewer at the end
};

// Returns the steps of part number `part` of k. All parts have equally many steps, except that the last parts may have
// fewer or none.
template <int DEEP> INLINE Share share_of(const Gemm &g, int part) {
    const int all = (int)((g.k + DEEP - 1) / DEEP), share = (all + g.parts - 1) / g.parts;
    const int first = min(part * share, all);
    return Share{first, min(share, all - first)};
}

// The epilogue: t = alpha * sum; t = fma(beta, c, t); t += bias; t = activation(t); out = t rounded to OUT_TYPE. For
// complex numbers, scale_add computes beta * c + t by chains of fma. Each step is rounded separately, so equal sums
// give equal bits on every GPU.

#ifndef ACTIVATION
// Kernels that would inline `activate` once per sum define ACTIVATION with __noinline__, and thus compile faster.
#define ACTIVATION INLINE
#endif
ACTIVATION float activate(float x, int kind) {
    if (kind == 1) return x < 0 ? 0.f : x; // NaN stays NaN
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

// Stores the outputs of batch item z in runs of RUN adjacent elements of a row. An aligned run takes a single access.
template <int RUN> struct Output {
    const Gemm &g;
    OUT_TYPE *out;
    const OUT_TYPE *c;
    bool vectors; // whether runs that start at multiples of RUN are contiguous and aligned, in out and in c

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

    // Stores the sums of elements (i, j) to (i, j + RUN - 1) that are inside the matrix. j is a multiple of RUN.
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
