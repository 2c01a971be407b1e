// What the kernels for Hopper (sm_90a) share whose operands come by TMA. Those of tensor cores multiply by wgmma, as
// below; gemm_cuda_ffma_tma has warpgroups of its own kind beside the one that loads.
//
//     GROUPS warpgroups    each multiplies its 64 rows of a's tile by all of b's, and holds the sums in registers
//     ring of stages       in shared memory, each with a tile of a and one of b and two barriers, full and empty
//     one warpgroup more   of which one lane loads: waits until a stage is empty, expects its bytes, starts its boxes.
//                          A warpgroup, for only these can hand their registers to others
//
// The grid is persistent: blocks walk tiles and the batch, and the next tile's loads run during a tile's epilogue.
// SHARING blocks of a cluster have tiles below each other and share those of b: each loads its boxes of them into the
// shared memory of all, so that a stage is empty when the consumers of all have left it. With parts of k, the parts of
// a tile are a cluster (SHARING * parts blocks, which lie side by side in the grid), and exchange their sums through
// shared memory.
#ifndef GEMM_CUDA_HOPPER
#define GEMM_CUDA_HOPPER

#include "gemm.cuh"
#include "ptx.cuh"
#include "wgmma.cuh"

// The tile of an operand: ROWS of m or n by DEEP of k, in slabs whose rows are WIDTH bytes (of the swizzle, 32 to 128).
//
//     ALONG_K (k contiguous):   a slab is WIDTH bytes of k x ROWS; a box of its map is BOX rows of a slab
//     else (m or n is, 16-bit): a slab is WIDTH bytes of m or n x DEEP; a box is a slab
template <class T, int ROWS, int DEEP, bool ALONG_K, int WIDTH = 128, int BOX = ROWS> struct Operand {
    enum {
        ACROSS = WIDTH / sizeof(T), // elements of a slab's row
        SLAB = WIDTH * (ALONG_K ? ROWS : DEEP),
        BYTES = ROWS * DEEP * (int)sizeof(T),
        STEP = 32 / sizeof(T), // of k, that a wgmma multiplies
        BOXES = ALONG_K ? DEEP / ACROSS * (ROWS / BOX) : ROWS / ACROSS,
        TRANSPOSED = !ALONG_K
    };
    static_assert(SLAB * (ALONG_K ? DEEP : ROWS) == BYTES * ACROSS, "whole slabs");
    static_assert(ROWS % BOX == 0 && BOX * WIDTH % 1024 == 0 && SLAB % 1024 == 0, "boxes start at whole atoms");

    // Starts box `i` of the tile at (row, k) of matrix z.
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

    // What a wgmma reads from `row` on and, counted in STEPs, from `step` of k on: the tile's descriptor, moved.
    static __device__ __forceinline__ unsigned long long at(unsigned tile, int row, int step) {
        const int k = step * STEP;
        const int offset =
            ALONG_K ? k / ACROSS * SLAB + row * WIDTH + k % ACROSS * (int)sizeof(T) : row / ACROSS * SLAB + k * WIDTH;
        return descriptor(tile, ALONG_K ? 16 : SLAB, 8 * WIDTH, WIDTH == 128 ? 1 : WIDTH == 64 ? 2 : 3) + offset / 16;
    }
};

// The stages, walked in circles by producer and consumers, each with its own copy of this.
//
// Why a stage may be used again: its readers arrive at `empty` after their last read of it (of wgmma: after the wait for its
// group), in each block whose loader writes here, and the loader waits for all of them. What is then written was last
// written by TMA, too, so that no proxy fence is due. They read what has come, for `full` counts its bytes.
template <int DEPTH, int BYTES> struct Ring {
    static_assert(BYTES % 1024 == 0, "stages start at whole atoms of the swizzle");
    unsigned char *memory; // of the stages, then of their barriers and of the one at which parts exchange their sums
    int stage = 0;
    unsigned parity = 0;

    // `base`: dynamic shared memory, of which up to 1024 bytes are lost to alignment.
    __device__ __forceinline__ explicit Ring(unsigned char *base) {
        memory = base + (1024 - shared_address(base) % 1024) % 1024;
    }
    __device__ __forceinline__ unsigned char *behind(int alignment) const { // of the barriers
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

    // By all threads, before any use. `leaving`: arrivals that empty a stage. The maps are fetched meanwhile.
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

    // By the thread that loads, after its last stage: until all arrivals have come, the other blocks' among them, which
    // must find this block's barriers there.
    __device__ __forceinline__ void drain() {
        for (int i = 0; i < DEPTH; ++i, next()) barrier_wait(empty(), parity ^ 1);
    }

    // By all lanes of a warp that has read the stage: one arrives, at this block's barrier or at each of the cluster's
    // blocks first .. first + SHARING - 1. Only for reads by wgmma, the wait for which is the whole warp's.
    template <int SHARING> __device__ __forceinline__ void leave(int first) const {
        const int lane = threadIdx.x % 32;
        if (SHARING == 1) {
            if (lane == 0) barrier_arrive(empty());
        } else if (lane < SHARING) {
            barrier_arrive_remote(empty(), first + lane);
        }
    }
};

// The tiles of this block: in a persistent grid, every so many of all tiles of all products.
template <int HIGH, int WIDE, int SHARING> struct Walk {
    enum { SHARED_BY = SHARING };
    const Gemm &g;
    int pair, part;                   // number of this block among those that share b, and its part of k
    unsigned tiles, rest, step, leap; // from tile to tile: `leap` products and `step` tiles
    long long z;

    // Of block number `block`.
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
    template <int DEEP> __device__ __forceinline__ Share share() const { // of k
        return share_of<DEEP>(g, part);
    }
    __device__ __forceinline__ int first() const { // of the cluster's blocks that share b with this one
        return part * SHARING;
    }
};

// Registers of the loading warpgroup and of the others, of BLOCKS blocks of so many warpgroups that multiply. All of them
// start with as many, a multiple of 8, of the 512 of the four warps that share a quarter of a multiprocessor, and can
// only hand on what the block then has: who asks for more waits forever.
enum { LOADER_REGISTERS = 40 };
template <int GROUPS, int BLOCKS> struct Registers {
    enum {
        START = 512 / BLOCKS / (GROUPS + 1) / 8 * 8,
        FITTING = (START * (GROUPS + 1) - LOADER_REGISTERS) / GROUPS / 8 * 8,
        EACH = FITTING < 240 ? FITTING : 240
    };
};

// With parts of k, the sums of a tile are exchanged through the memory of the ring. A thread that has read all it needs of
// them calls return_ring; the loading warpgroup calls await_ring before it loads the next tile.
//
// Why that is safe: the fence orders the reads before what TMA writes afterwards, and the barrier orders it in time. Where
// blocks share b, a loader writes into the ring of the other block, too, so that it must wait for the readers of both:
// all threads of the cluster meet. Where they do not, it writes into its own ring only, and waits for its own block.
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
    else if (threadIdx.x % 128 < 32) // the warp that loads
        bar_sync(1, THREADS - 96);
}

// The loading warpgroup: fills stages with the tiles of a and b of this block, PER_STAGE of each one after the other.
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
        if (g.parts > 1) { // the others exchange their sums in `deliver`: the ring is theirs until then
            cluster_meet();
            await_ring<SHARING>();
        }
    }
    if (SHARING > 1 && threadIdx.x % 128 == 0) ring.drain();
}

#endif
