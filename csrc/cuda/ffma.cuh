// Products in registers, by fused multiply-adds: what the register-tiled kernels share. T is float or double.
//
//   block    BM x BN outputs; BK rows of BM elements of a, and of BN elements of b, in shared memory
//   warp     4 x 8 lanes of TM x TN outputs each; warps lie BN / (8 * TN) side by side
//   lane     chunks of 16 bytes, consecutive lanes consecutive chunks: loads without bank conflicts. Lanes 2i and 2i + 1
//            differ in m only, and so do lanes i and i + 16: a half-warp reads 2 chunks of a or 8 of b, which is one
//            access
//
// 8 x 16 outputs a lane need 6 loads of 16 bytes for 128 multiply-adds.
#ifndef GEMM_CUDA_FFMA
#define GEMM_CUDA_FFMA

#include "join.cuh"

typedef A_TYPE T;

enum {
    CHUNK = 16 / sizeof(T),
    LANES_M = 4,
    LANES_N = 8,
    WARPS_N = BN / (LANES_N * TN),
    WARPS_M = BM / (LANES_M * TM),
    WORKERS = 32 * WARPS_M * WARPS_N // threads that hold a tile's sums
};
static_assert(BM % (LANES_M * TM) == 0 && BN % (LANES_N * TN) == 0, "warps are whole");
static_assert(TM % CHUNK == 0 && TN % CHUNK == 0, "lanes read whole chunks");

// Rows of a lane that lie next to each other: those of a chunk, where a lies along m in shared memory.
#ifndef BESIDE_M
#define BESIDE_M CHUNK
#endif

struct Lane {
    int m, n; // its first row and column in the block's tile
};

INLINE Lane lane_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return Lane{warp / WARPS_N * LANES_M * TM + (lane / 16 * 2 + lane % 2) * BESIDE_M,
                warp % WARPS_N * LANES_N * TN + lane / 2 % 8 * CHUNK};
}

// How far its i-th row (column) is from there.
template <int LANES, int BESIDE = CHUNK> INLINE int ahead(int i) {
    return i / BESIDE * LANES * BESIDE + i % BESIDE;
}

template <int LANES, int COUNT> INLINE void load(T (&to)[COUNT], unsigned from) {
#pragma unroll
    for (int i = 0; i < COUNT; i += CHUNK) shared_load(to + i, from + ahead<LANES>(i) * (int)sizeof(T));
}

// acc += a * b', where acc[i * TN + j] is row i and column j.
//
// A multiprocessor issues an fma a clock only if it reads two registers at most; what was read for the same place by the
// fma before counts for nothing. So the order of the outer product, along one row and back along the next, leaves one of a
// or b to be read, and the sum.
INLINE void add_product(T (&acc)[TM * TN], const T (&a)[TM], const T (&b)[TN]) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int x = 0; x < TN; ++x) {
            const int j = i % 2 ? TN - 1 - x : x;
            accumulate(acc[i * TN + j], a[i], b[j]);
        }
    }
}

// What a lane multiplies of tiles whose rows have A_PITCH and B_PITCH elements: one row, and the next, which is loaded
// meanwhile: a multiprocessor has 2 warps a scheduler, too few to hide what a load takes behind each other's arithmetic.
template <int A_PITCH, int B_PITCH> struct Fragments {
    alignas(16) T a[2][TM], b[2][TN];
    unsigned a_from, b_from; // its chunks of the first row

    // The first row of tiles whose chunks for this lane begin there in shared memory.
    __device__ __forceinline__ void begin(unsigned a_at, unsigned b_at) {
        a_from = kept(a_at), b_from = kept(b_at);
        row(0, 0);
    }
    __device__ __forceinline__ void row(int half, int p) {
        load<LANES_M>(a[half], a_from + p * (A_PITCH * (int)sizeof(T)));
        load<LANES_N>(b[half], b_from + p * (B_PITCH * (int)sizeof(T)));
    }
    // acc += a * b over STEPS rows, k ascending.
    template <int STEPS> __device__ __forceinline__ void multiply(T (&acc)[TM * TN]) {
#pragma unroll // without a branch: moves of sums at the end of a loop cost up to a tenth
        for (int p = 0; p < STEPS; ++p) {
            if (p + 1 < STEPS) row((p + 1) % 2, p + 1);
            add_product(acc, a[p % 2], b[p % 2]);
        }
    }
    // The same over the `steps` rows that the last tile of k has. Zeros behind them must not be multiplied: they would
    // make +0 of a sum that has come to -0, which the chain over k does not.
    __device__ __forceinline__ void multiply_rest(T (&acc)[TM * TN], int steps) {
#pragma unroll 1
        for (int p = 0; p < steps; ++p) {
            row(0, p);
            add_product(acc, a[0], b[0]);
        }
    }
};

// Where a thread's sums go.
struct Target {
    Tile tile;
    Lane lane;
    Output<RUN> output;

    __device__ __forceinline__ Target(const Gemm &g, long long z, unsigned index, int thread)
        : tile(tile_of<BM, BN>(g, index)), lane(lane_of(thread)), output(g, z) {}
    __device__ __forceinline__ void put(int i, const SUM (&sums)[RUN]) const {
        output.put(tile.top + lane.m + ahead<LANES_M, BESIDE_M>(i / TN), tile.left + lane.n + ahead<LANES_N>(i % TN),
                   sums);
    }
};

// Sums of all parts, through the epilogue, to out; for `WORKERS` threads. ROOM, `shared`, `turn`: as for join.
template <bool ROOM>
INLINE void finish(const Gemm &g, long long z, unsigned index, int part, int thread, const T (&acc)[TM * TN],
                   void *shared, int turn = 0) {
    const long long tile = z * tiles_of<BM, BN>(g) + index;
    if (ROOM) { // the target is computed where it is used: beside the sums there are no registers for it on some chips
        join<TM * TN, WORKERS, true>(
            g, tile, part, thread, acc, shared,
            [&](int i, const SUM(&sums)[RUN]) { Target(g, z, index, thread).put(i, sums); }, turn);
    } else {
        const Target target(g, z, index, thread);
        join<TM * TN, WORKERS>(
            g, tile, part, thread, acc, shared, [&](int i, const SUM(&sums)[RUN]) { target.put(i, sums); }, turn);
    }
}

#endif
