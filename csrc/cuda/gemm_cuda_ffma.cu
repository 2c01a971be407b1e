// gemm_cuda_ffma: out = alpha * a * b + beta * c with outputs in registers, operands by cp.async (sm_80 and newer).
//
//   memory --cp.async--> shared memory, STAGES tiles of a and b --16 bytes a load--> registers --fma--> acc
//
// STAGES - 1 tiles are on their way while one is multiplied; one barrier a step, which says both that the next tile has
// come and that the one before has been read by all. Copies are of A_VECTOR and B_VECTOR elements, aligned, along
// whichever axis is contiguous, and bring zeros from beyond the edges. How registers, banks and lanes fit: ffma.cuh.
//
// ORDERED when k is not cut: each output is one chain of fma, k ascending.
//
// Grid: x = tiles * parts, y = the batch. Block: THREADS = BM * BN / (TM * TN).

#ifndef BM
#define BM 128 // rows of out a block
#endif
#ifndef BN
#define BN 128 // columns of out a block
#endif
#ifndef BK
#define BK 16 // steps along k a stage
#endif
#ifndef TM
#define TM 8 // rows of out a thread
#endif
#ifndef TN
#define TN 8 // columns of out a thread
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef BLOCKS
#define BLOCKS 1 // blocks that a multiprocessor shall hold at once
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k, not n
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements of one copy
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#include "ffma.cuh"

static_assert(THREADS == WORKERS, "a thread has TM * TN outputs");

// A thread's share of the copies of an operand's tiles: ROWS of COLS elements, contiguous along COLS.
template <int ROWS, int COLS, int WIDTH, bool SWIZZLED> struct Copies {
    static constexpr int ACROSS = COLS / WIDTH, DOWN = THREADS / ACROSS, COUNT = (ROWS + DOWN - 1) / DOWN;
    static_assert(THREADS % ACROSS == 0, "a row of copies is a share of the threads");
    const T *from;
    long long stride;
    int row, col;

    __device__ __forceinline__ Copies(const T *from, long long stride) : stride(stride) {
        row = threadIdx.x / ACROSS, col = threadIdx.x % ACROSS * WIDTH;
        this->from = from + row * stride + col;
    }

    // Starts the copies of one tile, of which `rows` x `cols` exist.
    __device__ __forceinline__ void start(T *tile, int rows, int cols) const {
        const int width = max(0, min(WIDTH, cols - col));
        const T *at = from;
#pragma unroll
        for (int i = 0; i < COUNT; ++i, at += DOWN * stride) {
            const int r = row + i * DOWN;
            if (ROWS % DOWN && r >= ROWS) break;
            const int valid = r < rows ? width : 0;
            T *to = tile + (SWIZZLED ? swizzled(r, col / CHUNK) + col % CHUNK : r * COLS + col);
            copy_async<WIDTH * sizeof(T)>(shared_address(to), valid ? at : from, valid * (int)sizeof(T));
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gemm_cuda_ffma(ARGUMENT Gemm g) {
    alignas(128) extern __shared__ unsigned char shared[];
    T *const a_tiles = (T *)shared, *const b_tiles = a_tiles + STAGES * BM * BK;

    const unsigned index = blockIdx.x / g.parts;
    const int part = blockIdx.x % g.parts;
    const Tile tile = tile_of<BM, BN>(g, index);
    const Share share = share_of<BK>(g, part);
    const Lane lane = lane_of(threadIdx.x);
    const int rows = (int)min((long long)BM, g.m - tile.top), cols = (int)min((long long)BN, g.n - tile.left);

    constexpr bool A_ALONG = A_TURNED, B_ALONG = !B_TURNED;
    const T *a = g.a + blockIdx.y * g.a_batch + tile.top * g.a_row + share.first * (long long)BK * g.a_col;
    const T *b = g.b + blockIdx.y * g.b_batch + tile.left * g.b_col + share.first * (long long)BK * g.b_row;
    Copies<A_ALONG ? BK : BM, A_ALONG ? BM : BK, A_VECTOR, !A_ALONG> a_copies(a, A_ALONG ? g.a_col : g.a_row);
    Copies<B_ALONG ? BK : BN, B_ALONG ? BN : BK, B_VECTOR, !B_ALONG> b_copies(b, B_ALONG ? g.b_row : g.b_col);

    long long left = g.k - share.first * (long long)BK; // of k, for the next copies
    int copied = 0;
    auto start = [&](int stage) {
        if (copied < share.steps) {
            const int steps = (int)min((long long)BK, left);
            a_copies.start(a_tiles + stage * BM * BK, A_ALONG ? steps : rows, A_ALONG ? rows : steps);
            b_copies.start(b_tiles + stage * BN * BK, B_ALONG ? steps : cols, B_ALONG ? cols : steps);
            a_copies.from += BK * g.a_col;
            b_copies.from += BK * g.b_row;
            left -= BK;
            ++copied;
        }
        copy_commit(); // an empty group keeps the count
    };

    T acc[TM * TN] = {};
    for (int stage = 0; stage < STAGES - 1; ++stage) start(stage);
    for (int step = 0, stage = 0; step < share.steps; ++step) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        start(stage == 0 ? STAGES - 1 : stage - 1);
        multiply_tiles<A_ALONG, B_ALONG>(acc, a_tiles + stage * BM * BK, b_tiles + stage * BN * BK, lane);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    finish<A_ALONG, B_ALONG>(g, blockIdx.y, index, part, acc, lane, threadIdx.x, shared);
}
