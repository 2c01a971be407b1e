// gemm_cuda_outer: out = alpha * a * b + beta * c for small k, limited only by the speed of storing the result.
//
//              n                 A block loads BM rows of a and BN columns of b into shared memory, for DEPTH steps of
//         +---------+            k. Each warp computes every WARPS-th row over all columns, TM rows at a time, and
//       k | b       |            stores them. Its lanes store adjacent elements, 128 bytes of a row per access, even if
//     k   +---------+            rows are not aligned. Several blocks per multiprocessor hide the memory latency.
//   +---+ +---------+
//   |   | | warp 0  | BM rows    Lanes store 16-bit elements in pairs, which must be aligned to 4 bytes. A row of out
// m | a | | warp 1  |            starts at a multiple of 4 bytes, or 2 bytes after one. If the row stride is odd, the
//   |   | |  ...    |            rows alternate. A warp's rows are an even number of rows apart, so all of them start
//   +---+ +---------+            alike. If they start 2 bytes late, the warp's columns begin one column further left.
//
// If k is larger than DEPTH, the kernel loads and multiplies DEPTH steps at a time. The kernel is ORDERED: each output
// is one chain of fma in ascending k.
//
// Grid: x = tiles of out, y = the batch. Strides may have any values.

#ifndef BM
#define BM 128 // rows of out per block
#endif
#ifndef BN
#define BN 128 // columns of out per block: 32 * TN
#endif
#ifndef BK
#define BK 4 // steps along k that are unrolled
#endif
#ifndef TM
#define TM 4 // rows of out that a warp computes at a time
#endif
#ifndef TN
#define TN 4 // columns of out per lane
#endif
#ifndef DEPTH
#define DEPTH 32 // elements of k in shared memory
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef RESIDENT
#define RESIDENT 4 // blocks per multiprocessor; limits the registers per thread
#endif

#include "gemm.cuh"

enum {
    WARPS = THREADS / 32,
    ROWS = BM / WARPS,                                      // rows per warp
    PAIR = sizeof(OUT_TYPE) < 4 ? 4 / sizeof(OUT_TYPE) : 1, // adjacent elements that a lane stores at once
    LEFT = PAIR - 1,                                        // columns of b's tile to the left of the block's columns
    WIDE = LEFT + BN,                                       // all columns of b's tile
    // If PAIR is 2, a row of b's tile has the even columns first, then the odd ones (see PlaceB). PLANE is the distance
    // in elements from column 0 to column 1.
    PLANE = (WIDE / PAIR + 15) / 32 * 32 + 16,
    A_PITCH = BM + 16 / sizeof(SUM), // elements from one k to the next
    B_PITCH = (PAIR == 1 ? WIDE : PAIR * PLANE) + 1,
    // Loads in flight per thread, limited by the registers.
    AHEAD = __CUDA_ARCH__ >= 750 && __CUDA_ARCH__ < 1000 ? 4 : 2,
};
static_assert(BN == 32 * TN && TN % PAIR == 0 && ROWS % TM == 0 && WARPS % PAIR == 0, "lanes have whole pairs");

// PlaceA: the position of row r of a in its tile, where the rows of a warp are adjacent. PlaceB: the position of column
// j of b in its tile, chosen so that adjacent lanes read adjacent elements.
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

// Copies lines l = first .. last - 1 of an operand (rows of a, columns of b), at steps p = 0 .. steps - 1 of k, to
// tile[p * PITCH + place(l)]. `line` and `step` are the strides of l and p in global memory. Half of the block's
// threads call this function. Consecutive threads read along the shorter stride.
template <int PITCH, class PLACE, class T>
INLINE void fill(SUM *tile, PLACE place, const T *from, long long line, long long step, int first, int last,
                 int steps) {
    constexpr int HALF = THREADS / 2;
    const int t = threadIdx.x % HALF;
    const bool along_k = magnitude(step) < magnitude(line);
    const int bits = 32 - __clz(steps - 1); // 1 << bits threads along k
    // The number of lines and steps of k from one element of a thread to its next element.
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

// Loads TM adjacent elements, 16 bytes at a time.
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
    // Whether some rows start at an address that is not aligned to a pair.
    const bool odd = ((unsigned long long)output.out / sizeof(OUT_TYPE) | g.out_row) % PAIR != 0;
    long long left = (long long)(blockIdx.x % across) * BN;

    // The loop runs once, with one exception: if some rows are shifted to the left, one last column may remain. The
    // first block of each row of blocks computes it in a second iteration.
    do {
        OUT_TYPE *to = output.out + (top + warp) * g.out_row + left * g.out_col;
        const int shift = g.out_col == 1 ? (int)((unsigned long long)to / sizeof(OUT_TYPE) % PAIR) : 0;
        // The first column of the warp, and the first column of the lane.
        const long long corner = left - shift, column = corner + lane * PAIR;
        to += (lane * PAIR - shift) * g.out_col;
        const OUT_TYPE *from = output.c + (g.c ? (top + warp) * g.c_row + column * g.c_col : 0);
        // The range of existing columns among the BN columns from `corner` on.
        const int begin = (int)max(-corner, 0ll), end = (int)min(g.n - corner, (long long)BN);
        const SUM *columns[PAIR]; // the lane's first columns in b's tile
#pragma unroll
        for (int e = 0; e < PAIR; ++e) columns[e] = b_tile + PlaceB()(LEFT - shift + e) + lane;

        // The tiles are refilled between two barriers: all threads reach the first one after their last read, the
        // second one after their stores. The loop bounds are the same for the whole block, so all threads meet at both.
        for (int row = 0; row < ROWS && row * WARPS < rows; row += TM) {
            SUM acc[TM][TN] = {};
            for (long long done = 0; done < g.k; done += DEPTH) {
                const int steps = (int)min((long long)DEPTH, g.k - done);
                if (row == 0 || g.k > DEPTH) {
                    __syncthreads(); // all threads have read the previous tiles
                    if (warp < WARPS / 2) {
                        // If k > DEPTH, load only the rows that are used next.
                        const int first = g.k > DEPTH ? row * WARPS : 0;
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
