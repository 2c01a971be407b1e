// gemm_cuda_outer: few k: out = alpha * a * b + beta * c as fast as memory takes the result.
//
//              n                 A block brings DEPTH of k of BM rows of a and BN columns of b to shared memory, all of it
//         +---------+            at once. Each warp sums every WARPS-th row by all columns, TM rows at a time, which it
//       k | b       |            then stores: its lanes store neighbours, 128 bytes of a row an access, whether rows are
//     k   +---------+            aligned or not. What hides memory's latency is that a multiprocessor has several blocks.
//   +---+ +---------+
//   |   | | warp 0  | BM rows    Lanes store pairs of 16-bit numbers, which must lie aligned by 4 bytes. A row of out begins
// m | a | | warp 1  |            there or one element late, by turns where rows have odd lengths. Those of a warp are an even
//   |   | |  ...    |            number of rows apart and so begin alike: where that is late, the warp computes columns
//   +---+ +---------+            that lie one further to the left.
//
// Larger k is done DEPTH at a time. ORDERED: each output is one chain of fma, k ascending.
//
// Grid: x = tiles of out, y = the batch. Any strides.

#ifndef BM
#define BM 128 // rows of out a block
#endif
#ifndef BN
#define BN 128 // columns of out a block: 32 * TN
#endif
#ifndef BK
#define BK 4 // steps along k that are unrolled
#endif
#ifndef TM
#define TM 4 // rows of out that a warp sums at a time
#endif
#ifndef TN
#define TN 4 // columns of out a lane
#endif
#ifndef DEPTH
#define DEPTH 32 // of k that lie in shared memory
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef RESIDENT
#define RESIDENT 4 // blocks of a multiprocessor that registers must suffice for
#endif

#include "gemm.cuh"

enum {
    WARPS = THREADS / 32,
    ROWS = BM / WARPS,                                      // of a warp
    PAIR = sizeof(OUT_TYPE) < 4 ? 4 / sizeof(OUT_TYPE) : 1, // neighbours that a lane stores at once
    LEFT = PAIR - 1,                                        // columns of b's tile that lie left of the block's
    WIDE = LEFT + BN,                                       // all of them
    PLANE = (WIDE / PAIR + 15) / 32 * 32 + 16,              // elements there from column 0 to column 1, if PAIR is 2
    A_PITCH = BM + 16 / sizeof(SUM),                        // from one k to the next
    B_PITCH = (PAIR == 1 ? WIDE : PAIR * PLANE) + 1,
    // Elements that a thread has on their way, as registers allow.
    AHEAD = __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 1000 ? 4 : 2,
};
static_assert(BN == 32 * TN && TN % PAIR == 0 && ROWS % TM == 0 && WARPS % PAIR == 0, "lanes have whole pairs");

// Where a tile has row r of a: those of a warp lie side by side. And column j of b: lanes read neighbours.
struct PlaceA {
    __device__ __forceinline__ int operator()(int r) const {
        return r % WARPS * ROWS + r / WARPS;
    }
};
struct PlaceB {
    __device__ __forceinline__ int operator()(int j) const {
        return j % PAIR * PLANE + j / PAIR;
    }
};

INLINE long long magnitude(long long stride) {
    return stride < 0 ? -stride : stride;
}

// Brings lines first to last - 1, of `steps` along k, of an operand to tile[p * PITCH + place(l)], by half of the block: its
// consecutive threads read along the shorter stride.
template <int PITCH, class PLACE, class T>
INLINE void fill(SUM *tile, PLACE place, const T *from, long long line, long long step, int first, int last,
                 int steps) {
    constexpr int HALF = THREADS / 2;
    const int t = threadIdx.x % HALF;
    const bool along_k = magnitude(step) < magnitude(line);
    const int bits = 32 - __clz(steps - 1); // 1 << bits threads along k
    // From a thread's element to its next: so many lines and steps.
    const int down = along_k ? HALF >> bits : 0, deep = along_k ? 0 : 1;
    const long long next = along_k ? down * line : step;
    int l = first + (along_k ? t >> bits : t);
    do {
        int p = along_k ? t & ((1 << bits) - 1) : 0;
        const T *at = from + l * line + p * step;
        while (l < last && p < steps) {
            T held[AHEAD];
#pragma unroll
            for (int x = 0; x < AHEAD; ++x)
                if (l + x * down < last && p + x * deep < steps) held[x] = at[x * next];
#pragma unroll
            for (int x = 0; x < AHEAD; ++x, l += down, p += deep)
                if (l < last && p < steps) tile[p * PITCH + place(l)] = (SUM)widen(held[x]);
            at += AHEAD * next;
        }
        l += HALF;
    } while (l < last && !along_k);
}

// TM neighbours, 16 bytes at a time.
INLINE void load(SUM (&to)[TM], const SUM *from) {
    constexpr int RUN = 16 / sizeof(SUM);
#pragma unroll
    for (int i = 0; i < TM; i += RUN) *(Vector<SUM, RUN> *)(to + i) = *(const Vector<SUM, RUN> *)(from + i);
}

typedef Vector<OUT_TYPE, PAIR> Run;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_cuda_outer(ARGUMENT Gemm g) {
    alignas(16) __shared__ SUM a_tile[DEPTH * A_PITCH];
    __shared__ SUM b_tile[DEPTH * B_PITCH];

    follow_launch();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned across = (unsigned)((g.n + BN - 1) / BN);
    const long long top = (long long)(blockIdx.x / across) * BM;
    const int rows = (int)min((long long)BM, g.m - top);
    const A_TYPE *a = g.a + blockIdx.y * g.a_batch + top * g.a_row;
    const B_TYPE *b = g.b + blockIdx.y * g.b_batch;
    const Output<1> output(g, blockIdx.y);
    const bool odd =
        ((unsigned long long)output.out / sizeof(OUT_TYPE) | g.out_row) % PAIR != 0; // some row begins late
    long long left = (long long)(blockIdx.x % across) * BN;

    do { // once; but a column that is left over, as others lie further to the left, is done by the first block of a row
        OUT_TYPE *to = output.out + (top + warp) * g.out_row + left * g.out_col;
        const int shift = g.out_col == 1 ? (int)((unsigned long long)to / sizeof(OUT_TYPE) % PAIR) : 0;
        const long long corner = left - shift, column = corner + lane * PAIR; // the warp's and the lane's first column
        to += (lane * PAIR - shift) * g.out_col;
        const OUT_TYPE *from = output.c + (g.c ? (top + warp) * g.c_row + column * g.c_col : 0);
        // The columns, of BN from `corner` on, that exist.
        const int begin = (int)max(-corner, 0ll), end = (int)min(g.n - corner, (long long)BN);
        const SUM *columns[PAIR]; // the lane's first ones in b's tile
#pragma unroll
        for (int e = 0; e < PAIR; ++e) columns[e] = b_tile + PlaceB()(LEFT - shift + e) + lane;

        // The tiles are filled anew between two meetings: all come to the first after their last reads, to the second
        // after their stores. Every thread of the block runs as many turns, for their bounds are the block's own.
        for (int row = 0; row < ROWS && row * WARPS < rows; row += TM) {
            SUM acc[TM][TN] = {};
            for (long long done = 0; done < g.k; done += DEPTH) {
                const int steps = (int)min((long long)DEPTH, g.k - done);
                if (row == 0 || g.k > DEPTH) {
                    __syncthreads(); // all have read the last tiles
                    if (warp < WARPS / 2) {
                        const int first = g.k > DEPTH ? row * WARPS : 0; // of larger k only what is used next
                        const int last = g.k > DEPTH ? min(rows, (row + TM) * WARPS) : rows;
                        fill<A_PITCH>(a_tile, PlaceA(), a + done * g.a_col, g.a_row, g.a_col, first, last, steps);
                    } else {
                        const int first = (int)max(LEFT - left, 0ll),
                                  last = (int)min(g.n - left + LEFT, (long long)WIDE);
                        const B_TYPE *corner_b = b + (left - LEFT) * g.b_col + done * g.b_row;
                        fill<B_PITCH>(b_tile, PlaceB(), corner_b, g.b_col, g.b_row, first, last, steps);
                    }
                    __syncthreads();
                }
                const SUM *mine = a_tile + warp * ROWS + row;
#pragma unroll BK
                for (int p = 0; p < steps; ++p) {
                    SUM x[TM];
                    load(x, mine + p * A_PITCH);
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const SUM y = columns[j % PAIR][p * B_PITCH + j / PAIR * 32];
#pragma unroll
                        for (int i = 0; i < TM; ++i) acc[i][j] = multiply_add(x[i], y, acc[i][j]);
                    }
                }
            }
            if (!EPILOGUE && !g.c && g.out_col == 1 && rows == BM && begin == 0 && end == BN) {
#pragma unroll
                for (int i = 0; i < TM; ++i, to += WARPS * g.out_row)
#pragma unroll
                    for (int j = 0; j < TN; j += PAIR) {
                        Run run;
#pragma unroll
                        for (int e = 0; e < PAIR; ++e)
                            run.at[e] = narrow<OUT_TYPE>(multiply(g.alpha, (SCALE)acc[i][j + e]));
                        *(Run *)(to + 32 * j) = run;
                    }
                continue;
            }
#pragma unroll
            for (int i = 0; i < TM; ++i, to += WARPS * g.out_row, from += WARPS * g.c_row) {
                const int r = warp + (row + i) * WARPS;
                if (r >= rows) break;
#pragma unroll
                for (int j = 0; j < TN; j += PAIR) {
                    const int at = 32 * j + lane * PAIR;
                    const bool whole = g.out_col == 1 && at >= begin && at + PAIR <= end;
                    Run run;
#pragma unroll
                    for (int e = 0; e < PAIR; ++e) {
                        if (at + e < begin || at + e >= end) continue;
                        const SCALE old = g.c ? (SCALE)widen(from[(32 * j + e) * g.c_col]) : SCALE{};
                        run.at[e] = output.finish(acc[i][j + e], old, top + r, column + 32 * j + e);
                        if (!whole) to[(32 * j + e) * g.out_col] = run.at[e];
                    }
                    if (whole) *(Run *)(to + 32 * j) = run;
                }
            }
        }
        left += (long long)across * BN;
    } while (odd && left < g.n + LEFT);
}
