// The code shared by the Hopper kernels (sm_90a) that load their operands by TMA. The tensor-core kernels multiply with
// wgmma, as described below. gemm_cuda_ffma_tma has the same loading warpgroup, but multiplies with fma.
//
//     GROUPS warpgroups    each multiplies its 64 rows of a's tile by the whole tile of b; accumulators in registers
//     ring of stages       in shared memory; a stage has a tile of a, a tile of b and two barriers, full and empty
//     1 loading warpgroup  one lane waits until a stage is empty, sets the expected byte count, and starts TMA loads.
//                          A whole warpgroup loads because only warpgroups can give registers to other warpgroups
//
// The grid is persistent: each block computes several tiles of out, over the whole batch. The loads for the next tile
// of out run during the epilogue of the current one. SHARING blocks of a cluster compute tiles of out that are adjacent
// along m and share the tiles of b. Each of these blocks loads its part of b's boxes and multicasts it into the shared
// memory of all of them. A stage is therefore empty when the warpgroups of all these blocks have read it. With split-K,
// the parts of a tile of out also belong to the cluster, which then has SHARING * parts blocks with consecutive block
// numbers. The parts exchange their partial sums through shared memory.
//
// Grid of the tensor-core kernels: x counts clusters of MULTICAST (= SHARING) * parts blocks. The tensor maps contain
// the strides of a and b. c, bias and out may have any strides. The tensor cores determine the order in which products
// are added. This order is fixed for given launch parameters, but these kernels are not ORDERED.
#ifndef GEMM_CUDA_HOPPER
#define GEMM_CUDA_HOPPER

#include "gemm.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

// An operand's tile: ROWS of m or n by DEEP of k. Shared memory stores the tile as slabs with rows of WIDTH bytes.
// WIDTH is the width of the swizzle, 32 to 128 bytes.
//
//     ALONG_K (k is contiguous)           a slab is WIDTH bytes of k by ROWS; a TMA box is BOX rows of a slab
//     else (m or n is contiguous)         a slab is WIDTH bytes of m or n by DEEP; a TMA box is a whole slab
template <class T, int ROWS, int DEEP, bool ALONG_K, int WIDTH = 128, int BOX = ROWS> struct Operand {
    enum {
        ACROSS = WIDTH / sizeof(T), // elements in a row of a slab
        SLAB = WIDTH * (ALONG_K ? ROWS : DEEP),
        BYTES = ROWS * DEEP * (int)sizeof(T),
        STEP = 32 / sizeof(T), // elements of k in one wgmma
        BOXES = ALONG_K ? DEEP / ACROSS * (ROWS / BOX) : ROWS / ACROSS,
        TRANSPOSED = !ALONG_K
    };
    static_assert(SLAB * (ALONG_K ? DEEP : ROWS) == BYTES * ACROSS, "whole slabs");
    static_assert(ROWS % BOX == 0 && BOX * WIDTH % 1024 == 0 && SLAB % 1024 == 0, "boxes start at whole atoms");

    // Starts the load of box `i` of a tile to shared memory at `tile`. The tile begins at (row, k) of matrix z. The
    // barrier `full` counts the loaded bytes. `blocks` has a bit for each block of the cluster that receives the box;
    // if it is 0, only this block receives the box.
    static __device__ __forceinline__ void load(int i, unsigned tile, const TensorMap *map, unsigned full, int row,
                                                int k, int z, unsigned short blocks) {
        const int down = ALONG_K ? i % (ROWS / BOX) * BOX : 0, slab = ALONG_K ? i / (ROWS / BOX) : i;
        const int x = (ALONG_K ? k : row) + slab * ACROSS, y = ALONG_K ? row + down : k;
        const unsigned to = tile + slab * SLAB + down * WIDTH;
        if (blocks)
            tma_load_3d_multicast(to, map, full, x, y, z, blocks);
        else
            tma_load_3d(to, map, full, x, y, z);
    }

    // Returns the wgmma descriptor of the data from row `row` and k = step * STEP on: the tile's descriptor plus an
    // offset. Without ALONG_K, wgmma reads only 16-bit types.
    static __device__ __forceinline__ unsigned long long at(unsigned tile, int row, int step) {
        const int k = step * STEP;
        const int offset =
            ALONG_K ? k / ACROSS * SLAB + row * WIDTH + k % ACROSS * (int)sizeof(T) : row / ACROSS * SLAB + k * WIDTH;
        return descriptor(tile, ALONG_K ? 16 : SLAB, 8 * WIDTH, WIDTH == 128 ? 1 : WIDTH == 64 ? 2 : 3) + offset / 16;
    }
};

// The ring of stages. The loading thread and each thread that multiplies have their own copies of this object, and step
// through the stages in the same order.
//
// Why a stage may be reused: each reader arrives at `empty` after its last read of the stage (with wgmma: after it has
// waited for the wgmma group). The reader arrives at the `empty` barrier of every block whose loader writes to this
// stage. The loader waits for all these arrivals before it writes. The previous writes to the stage were also TMA
// writes, so no proxy fence is needed. Readers read only complete data, because `full` counts the bytes.
template <int DEPTH, int BYTES> struct Ring {
    static_assert(BYTES % 1024 == 0, "stages start at whole atoms of the swizzle");
    unsigned char *memory; // the stages, then their barriers, then the barrier of the split-K exchange
    int stage = 0;
    unsigned parity = 0;

    // `base`: start of dynamic shared memory. The stages begin up to 1023 bytes later, to be aligned.
    __device__ __forceinline__ explicit Ring(unsigned char *base) {
        memory = base + (1024 - shared_address(base) % 1024) % 1024;
    }
    __device__ __forceinline__ unsigned char *behind(int alignment) const { // the memory after the barriers
        return memory + (DEPTH * (BYTES + 16) + 16 + alignment - 1) / alignment * alignment;
    }
    __device__ __forceinline__ unsigned joined() const {
        return shared_address(memory) + DEPTH * (BYTES + 16);
    }
    __device__ __forceinline__ unsigned tiles() const {
        return shared_address(memory) + stage * BYTES;
    }
    __device__ __forceinline__ unsigned full() const {
        return shared_address(memory) + DEPTH * BYTES + stage * 16;
    }
    __device__ __forceinline__ unsigned empty() const {
        return full() + 8;
    }
    __device__ __forceinline__ void next() {
        if (++stage == DEPTH) {
            stage = 0;
            parity ^= 1;
        }
    }

    // Initializes the barriers. Called by all threads before they use the ring. `leaving`: number of arrivals at
    // `empty` that make a stage empty. `cluster`: the cluster has more than one block. Also prefetches the tensor maps.
    __device__ __forceinline__ void start(int leaving, bool cluster, const TensorMap *a_map, const TensorMap *b_map) {
        if (threadIdx.x == 32) {
            tma_prefetch(a_map);
            tma_prefetch(b_map);
        }
        if (threadIdx.x == 0) {
            Ring each = *this;
            for (int i = 0; i < DEPTH; ++i, each.next()) {
                barrier_init(each.full(), 1);
                barrier_init(each.empty(), leaving);
            }
            barrier_init(joined(), 1);
            barrier_init_fence();
        }
        if (cluster)
            cluster_meet();
        else
            __syncthreads();
        follow_launch();
    }

    // Called by the loading thread after its last stage. Waits for all outstanding arrivals: this block must not exit
    // while other blocks may still arrive at its barriers.
    __device__ __forceinline__ void drain() {
        for (int i = 0; i < DEPTH; ++i, next()) barrier_wait(empty(), parity ^ 1);
    }

    // Called by all lanes of a warp that has read the stage. With SHARING = 1, one lane arrives at this block's
    // barrier. Otherwise one lane arrives at the barrier of each block first .. first + SHARING - 1 of the cluster.
    // This function is only for reads by wgmma: waiting for a wgmma group covers the reads of the whole warp.
    template <int SHARING> __device__ __forceinline__ void leave(int first) const {
        const int lane = threadIdx.x % 32;
        if (SHARING == 1) {
            if (lane == 0) barrier_arrive(empty());
        } else if (lane < SHARING) {
            barrier_arrive_remote(empty(), first + lane);
        }
    }
};

// The tiles of this block, which steps through the tiles of all products with a fixed stride (a persistent grid).
template <int HIGH, int WIDE, int SHARING> struct Walk {
    enum { SHARED_BY = SHARING };
    const Gemm &g;
    int pair, part;                   // the block's number among the blocks that share b; the block's part of k
    unsigned tiles, rest, step, leap; // tiles per product; current tile; next() adds `step` to `rest` and `leap` to `z`
    long long z;                      // current product

    // Starts at the first tile of block number `block`.
    __device__ __forceinline__ explicit Walk(const Gemm &g, unsigned block = blockIdx.x) : g(g) {
        const unsigned blocks = SHARING * g.parts, index = block / blocks;
        pair = block % SHARING;
        part = block / SHARING % g.parts;
        tiles = tiles_of<HIGH * SHARING, WIDE>(g);
        leap = gridDim.x / blocks / tiles;
        step = gridDim.x / blocks % tiles;
        z = index / tiles;
        rest = index % tiles;
    }
    __device__ __forceinline__ bool more() const {
        return z < g.batch;
    }
    __device__ __forceinline__ void next() {
        z += leap, rest += step;
        if (rest >= tiles) rest -= tiles, ++z;
    }
    __device__ __forceinline__ Tile tile() const {
        Tile tile = tile_of<HIGH * SHARING, WIDE>(g, rest);
        tile.top += pair * HIGH;
        return tile;
    }
    template <int DEEP> __device__ __forceinline__ Share share() const { // this block's share of k
        return share_of<DEEP>(g, part);
    }
    __device__ __forceinline__ int first() const { // first block in the cluster of those that share b with this block
        return part * SHARING;
    }
};

// The register counts of the loading warpgroup and of the multiplying warpgroups, with BLOCKS blocks per multiprocessor
// and GROUPS multiplying warpgroups per block. The register file of a multiprocessor has four quarters, and each warp
// of a warpgroup uses a different quarter. Each quarter has 512 registers per lane. At the start all warpgroups have
// the same register count, a multiple of 8. Afterwards registers can only move between the warpgroups of a block: a
// warpgroup that requests more than the others have released waits forever.
enum { LOADER_REGISTERS = 40 };
template <int GROUPS, int BLOCKS> struct Registers {
    enum {
        START = 512 / BLOCKS / (GROUPS + 1) / 8 * 8,
        FITTING = (START * (GROUPS + 1) - LOADER_REGISTERS) / GROUPS / 8 * 8,
        EACH = FITTING < 240 ? FITTING : 240
    };
};

// With split-K, the partial sums of a tile are exchanged through the memory of the ring. A thread calls return_ring
// after it has read all the sums that it needs. The loading warpgroup calls await_ring before it loads the next tile.
//
// Why this is safe: the proxy fence orders the reads before the later TMA writes, and the barrier makes the loader wait
// for the reads. If blocks share b, a loader also writes into the rings of the other blocks. The loader must then wait
// for the readers of all these blocks, so all threads of the cluster synchronize. Otherwise a loader writes only into
// its own ring and waits only for its own block.
template <int SHARING> INLINE void return_ring() {
    fence_async();
    if (SHARING > 1)
        cluster_meet();
    else
        bar_arrive(1, THREADS - 96);
}
template <int SHARING> INLINE void await_ring() {
    if (SHARING > 1)
        cluster_meet();
    else if (threadIdx.x % 128 < 32) // the loading warp
        bar_sync(1, THREADS - 96);
}

// The loop of the loading warpgroup: fills the stages with this block's tiles. A stage gets PER_STAGE tiles of a, then
// PER_STAGE tiles of b.
template <class A, class B, int DEEP, int PER_STAGE, class R, class W>
INLINE void produce(const Gemm &g, R ring, W walk, const TensorMap *a_map, const TensorMap *b_map) {
    enum { SHARING = W::SHARED_BY };
    for (; walk.more(); walk.next()) {
        if (threadIdx.x % 128 == 0) {
            const Tile tile = walk.tile();
            const Share share = walk.template share<DEEP>();
            const int a_z = (g.a_batch ? (int)walk.z : 0) * PER_STAGE, b_z = (g.b_batch ? (int)walk.z : 0) * PER_STAGE;
            const unsigned short blocks = SHARING > 1 ? ((1 << SHARING) - 1) << walk.first() : 0;
            for (int step = share.first; step < share.first + share.steps; ++step, ring.next()) {
                barrier_wait(ring.empty(), ring.parity ^ 1);
                barrier_expect(ring.full(), PER_STAGE * (A::BYTES + B::BYTES));
                const int k = step * DEEP;
#pragma unroll
                for (int plane = 0; plane < PER_STAGE; ++plane) {
                    const unsigned a = ring.tiles() + plane * A::BYTES;
                    const unsigned b = ring.tiles() + PER_STAGE * A::BYTES + plane * B::BYTES;
#pragma unroll
                    for (int i = 0; i < A::BOXES; ++i)
                        A::load(i, a, a_map, ring.full(), (int)tile.top, k, a_z + plane, 0);
#pragma unroll
                    for (int i = 0; i < B::BOXES; ++i)
                        if (i % SHARING == walk.pair)
                            B::load(i, b, b_map, ring.full(), (int)tile.left, k, b_z + plane, blocks);
                }
            }
        }
        __syncwarp();
        // The other warpgroups exchange their partial sums in `deliver`, and use the ring's memory until return_ring.
        if (g.parts > 1) {
            cluster_meet();
            await_ring<SHARING>();
        }
    }
    if (SHARING > 1 && threadIdx.x % 128 == 0) ring.drain();
}

#endif
