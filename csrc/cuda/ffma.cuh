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

#ifndef UNROLLED
#define UNROLLED 1024 // multiply-adds of a lane in a row, without a branch
#endif

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

struct Lane {
    int m, n; // its first row and column in the block's tile
};

INLINE Lane lane_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return Lane{warp / WARPS_N * LANES_M * TM + (lane / 16 * 2 + lane % 2) * CHUNK,
                warp % WARPS_N * LANES_N * TN + lane / 2 % 8 * CHUNK};
}

// How far its i-th row (column) is from there.
template <int LANES> INLINE int ahead(int i) {
    return i / CHUNK * LANES * CHUNK + i % CHUNK;
}

template <int LANES, int COUNT> INLINE void load(T (&to)[COUNT], const T *from) {
#pragma unroll
    for (int i = 0; i < COUNT; i += CHUNK)
        *(Vector<T, CHUNK> *)&to[i] = *(const Vector<T, CHUNK> *)(from + ahead<LANES>(i));
}

// The sums of a lane, of row i and column j.
//
// A multiprocessor issues an fma a clock only if it reads two registers at most, and these from different banks, which
// are the even and the odd ones. What was read for the same place by the fma before counts for nothing. So the order of
// the outer product, down one column and up the next, leaves one of a or b to be read, and the sum. Rows of a come 16
// bytes at a time, row i in a register as even as i; the sum of an even row has to lie in an odd one, then, and that of
// an odd row in an even one. A compiler left to itself finds that for three of four, but keeps the halves of 64 bits in
// such a pair of registers.
template <class T> struct Sums {
    T at[TM * TN] = {};

    __device__ __forceinline__ void add_product(const T (&a)[TM], const T (&b)[TN]) {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
#pragma unroll
            for (int x = 0; x < TM; ++x) {
                const int i = j % 2 ? TM - 1 - x : x;
                at[i * TN + j] = multiply_add(a[i], b[j], at[i * TN + j]);
            }
        }
    }
    __device__ __forceinline__ void spread(T (&to)[TM * TN]) const {
#pragma unroll
        for (int i = 0; i < TM * TN; ++i) to[i] = at[i];
    }
};

template <> struct Sums<float> {
    unsigned long long pairs[TM / 2 * TN] = {}; // of rows 2i (upper half) and 2i + 1

    __device__ __forceinline__ void add_product(const float (&a)[TM], const float (&b)[TN]) {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
#pragma unroll
            for (int x = 0; x < TM; x += 2) {
                const int i = j % 2 ? TM - 2 - x : x;
                unsigned long long &pair = pairs[i / 2 * TN + j];
                if (j % 2)
                    multiply_add_lower_first(pair, a[i + 1], a[i], b[j]);
                else
                    multiply_add_upper_first(pair, a[i + 1], a[i], b[j]);
            }
        }
    }
    __device__ __forceinline__ void spread(float (&to)[TM * TN]) const {
#pragma unroll
        for (int i = 0; i < TM; i += 2) {
#pragma unroll
            for (int j = 0; j < TN; ++j) halves_of(pairs[i / 2 * TN + j], to[(i + 1) * TN + j], to[i * TN + j]);
        }
    }
};

// acc += a * b over STEPS rows, k ascending, of A_PITCH and B_PITCH elements from row to row.
//
// A row is loaded while the one before is multiplied: a multiprocessor has 2 warps a scheduler, too few to hide what a
// load takes behind each other's arithmetic.
template <int STEPS, int A_PITCH, int B_PITCH>
INLINE void multiply_tiles(Sums<T> &acc, const T *a_tile, const T *b_tile, const Lane &lane) {
    constexpr int FIT = UNROLLED / (TM * TN) / 2 * 2, TOGETHER = FIT < STEPS ? FIT : STEPS;
    static_assert(TOGETHER && STEPS % TOGETHER == 0, "rounds are whole");
    const T *const a_from = a_tile + lane.m, *const b_from = b_tile + lane.n;
    alignas(16) T a[2][TM], b[2][TN];
    load<LANES_M>(a[0], a_from);
    load<LANES_N>(b[0], b_from);
#pragma unroll 1
    for (int round = 0; round < STEPS; round += TOGETHER) {
#pragma unroll
        for (int p = 0; p < TOGETHER; ++p) {
            if (p + 1 < TOGETHER || TOGETHER < STEPS) {
                const int next = p + 1 < TOGETHER ? round + p + 1 : min(round + TOGETHER, STEPS - 1);
                load<LANES_M>(a[(p + 1) % 2], a_from + next * A_PITCH);
                load<LANES_N>(b[(p + 1) % 2], b_from + next * B_PITCH);
            }
            acc.add_product(a[p % 2], b[p % 2]);
        }
    }
}

// The same over the `steps` rows that the last tile of k has. Zeros behind them must not be multiplied: they would make
// +0 of a sum that has come to -0, which the chain over k does not.
template <int A_PITCH, int B_PITCH>
INLINE void multiply_rest(Sums<T> &acc, const T *a_tile, const T *b_tile, const Lane &lane, int steps) {
#pragma unroll 1
    for (int p = 0; p < steps; ++p) {
        alignas(16) T a[TM], b[TN];
        load<LANES_M>(a, a_tile + lane.m + p * A_PITCH);
        load<LANES_N>(b, b_tile + lane.n + p * B_PITCH);
        acc.add_product(a, b);
    }
}

// Where a thread's sums go.
struct Target {
    Tile tile;
    Lane lane;
    Output<RUN> output;

    __device__ __forceinline__ Target(const Gemm &g, long long z, unsigned index, int thread)
        : tile(tile_of<BM, BN>(g, index)), lane(lane_of(thread)), output(g, z) {}
    __device__ __forceinline__ void put(int i, const SUM (&sums)[RUN]) const {
        output.put(tile.top + lane.m + ahead<LANES_M>(i / TN), tile.left + lane.n + ahead<LANES_N>(i % TN), sums);
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
