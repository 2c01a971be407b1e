// Products in registers, by fused multiply-adds: what the register-tiled kernels share. T is float or double.
//
//   block   BM x BN outputs, BK steps of k at a time in shared memory
//   warp    4 x 8 lanes of TM x TN outputs each; warps lie BN / (8 * TN) side by side
//
// An operand's tile lies in shared memory as it does in memory, so that it is copied without passing registers, and is
// read by 16 bytes, a CHUNK of elements, of which each feeds TN (TM) fused multiply-adds:
//
//   along   m (or n) is contiguous: BK rows. A chunk is several rows of out for one k. A lane has chunks of neighbours:
//           consecutive lanes read consecutive chunks.
//   across  k is contiguous: BM (or BN) rows of BK. A chunk is several k of one row, kept for as many steps. Lanes have
//           consecutive rows. In these the same chunk lies a whole row apart, in the same banks; so each row's chunks
//           are swizzled, as TMA does it: chunk c of row r of a tile of 128 bytes is at c ^ (r & 7).
//
// Lanes 2i and 2i + 1 differ in m only, and lanes i and i + 16: then a half-warp reads at most 2 chunks of a and 8 of b.
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
    WORKERS = 32 * WARPS_M * WARPS_N // threads that multiply
};
static_assert(BM % (LANES_M * TM) == 0 && BN % (LANES_N * TN) == 0 && BK % CHUNK == 0, "tiles are whole");

struct Lane {       // where a thread's outputs lie in its block's tile
    int m, n;       // the corner of its warp
    int at_m, at_n; // its own place in the warp: 0 to LANES_M - 1, 0 to LANES_N - 1
};

INLINE Lane lane_of(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    return Lane{warp / WARPS_N * LANES_M * TM, warp % WARPS_N * LANES_N * TN, lane / 16 * 2 + lane % 2, lane / 2 % 8};
}

// The place of a lane's i-th row (column) in its warp's.
template <bool ALONG, int LANES> INLINE int place(int lane, int i) {
    return ALONG ? (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK : i * LANES + lane;
}

// The element where a chunk of row r starts, in a tile whose rows are along k.
INLINE int swizzled(int r, int chunk) {
    constexpr int chunks = BK / CHUNK, rows = chunks < 8 ? 8 / chunks : 1; // rows of 128 bytes
    return r * BK + (chunk ^ (r / rows & (chunks < 8 ? chunks - 1 : 7))) * CHUNK;
}

// A lane's COUNT rows for CHUNK steps from step p on. `tile` is WIDE rows of k, or BK rows of WIDE.
template <bool ALONG, int LANES, int WIDE, int COUNT>
INLINE void load(T (&to)[CHUNK][COUNT], const T *tile, int corner, int lane, int p) {
    if (ALONG) {
#pragma unroll
        for (int step = 0; step < CHUNK; ++step) {
#pragma unroll
            for (int i = 0; i < COUNT; i += CHUNK) {
                const T *from = tile + (p + step) * WIDE + corner + place<true, LANES>(lane, i);
                *(Vector<T, CHUNK> *)&to[step][i] = *(const Vector<T, CHUNK> *)from;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int r = corner + place<false, LANES>(lane, i);
            const Vector<T, CHUNK> row = *(const Vector<T, CHUNK> *)(tile + swizzled(r, p / CHUNK));
#pragma unroll
            for (int step = 0; step < CHUNK; ++step) to[step][i] = row.at[step];
        }
    }
}

// acc += a * b over the BK steps of a stage, k ascending.
template <bool A_ALONG, bool B_ALONG>
INLINE void multiply_tiles(T (&acc)[TM * TN], const T *a_tile, const T *b_tile, const Lane &lane) {
    constexpr int TOGETHER = TM * TN >= 128 ? 2 : 4; // chunks; all of a stage would not fit into the instruction cache
#pragma unroll TOGETHER
    for (int p = 0; p < BK; p += CHUNK) {
        alignas(16) T a[CHUNK][TM], b[CHUNK][TN];
        load<A_ALONG, LANES_M, BM>(a, a_tile, lane.m, lane.at_m, p);
        load<B_ALONG, LANES_N, BN>(b, b_tile, lane.n, lane.at_n, p);
#pragma unroll
        for (int step = 0; step < CHUNK; ++step) {
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i * TN + j] = multiply_add(a[step][i], b[step][j], acc[i * TN + j]);
            }
        }
    }
}

// Sums of all parts, through the epilogue, to out.
template <bool A_ALONG, bool B_ALONG>
INLINE void finish(const Gemm &g, long long z, unsigned index, int part, const T (&acc)[TM * TN], const Lane &lane,
                   int thread, void *shared) {
    constexpr int WIDTH = B_ALONG ? RUN : 1; // sums of a run that are neighbours in out
    const Tile tile = tile_of<BM, BN>(g, index);
    const Output<WIDTH> output(g, z);
    join<TM * TN, WORKERS>(g, z * tiles_of<BM, BN>(g) + index, part, thread, acc, shared,
                           [&](int i, const SUM(&sums)[RUN]) {
                               const long long row = tile.top + lane.m + place<A_ALONG, LANES_M>(lane.at_m, i / TN);
#pragma unroll
                               for (int x = 0; x < RUN; x += WIDTH) {
                                   SUM some[WIDTH];
#pragma unroll
                                   for (int y = 0; y < WIDTH; ++y) some[y] = sums[x + y];
                                   const int j = place<B_ALONG, LANES_N>(lane.at_n, i % TN + x);
                                   output.put(row, tile.left + lane.n + j, some);
                               }
                           });
}

#endif
