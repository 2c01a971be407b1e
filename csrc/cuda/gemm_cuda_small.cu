// gemm_cuda_small: many small products. A block computes STACK of them, each by TEAM threads with TM x TN outputs.
//
//                      n <= BN
//                   +---+---+---+      A group loads tiles of its a and b into shared memory, BK of k at a time. k is
//              k    |   |TN |   |      the outer axis of both tiles: a thread reads its TM elements of a and its TN
//          +----+   +---+---+---+      elements of b by one wide load each, and adjacent threads have no bank conflict.
//          | TM |   |   |acc|   |      A group of 32 threads is a warp and waits for no other group.
//          +----+   +---+---+---+
//        m <= BM                       The kernel has no pipeline. A multiprocessor hides the memory latency by running
//                                      many blocks, each with whole products in flight.
//
// Products larger than one tile are computed tile by tile. Sums of narrower types are float32. With POINTERS, tables
// have the addresses of each product's operands; a null address of a means that there is no product.
//
// The kernel is ORDERED: each output is one chain of fma in ascending k, without steps beyond k.
//
// Grid: x = tiles of a product, y = ceil(batch / STACK). Block: THREADS = STACK * (BM / TM) * (BN / TN).

#ifndef BM
#define BM 16 // rows of out per group of threads
#endif
#ifndef BN
#define BN 16 // columns of out per group of threads
#endif
#ifndef BK
#define BK 16 // elements of k in shared memory
#endif
#ifndef TM
#define TM 2 // rows of out per thread
#endif
#ifndef TN
#define TN 4 // columns of out per thread
#endif
#ifndef STACK
#define STACK 4 // products per block
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef RESIDENT
#define RESIDENT 8 // blocks per multiprocessor; limits the registers per thread
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k, not n
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements of a per aligned load; 1: any strides
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#include "gemm.cuh"

enum { TEAM = (BM / TM) * (BN / TN) };
static_assert(THREADS == STACK * TEAM && (TEAM == 32 || THREADS % 32 == 0), "a team a product");

// A tile in shared memory: BK rows of WIDE elements along m or n. The rows are aligned to the size of a thread's load.
template <int WIDE> struct Tiled {
    enum { PITCH = WIDE + 16 / sizeof(SUM) };
    alignas(16) SUM at[BK][PITCH];

    // Loads the tile that starts at `from`; thread t of the group loads its share. `lines` x `steps` elements of the
    // tile exist. `line` is the stride along m (n), `step` the stride along k. A load has VECTOR adjacent elements,
    // along k (ALONG_K) or along m (n). Elements that do not exist are not written, because their places in the tile
    // affect no output that is stored.
    template <bool ALONG_K, int VECTOR, class T>
    __device__ __forceinline__ void fill(const T *from, long long line, long long step, int lines, int steps, int t) {
        constexpr int ACROSS = ALONG_K ? WIDE : WIDE / VECTOR; // vectors along m (n)
        constexpr int PIECES = WIDE * BK / VECTOR;
        // Loads in flight. Before Hopper, registers suffice for only 8 single-element loads: each needs an address.
        constexpr int AHEAD = VECTOR > 1 || __CUDA_ARCH__ >= 900 ? PIECES : 8;
#pragma unroll AHEAD
        for (int first = 0; first < PIECES; first += TEAM) {
            const int x = first + t, l = x % ACROSS * (ALONG_K ? 1 : VECTOR), p = x / ACROSS * (ALONG_K ? VECTOR : 1);
            if ((PIECES % TEAM && x >= PIECES) || l >= lines || p >= steps) continue;
            const T *piece = from + l * line + p * step;
            if (VECTOR > 1 && (ALONG_K ? p + VECTOR <= steps : l + VECTOR <= lines)) {
                const Vector<T, VECTOR> whole = *(const Vector<T, VECTOR> *)piece;
#pragma unroll
                for (int y = 0; y < VECTOR; ++y) (ALONG_K ? at[p + y][l] : at[p][l + y]) = (SUM)widen(whole.at[y]);
            } else {
#pragma unroll
                for (int y = 0; y < VECTOR; ++y) {
                    if (ALONG_K ? p + y < steps : l + y < lines)
                        (ALONG_K ? at[p + y][l] : at[p][l + y]) = (SUM)widen(piece[y * (ALONG_K ? step : line)]);
                }
            }
        }
    }
};

// Loads COUNT adjacent elements, 16 bytes at a time. `from` is aligned to the size of a load.
template <int COUNT> INLINE void load(SUM (&to)[COUNT], const SUM *from) {
    constexpr int WIDE = COUNT * sizeof(SUM) < 16 ? COUNT : 16 / sizeof(SUM);
#pragma unroll
    for (int x = 0; x < COUNT; x += WIDE) *(Vector<SUM, WIDE> *)(to + x) = *(const Vector<SUM, WIDE> *)(from + x);
}

INLINE void meet() {
    if (TEAM == 32)
        __syncwarp();
    else
        __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_cuda_small(ARGUMENT Gemm g) {
    __shared__ Tiled<BM> a_tiles[STACK];
    __shared__ Tiled<BN> b_tiles[STACK];

    follow_launch();
    const int team = threadIdx.x / TEAM, t = threadIdx.x % TEAM;
    const int row = t / (BN / TN) * TM, col = t % (BN / TN) * TN;
    const long long z = (long long)blockIdx.y * STACK + team;
    const A_TYPE *a = item(g.a, z < g.batch ? z : 0, g.a_batch);
    const bool here = z < g.batch && (!POINTERS || a); // groups without a product only synchronize
    Tiled<BM> &a_tile = a_tiles[team];
    Tiled<BN> &b_tile = b_tiles[team];
    const Tile tile = tile_of<BM, BN>(g, blockIdx.x);
    const int rows = here ? (int)min((long long)BM, g.m - tile.top) : 0;
    const int cols = here ? (int)min((long long)BN, g.n - tile.left) : 0;
    a += tile.top * g.a_row;
    const B_TYPE *b = item(g.b, here ? z : 0, g.b_batch) + tile.left * g.b_col;

    SUM acc[TM][TN] = {};
    const auto add_product = [&](int p) {
        SUM x[TM], y[TN];
        load(x, &a_tile.at[p][row]);
        load(y, &b_tile.at[p][col]);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = multiply_add(x[i], y[j], acc[i][j]);
    };
    for (long long done = 0; done < g.k; done += BK) {
        const int steps = (int)min((long long)BK, g.k - done);
        if (done) meet(); // all threads have read the previous tiles
        a_tile.fill<!A_TURNED, A_VECTOR>(a + done * g.a_col, g.a_row, g.a_col, rows, steps, t);
        b_tile.fill<B_TURNED, B_VECTOR>(b + done * g.b_row, g.b_col, g.b_row, cols, steps, t);
        meet();
        if (steps == BK) {
#pragma unroll
            for (int p = 0; p < BK; ++p) add_product(p);
        } else {
#pragma unroll 2
            for (int p = 0; p < steps; ++p) add_product(p);
        }
    }
    if (!here) return;
    const Output<TN> output(g, z);
#pragma unroll
    for (int i = 0; i < TM; ++i) output.put(tile.top + row + i, tile.left + col, acc[i]);
}
