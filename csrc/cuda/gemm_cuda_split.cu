// gemm_cuda_split: splits a float32 operand into a sum of narrower planes, for gemm_cuda_emulated.
//
//     from[z, i, j] * 2^-e  =  to[z, 0, i, j] + to[z, 1, i, j] (+ to[z, 2, i, j])  +  error
//
// Each row of a (column of b) has its own exponent e. The factor 2^-e scales the largest magnitude of the row to [1, 2)
// for bfloat16 planes, or to [2^14, 2^15) for float16 planes. Then nothing overflows, and the rounding errors of
// subnormal plane elements are tiny compared with the largest element. Each plane is the remainder after the previous
// planes, rounded to nearest. Three bfloat16 planes hold all 24 bits. Two float16 planes leave an error of at most
// 2^-23 of the element or 2^-39 of the row's largest element, whichever is larger.
//
// For a row (column) with an infinity or NaN, the kernel stores the exponent SPECIAL. Plane 0 stores the infinities and
// NaNs unchanged. The other elements are scaled by the 2^-e of the largest finite element. gemm_cuda_emulated computes
// the results of such a row one by one.
//
//     TURNED 0   row i has exponents[z, i]      one row per block; the block reads it twice, the second time from L1
//     TURNED 1   column j has exponents[z, j]   COLUMNS columns per block; half a warp reads a row and writes 32 bytes
//
// In both forms the kernel reads `from` and writes `to` along j. Grid: x counts rows, or groups of COLUMNS columns. y
// counts the batch; if y is smaller than the batch, blocks step through the batch by gridDim.y.

#ifndef TYPE
#define TYPE bfloat16 // type of the planes: bfloat16 or float16
#endif
#ifndef PLANES
#define PLANES 3 // 3 of bfloat16, or 2 of float16
#endif
#ifndef TURNED
#define TURNED 0 // 1: the operand is contiguous along m (b: n), not along k
#endif
#ifndef COLUMNS
#define COLUMNS 16 // columns per block, if TURNED
#endif
#ifndef THREADS
#define THREADS 512
#endif

#include "gemm.cuh"
#include "planes.cuh"
#include "ptx.cuh"

struct Split {
    const float *from;
    TYPE *to;
    long long rows, cols, batch;
    long long from_row, from_col, from_batch; // strides in elements; they may be negative
    long long to_row, to_batch;
    int *exponents;
    long long to_plane;
};

INLINE bfloat16 nearest(bfloat16, float x) {
    return bfloat16{float_to_bf16(x)};
}
INLINE float16 nearest(float16, float x) {
    return float16{float_to_f16(x)};
}

// Calls each(x, i, j) for each element of the block's row or columns. Several loads are in flight at once.
template <class EACH> INLINE void sweep(const Split &s, long long z, EACH each) {
    enum { LANES = TURNED ? COLUMNS : THREADS, STEP = TURNED ? THREADS / COLUMNS : THREADS, TOGETHER = 8 };
    const long long line = TURNED ? blockIdx.x * (long long)COLUMNS + threadIdx.x % LANES : blockIdx.x;
    const long long length = TURNED ? s.rows : s.cols, first = TURNED ? threadIdx.x / LANES : threadIdx.x;
    const long long across = TURNED ? s.from_col : s.from_row, along = TURNED ? s.from_row : s.from_col;
    const float *from = s.from + z * s.from_batch + line * across;
    if (TURNED && line >= s.cols) return;
    for (long long at = first; at < length; at += STEP * TOGETHER) {
        float x[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
            if (at + i * STEP < length) x[i] = from[(at + i * STEP) * along];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const long long place = at + i * STEP;
            if (place < length) each(x[i], TURNED ? place : line, TURNED ? line : place);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gemm_cuda_split(const __grid_constant__ Split s) {
    __shared__ unsigned most[COLUMNS], special[COLUMNS]; // an entry per column; TURNED 0: entry 0 is for the row
    follow_launch();
    const int line = TURNED ? threadIdx.x % COLUMNS : 0;
    for (long long z = blockIdx.y; z < s.batch; z += gridDim.y) {
        if (threadIdx.x < COLUMNS) most[threadIdx.x] = special[threadIdx.x] = 0;
        __syncthreads();
        unsigned largest = 0, strange = 0;
        sweep(s, z, [&](float x, long long, long long) {
            const unsigned magnitude = __float_as_uint(x) & 0x7FFFFFFF;
            strange |= magnitude >= 0x7F800000;
            largest = max(largest, magnitude < 0x7F800000 ? magnitude : 0);
        });
        if (!TURNED) { // reduces the number of atomics to one per warp
            largest = __reduce_max_sync(~0u, largest);
            strange = __reduce_max_sync(~0u, strange);
        }
        if (TURNED || threadIdx.x % 32 == 0) {
            atomicMax(most + line, largest);
            atomicMax(special + line, strange);
        }
        __syncthreads();
        const int exponent = exponent_of<TYPE>(most[line]);
        const long long mine = TURNED ? blockIdx.x * (long long)COLUMNS + threadIdx.x : blockIdx.x + threadIdx.x;
        if (threadIdx.x < (TURNED ? COLUMNS : 1) && mine < (TURNED ? s.cols : s.rows))
            s.exponents[z * (TURNED ? s.cols : s.rows) + mine] = special[line] ? SPECIAL : exponent;
        TYPE *to = s.to + z * s.to_batch;
        sweep(s, z, [&](float x, long long i, long long j) {
            float left = times_power(x, -exponent);
            const bool finite = (__float_as_uint(x) & 0x7F800000) != 0x7F800000;
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane) {
                const TYPE part = nearest(TYPE{}, left);
                to[plane * s.to_plane + i * s.to_row + j] = part;
                left = finite ? left - widen(part) : 0;
            }
        });
        __syncthreads();
    }
}
