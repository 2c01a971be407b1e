// gemm_cuda_ffma_held: out = alpha * a * b + beta * c with outputs in registers. Operands also pass through registers
// on the way to shared memory: for GPUs without cp.async (sm_50 to sm_75).
//
//   memory --> registers --> shared memory, two tiles each of a and b --16 bytes per load--> registers --fma--> acc
//
// While one tile is multiplied, the next tile is loaded into registers and then stored to the other half of shared
// memory. One barrier per step is enough. Consecutive threads read along the contiguous axis of an operand (if this
// axis is k, in groups of 8 threads). ffma.cuh describes how a tile is distributed to threads.
//
// The kernel is ORDERED if k is not split: each output is then one chain of fma in ascending k.
//
// Grid: x = tiles * parts, y = the batch. Block: THREADS = BM * BN / (TM * TN).

#ifndef BM
#define BM 64 // rows of out per block
#endif
#ifndef BN
#define BN 64 // columns of out per block
#endif
#ifndef BK
#define BK 16 // elements of k between two barriers
#endif
#ifndef TM
#define TM 8 // rows of out per thread
#endif
#ifndef TN
#define TN 4 // columns of out per thread
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k, not n
#endif

#include "ffma.cuh"

static_assert(THREADS == WORKERS, "a thread has TM * TN outputs");

// A thread's share of an operand's tiles, held in registers (`at`) on the way to shared memory. In shared memory, a
// tile is BK rows (steps of k) of WIDE elements along m (n). In global memory, `step` is the stride along k (1 if
// ALONG_K), `line` the stride along m (n). `corner` is the first tile's first element, `from` the thread's first
// element in the next tile.
template <int WIDE, bool ALONG_K> struct Held {
    static constexpr int LINE = ALONG_K ? 8 : WIDE;                           // threads along the contiguous axis
    static constexpr int LINES = THREADS / LINE;                              // threads along the other axis
    static constexpr int STEPS = ALONG_K ? BK / 8 : BK / LINES;               // loads per thread along k
    static constexpr int COUNT = ALONG_K ? WIDE / LINES : WIDE / LINE;        // loads per thread along m (n)
    static constexpr int K = ALONG_K ? 8 : LINES, L = ALONG_K ? LINES : LINE; // distances between a thread's loads
    static constexpr int PITCH = WIDE + CHUNK; // the padding avoids bank conflicts when 8 threads store one column
    static_assert(THREADS % LINE == 0 && STEPS * COUNT * THREADS == WIDE * BK, "tiles are whole");
    const T *from;
    long long line, step;
    int l, k; // position of this thread's first load in the tile, along m (n) and along k
    T at[STEPS][COUNT];

    __device__ __forceinline__ Held(const T *corner, long long line, long long step) : line(line), step(step) {
        k = ALONG_K ? threadIdx.x % LINE : threadIdx.x / LINE;
        l = ALONG_K ? threadIdx.x / LINE : threadIdx.x % LINE;
        from = corner + l * line + k * step;
    }

    // Loads a tile into registers. `lines` of its WIDE positions along m (n) and `steps` of its BK steps of k exist.
    // Elements outside the matrix become `zero`. The next call loads the next tile along k.
    __device__ __forceinline__ void load(int lines, int steps, T zero) {
#pragma unroll
        for (int x = 0; x < COUNT; ++x) {
            const T *next = from + x * L * line;
#pragma unroll
            for (int y = 0; y < STEPS; ++y, next += K * step)
                at[y][x] = l + x * L < lines && k + y * K < steps ? *next : zero;
        }
        from += BK * step;
    }
    __device__ __forceinline__ void store(T *tile) const {
#pragma unroll
        for (int y = 0; y < STEPS; ++y) {
#pragma unroll
            for (int x = 0; x < COUNT; ++x) tile[(k + y * K) * PITCH + l + x * L] = at[y][x];
        }
    }
};

enum {
    A_PITCH = BM + CHUNK,
    B_PITCH = BN + CHUNK,
    STAGE = BK * (A_PITCH + B_PITCH),
    // Blocks per multiprocessor. Without this bound, the assembler spills registers in order to fit more blocks.
    RESIDENT = sizeof(T) == 4 ? 4 : 3
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_cuda_ffma_held(ARGUMENT Gemm g) {
    // On sm_90 and newer, clusters exchange partial sums through `tiles`. The sums may need more bytes than the tiles.
    constexpr int JOINED = __CUDA_ARCH__ >= 900 ? JOIN_BYTES(TM * TN, WORKERS) / sizeof(T) : 0;
    alignas(16) __shared__ T tiles[2 * STAGE > JOINED ? 2 * STAGE : JOINED];

    follow_launch();
    const unsigned index = blockIdx.x / g.parts;
    const int part = blockIdx.x % g.parts;
    const Tile tile = tile_of<BM, BN>(g, index);
    const Share share = share_of<BK>(g, part);
    const Lane lane = lane_of(threadIdx.x);
    const int rows = (int)min((long long)BM, g.m - tile.top), cols = (int)min((long long)BN, g.n - tile.left);

    const long long first = share.first * (long long)BK;
    Held<BM, !A_TURNED> a(g.a + blockIdx.y * g.a_batch + tile.top * g.a_row + first * g.a_col, g.a_row, g.a_col);
    Held<BN, B_TURNED> b(g.b + blockIdx.y * g.b_batch + tile.left * g.b_col + first * g.b_row, g.b_col, g.b_row);
    long long left = g.k - first; // number of elements of k from the next tile to the end of k
    auto load = [&] {
        const int steps = (int)min((long long)BK, left);
        a.load(rows, steps, T(0));
        b.load(cols, steps, -T(0)); // beyond k, products are 0 * -0 = -0: adding -0 changes no sum, not even -0
        left -= BK;
    };
    auto store = [&](int half) {
        a.store(tiles + half * STAGE);
        b.store(tiles + half * STAGE + BK * A_PITCH);
    };

    T acc[TM * TN] = {};
    Fragments<A_PITCH, B_PITCH> fragments;
    if (share.steps > 0) {
        load();
        store(0);
    }
    // One barrier per step is enough for two halves: it comes after the stores to the half that is read next, and after
    // all reads of the half that is written next.
    __syncthreads();
    for (int step = 0; step < share.steps; ++step) {
        const int half = step % 2;
        const bool more = step + 1 < share.steps;
        if (more) load();
        const T *const from = tiles + half * STAGE;
        fragments.begin(shared_address(from + lane.m), shared_address(from + BK * A_PITCH + lane.n));
        fragments.template multiply<BK>(acc);
        if (more) store(1 - half);
        __syncthreads();
    }
    finish<true>(g, blockIdx.y, index, part, threadIdx.x, acc, tiles);
}
