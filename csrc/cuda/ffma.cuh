// The code that the register-tiled kernels share: products by fused multiply-adds, with the outputs in registers. T is
// float or double.
//
//   block    BM x BN outputs; shared memory holds BK rows of BM elements of a, and BK rows of BN elements of b
//   warp     4 x 8 lanes with TM x TN outputs each; BN / (8 * TN) warps along n
//   lane     TM rows and TN columns, both in chunks of 16 bytes. Lanes that are neighbors along m (n) have adjacent
//            chunks, so their loads have no bank conflicts. Lanes 2i and 2i + 1 differ only in m, and so do lanes i and
//            i + 16. A half-warp therefore reads 2 chunks of a or 8 chunks of b, which is one shared memory access
//
// With 8 x 16 outputs in float, a lane needs 6 loads of 16 bytes for the 128 multiply-adds of each k.
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
    WORKERS = 32 * WARPS_M * WARPS_N // threads that hold the sums of a tile
};
static_assert(BM % (LANES_M * TM) == 0 && BN % (LANES_N * TN) == 0, "warps are whole");
static_assert(TM % CHUNK == 0 && TN % CHUNK == 0, "lanes read whole chunks");

// A lane's rows are groups of BESIDE_M adjacent rows: CHUNK rows if a is contiguous along m in shared memory, 1 row if
// a is contiguous along k (gemm_cuda_ffma_tma).
#ifndef BESIDE_M
#define BESIDE_M CHUNK
#endif

struct Lane {
    int m, n; // first row and first column of the lane in the block's tile
};

INLINE Lane lane_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return Lane{warp / WARPS_N * LANES_M * TM + (lane / 16 * 2 + lane % 2) * BESIDE_M,
                warp % WARPS_N * LANES_N * TN + lane / 2 % 8 * CHUNK};
}

// Returns the distance, in rows (columns) of the tile, from a lane's first row (column) to its row (column) number i.
template <int LANES, int BESIDE = CHUNK> INLINE int ahead(int i) {
    return i / BESIDE * LANES * BESIDE + i % BESIDE;
}

template <int LANES, int COUNT> INLINE void load(T (&to)[COUNT], unsigned from) {
#pragma unroll
    for (int i = 0; i < COUNT; i += CHUNK) shared_load(to + i, from + ahead<LANES>(i) * (int)sizeof(T));
}

// acc += a * b' (outer product). acc[i * TN + j] is the element of row i and column j.
//
// A multiprocessor issues one fma per clock only if the fma reads at most two registers. A register that the previous
// fma has read in the same operand position is reused and does not count. The loop therefore goes along one row and
// back along the next: each fma then reads two registers, its sum and one new element of a or b.
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

// The elements that a lane multiplies, loaded from tiles in shared memory. A tile has one row for each k. The rows are
// A_PITCH elements apart in a's tile, and B_PITCH in b's. The lane holds its elements of two rows: while it
// multiplies one row, it loads the next. A scheduler has only 2 warps, which is not enough to hide the latency of the
// loads behind the arithmetic of other warps.
template <int A_PITCH, int B_PITCH> struct Fragments {
    alignas(16) T a[2][TM], b[2][TN];
    unsigned a_from, b_from; // shared memory addresses of the lane's first chunks in the first row

    // Starts a tile: loads its first row. a_at and b_at are the addresses of this lane's first chunks in that row.
    __device__ __forceinline__ void begin(unsigned a_at, unsigned b_at) {
        a_from = kept(a_at), b_from = kept(b_at);
        row(0, 0);
    }
    __device__ __forceinline__ void row(int half, int p) {
        load<LANES_M>(a[half], a_from + p * (A_PITCH * (int)sizeof(T)));
        load<LANES_N>(b[half], b_from + p * (B_PITCH * (int)sizeof(T)));
    }
    // acc += a * b over STEPS rows, in ascending k.
    template <int STEPS> __device__ __forceinline__ void multiply(T (&acc)[TM * TN]) {
#pragma unroll // fully unrolled: a loop would move sums between registers, which costs up to a tenth of the speed
        for (int p = 0; p < STEPS; ++p) {
            if (p + 1 < STEPS) row((p + 1) % 2, p + 1);
            add_product(acc, a[p % 2], b[p % 2]);
        }
    }
    // Multiplies only the first `steps` rows, for the last tile of k. The tile's other rows are zeros and must not be
    // multiplied: adding +0 to a sum of -0 gives +0, but an ORDERED sum must stay -0.
    __device__ __forceinline__ void multiply_rest(T (&acc)[TM * TN], int steps) {
#pragma unroll 1
        for (int p = 0; p < steps; ++p) {
            row(0, p);
            add_product(acc, a[0], b[0]);
        }
    }
};

// Stores a thread's sums to out.
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

// Adds the sums of all blocks of tile `index`, each of which has computed a part of k. Applies the epilogue and stores
// the results to out. WORKERS threads of the block call this function, with `thread` from 0 to WORKERS - 1. ROOM,
// `shared` and `turn` are as in join.
template <bool ROOM>
INLINE void finish(const Gemm &g, long long z, unsigned index, int part, int thread, const T (&acc)[TM * TN],
                   void *shared, int turn = 0) {
    const long long tile = z * tiles_of<BM, BN>(g) + index;
    // The target is computed where it is used: on some GPUs there are not enough registers to hold it next to the sums.
    if (ROOM) {
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
