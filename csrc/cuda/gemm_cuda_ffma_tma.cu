// gemm_cuda_ffma_tma: out = alpha * a * b + beta * c in float32, operands by TMA, outputs in registers (Hopper).
//
//   memory --TMA--> STAGES tiles of a (BK x BM) and b (BK x BN) --16 bytes a load--> registers --fma--> acc
//
// One thread starts the copies, each of a whole tile; a warp waits for the tile that it needs and for nothing else, so
// that warps drift apart and one's loads hide behind the other's arithmetic. A block walks tiles until none is left: the
// next tile's operands come while this one's results go. a must be contiguous along m and b along n: others are packed
// so first, which costs a hundredth of a product of 4096 x 4096 x 4096, where reading a along k would cost each second
// multiply-add a clock: four k of one row lie in registers of one bank (see Sums in ffma.cuh).
//
//   full[s]    the copies into stage s have come             empty[s]    all threads have read what stage s holds
//
// ORDERED when k is not cut: each output is one chain of fma, k ascending.
//
// Grid: x = parts * as many blocks as run at once, or less. Block: THREADS = BM * BN / (TM * TN).

#ifndef BM
#define BM 128 // rows of out a block
#endif
#ifndef BN
#define BN 256 // columns of out a block
#endif
#ifndef BK
#define BK 32 // steps along k a stage
#endif
#ifndef TM
#define TM 8 // rows of out a thread
#endif
#ifndef TN
#define TN 16 // columns of out a thread
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "ffma.cuh"

static_assert(THREADS == WORKERS, "a thread has TM * TN outputs");

enum {
    STAGE = BK * (BM + BN), // elements
    LAG = 2                 // steps after which a stage is filled again: by then the slowest warp has left it
};

// The tiles of this block, one after the other, over the batch too.
struct Walk {
    unsigned index, stride, tiles; // number of the tile; distance to the next; tiles of one product

    __device__ __forceinline__ explicit Walk(const Gemm &g)
        : index(blockIdx.x / g.parts), stride(gridDim.x / g.parts), tiles(tiles_of<BM, BN>(g)) {}
    __device__ __forceinline__ Tile tile(const Gemm &g) const {
        return tile_of<BM, BN>(g, index % tiles);
    }
    __device__ __forceinline__ int batch() const {
        return index / tiles;
    }
};

// What one thread has to copy: steps of the block's share of k, tile after tile.
struct Producer {
    Walk walk;
    Share share;
    int step = 0, stage = 0;
    unsigned started = 0, phase = 1; // steps, of all tiles; parity of the stage's last release: none is needed at first

    __device__ __forceinline__ void start(const Gemm &g, const TensorMap &a_map, const TensorMap &b_map, float *tiles,
                                          unsigned full, unsigned empty) {
        const Tile tile = walk.tile(g);
        const int z = walk.batch(), k = (share.first + step) * BK;
        const unsigned bar = full + 8 * stage, to = shared_address(tiles + stage * STAGE);
        barrier_wait(empty + 8 * stage, phase);
        barrier_expect(bar, STAGE * sizeof(float));
        tma_load_3d(to, &a_map, bar, (int)tile.top, k, g.a_batch ? z : 0);
        tma_load_3d(to + BK * BM * sizeof(float), &b_map, bar, (int)tile.left, k, g.b_batch ? z : 0);
        ++started;
        if (++stage == STAGES) stage = 0, phase ^= 1;
        if (++step == share.steps) step = 0, walk.index += walk.stride;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_cuda_ffma_tma(ARGUMENT Gemm g, ARGUMENT TensorMap a_map, ARGUMENT TensorMap b_map) {
    alignas(128) extern __shared__ unsigned char shared[];
    alignas(8) __shared__ unsigned long long barriers[2 * STAGES];
    float *const tiles = (float *)shared;
    const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, THREADS);
        barrier_init_fence();
    }
    __syncthreads();
    follow_launch();

    Walk walk(g);
    const int part = blockIdx.x % g.parts;
    const Share share = share_of<BK>(g, part);
    const Lane lane = lane_of(threadIdx.x);
    const unsigned all = walk.tiles * (unsigned)g.batch;
    Producer producer{walk, share};

    // The copies that may start: of this tile, and of the next ones where no join needs the stages' memory between.
    unsigned limit = 0, done = 0, free = STAGES;
    if (g.parts == 1) limit = (all - walk.index + walk.stride - 1) / walk.stride * share.steps;
    for (int stage = 0, phase = 0, turn = 0; walk.index < all; walk.index += walk.stride, ++turn) {
        if (g.parts > 1) limit += share.steps, free = done + STAGES;
        Sums<float> acc;
        for (int step = 0; step < share.steps; ++step) {
            if (threadIdx.x == 0) {
                while (producer.started < min(limit, free)) producer.start(g, a_map, b_map, tiles, full, empty);
            }
            barrier_wait(full + 8 * stage, phase);
            const float *const a_tile = tiles + stage * STAGE;
            if ((long long)(share.first + step + 1) * BK <= g.k)
                multiply_tiles<BK, BM, BN>(acc, a_tile, a_tile + BK * BM, lane);
            else
                multiply_rest<BM, BN>(acc, a_tile, a_tile + BK * BM, lane, (int)(g.k % BK));
            barrier_arrive(empty + 8 * stage);
            if (++stage == STAGES) stage = 0, phase ^= 1;
            ++done;
            free = max(free, done + STAGES - LAG + 1);
        }
        float sums[TM * TN];
        acc.spread(sums);
        finish<false>(g, walk.batch(), walk.index % walk.tiles, part, threadIdx.x, sums, shared, turn);
        if (g.parts > 1) { // what join wrote comes before what TMA writes there
            fence_async();
            __syncthreads();
        }
    }
}
