// gemm_cuda_ffma_tma: out = alpha * a * b + beta * c in float32, operands loaded by TMA, outputs in registers (Hopper).
//
//   memory --TMA--> ring of STAGES tiles of a (BK x BM) and b (BK x BN) --16 bytes per load--> registers --fma--> acc
//
// One warpgroup loads and the others multiply, as in hopper.cuh. A warp waits only for the stage that it needs next.
// Warps therefore run at different places of the loop, and the loads of one warp hide behind the arithmetic of another.
// The first elements of a stage are loaded from shared memory during the last products of the previous stage. The code
// that multiplies the BK rows of a stage has no branch. Instruction fetch becomes too slow if this code is longer than
// 36 KiB, or if more than 8 warps are at different places in it.
//
// The grid is persistent: each block computes several tiles of out. The operands of the next tile are loaded while the
// results of the current tile are stored. If the last round has fewer tiles than there are blocks, all blocks share
// these tiles (see Pieces). b must be contiguous along n, and a along m (A_TURNED 1) or k (A_TURNED 0); other layouts
// are packed first. With a contiguous along m, the loop is 2% faster, which for large products exceeds the cost of
// packing a. The catalog therefore has two entries for this kernel, one for each layout of a.
//
// The kernel is ORDERED if k is not split and no tile is shared: each output is then one chain of fma in ascending k.
//
// Grid: x = at most parts * the number of blocks that run at once. Block: THREADS = BM * BN / (TM * TN) + 128.

#ifndef BM
#define BM 128 // rows of out per block
#endif
#ifndef BN
#define BN 128 // columns of out per block
#endif
#ifndef BK
#define BK 32 // elements of k per stage
#endif
#ifndef TM
#define TM 8 // rows of out per thread
#endif
#ifndef TN
#define TN 8 // columns of out per thread
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 384
#endif
#define JOIN_BARRIER 2 // hopper.cuh uses barrier 1
#define ACTIVATION static __device__ __noinline__
#if !A_TURNED
// Lanes that are neighbors along m have adjacent rows. Their chunks of 16 bytes at the same k are in different banks.
#define BESIDE_M 1
#endif

#include "ffma.cuh"
#include "hopper.cuh"

static_assert(THREADS == WORKERS + 128 && WORKERS % 128 == 0, "a thread has TM * TN outputs; a warpgroup loads");
static_assert(BK == 32 && LANES_M * TM == 32, "a slab of a is 128 bytes along k, or along m the rows of a warp");

// The tile of b: BK rows of BN elements, loaded as one box.
struct B {
    enum { BYTES = BK * BN * (int)sizeof(float), BOXES = 1 };

    static __device__ __forceinline__ void load(int, unsigned tile, const TensorMap *map, unsigned full, int col, int k,
                                                int z, unsigned short) {
        tma_load_3d(tile, map, full, col, k, z);
    }
};
typedef Operand<float, BM, BK, !A_TURNED> A;
typedef Ring<STAGES, A::BYTES + B::BYTES> Stages;

// The elements that a lane multiplies in a stage. While the lane multiplies, it loads elements for later steps of k;
// at the end of a stage, these are steps of the next stage:
//   b                one step of k
//   a, A_TURNED 0    four steps of k, in one load of 16 bytes for each of the lane's TM rows
//   a, A_TURNED 1    one step of k, in loads of 16 bytes for four rows each
// Both layouts of a need TM / 4 loads per step of k. These loads have no bank conflicts, because TMA has swizzled a:
// chunk x (16 bytes) of line y (128 bytes) is at position x ^ y % 8.
struct Rolling {
    enum { DEEP = A_TURNED ? 1 : 4 };
    alignas(16) float a[2][TM * DEEP], b[2][TN];
    unsigned a_bases[4], b_base;

    // Returns the address of this lane's first 16 bytes in a tile of a that starts at address 0.
    static __device__ __forceinline__ unsigned a_first(Lane lane) {
        return A_TURNED ? lane.m / 32 * A::SLAB + lane.m % 32 * 4 : lane.m * 128 + lane.m % 4 * 16;
    }
    __device__ __forceinline__ void a_begin(unsigned at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a_bases[i] = kept(at ^ i * 16);
    }
    // Starts the loads of a for step p. If A_TURNED is 0, these are a quarter of the loads for the four steps that
    // include step p. `multiply` calls this function DEEP steps before step p.
    __device__ __forceinline__ void load_a(int p) {
#pragma unroll
        for (int x = 0; x < TM / 4; ++x) {
            const int i = A_TURNED ? x : p % 4 * (TM / 4) + x, line = A_TURNED ? p : i * LANES_M; // a line is 128 bytes
            const int chunk = A_TURNED ? p : p / 4;
            const unsigned at = a_bases[chunk % 4] + line * 128 + (chunk / 4 + i) % 2 * 64;
            shared_load(a[p / DEEP % 2] + i * 4, at);
        }
    }
    __device__ __forceinline__ void load_b(int p) {
        load<LANES_N>(b[p % 2], b_base + p * (BN * (int)sizeof(float)));
    }
    __device__ __forceinline__ void begin(unsigned a_at, unsigned b_at) {
        a_begin(a_at), b_base = kept(b_at);
#pragma unroll
        for (int p = 0; p < DEEP; ++p) load_a(p);
        load_b(0);
    }
    // acc += a * b over the BK rows of the current stage, in ascending k. Also starts the loads of the next stage; a_at
    // and b_at are the addresses of this lane's first elements in the next stage.
    __device__ __forceinline__ void multiply(float (&acc)[TM * TN], unsigned a_at, unsigned b_at) {
#pragma unroll // fully unrolled: a loop would move sums between registers, which costs up to a tenth of the speed
        for (int p = 0; p < BK; ++p) {
            if (p + DEEP == BK) a_begin(a_at);
            if (p + 1 == BK) b_base = kept(b_at);
            load_a((p + DEEP) % BK);
            load_b((p + 1) % BK);
            float row[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) row[i] = a[p / DEEP % 2][i * DEEP + p % DEEP];
            add_product(acc, row, b[p % 2]);
        }
    }
    // Multiplies only the first `steps` rows, for the last stage of a tile, like Fragments::multiply_rest (ffma.cuh).
    __device__ __forceinline__ void multiply_rest(float (&acc)[TM * TN], unsigned a_at, int steps) {
#pragma unroll 1
        for (int p = 0; p < steps; ++p) {
            float row[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int line = A_TURNED ? p : i * LANES_M, chunk = A_TURNED ? p % 8 ^ i / 4 * 4 : p / 4 ^ i % 2 * 4;
                row[i] = shared_float((a_at ^ chunk * 16) + line * 128 + (A_TURNED ? i : p) % 4 * 4);
            }
            load<LANES_N>(b[0], b_base + p * (BN * (int)sizeof(float)));
            add_product(acc, row, b[0]);
        }
    }
};

// The pieces of work of a block, in order. If g.memory is set, and the last round of tiles has fewer tiles than there
// are blocks, all blocks share these tiles ("stream-K": Osama et al., PPoPP 2023). The steps along k of all shared
// tiles form one sequence, and each block gets an equal run of this sequence. A block has these pieces:
//   LEFT    the beginning or middle of a shared tile, if any: the block writes its sums to g.memory
//   ENDED   the end of a shared tile, if any: the block adds the sums that blocks of lower numbers have written for it
//   WHOLE   then the block's tiles that are not shared, in the order of Walk
struct Pieces : Walk<BM, BN, 1> {
    enum { LEFT, ENDED, WHOLE };
    unsigned block, shared, steps; // number of this block; number of shared tiles; steps per tile
    long long whole;               // number of tiles that are not shared
    int piece = LEFT - 1;
    Share run{};

    __device__ __forceinline__ Pieces(const Gemm &g, unsigned block) : Walk<BM, BN, 1>(g, block), block(block) {
        const long long all = (long long)tiles * g.batch;
        shared = g.memory ? all % gridDim.x : 0, whole = all - shared, steps = (unsigned)((g.k + BK - 1) / BK);
        next();
    }
    // Returns the first step of block x in the sequence of steps of all shared tiles.
    __device__ __forceinline__ unsigned start(unsigned x) const {
        return (unsigned)((unsigned long long)x * shared * steps / gridDim.x);
    }
    __device__ __forceinline__ void at(unsigned tile, unsigned from, unsigned to) {
        z = (whole + tile) / tiles, rest = (unsigned)((whole + tile) % tiles);
        run = Share{(int)(from - tile * steps), (int)(to - from)};
    }
    __device__ __forceinline__ void next() {
        if (piece == WHOLE) return Walk<BM, BN, 1>::next();
        const unsigned from = start(block), to = start(block + 1), first = from / steps, last = to / steps;
        if (++piece == LEFT) {
            if (to > max(from, last * steps)) return at(last, max(from, last * steps), to);
            ++piece;
        }
        if (piece == ENDED) {
            if (first < last) return at(first, from, last * steps);
            ++piece;
        }
        const unsigned index = block / g.parts;
        z = index / tiles, rest = index % tiles;
    }
    __device__ __forceinline__ bool more() const {
        return piece < WHOLE || z * tiles + rest < whole;
    }
    template <int DEEP> __device__ __forceinline__ Share share() const {
        return piece < WHOLE ? run : Walk<BM, BN, 1>::template share<DEEP>();
    }

    // Returns the address where one thread of block x writes its first four sums: the thread that has this thread's
    // number. That thread's next four sums are WORKERS float4 further. Memory ordering: each thread executes a fence
    // after its stores, then all threads synchronize, then one thread sets the block's arrival flag. In the block that
    // reads the sums, one thread reads the flag and executes a fence, and a barrier releases the other threads.
    __device__ __forceinline__ float4 *sums_of(unsigned x) const {
        return (float4 *)g.memory + (long long)x * (TM * TN / 4 * WORKERS) + threadIdx.x;
    }
    __device__ __forceinline__ void leave(const float (&sums)[TM * TN]) const {
#pragma unroll
        for (int i = 0; i < TM * TN; i += 4)
            sums_of(block)[i / 4 * WORKERS] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        __threadfence();
        bar_sync(JOIN_BARRIER, WORKERS);
        if (threadIdx.x == 0) atomicExch(g.arrivals + block, 1u);
    }
    // Adds the sums that blocks of lower numbers have written for this block's ENDED tile, in the order of k.
    __device__ __forceinline__ void add_left(float (&sums)[TM * TN]) const {
        unsigned x = block;
        for (const unsigned first = start(block) / steps * steps; start(x) > first;) --x;
        for (; x < block; ++x) {
            if (threadIdx.x == 0) {
                while (atomicExch(g.arrivals + x, 0u) == 0) continue;
                __threadfence();
            }
            bar_sync(JOIN_BARRIER, WORKERS);
#pragma unroll
            for (int i = 0; i < TM * TN; i += 4) {
                const float4 more = __ldcg(sums_of(x) + i / 4 * WORKERS);
                sums[i] = add(sums[i], more.x), sums[i + 1] = add(sums[i + 1], more.y);
                sums[i + 2] = add(sums[i + 2], more.z), sums[i + 3] = add(sums[i + 3], more.w);
            }
        }
    }
};

INLINE void multiply(const Gemm &g, Stages ring, Pieces walk) {
    const Lane lane = lane_of(threadIdx.x);
    const unsigned tiles = shared_address(ring.memory), bytes = A::BYTES + B::BYTES;
    const unsigned a_from = kept(tiles + Rolling::a_first(lane));
    const unsigned b_from = kept(tiles + A::BYTES + lane.n * (unsigned)sizeof(float));
    int turn = 0;
    for (; walk.more(); walk.next(), ++turn) {
        const Share share = walk.share<BK>();
        // 1 if the last step of this piece has fewer than BK rows, else 0
        const int ragged = (share.first + share.steps) * (long long)BK > g.k;
        float acc[TM * TN] = {};
        Rolling rolling;
        int left = share.steps;
        if (left > 0) {
            barrier_wait(ring.full(), ring.parity);
            rolling.begin(a_from + ring.stage * bytes, b_from + ring.stage * bytes);
        }
#pragma unroll 1
        for (; left > ragged; --left) {
            const Stages before = ring;
            ring.next();
            if (left > 1) barrier_wait(ring.full(), ring.parity); // waits here, so that `multiply` needs no branch
            // The offset of the stage that is loaded ahead. In the last step, this is the offset of the current stage:
            // the loaded elements are not used, but the loads need no branch.
            const unsigned next = kept((left > 1 ? ring : before).stage * bytes);
            rolling.multiply(acc, a_from + next, b_from + next);
            __syncwarp(); // all lanes have read the stage
            before.leave<1>(0);
        }
        if (left > 0) {
            rolling.multiply_rest(acc, a_from + ring.stage * bytes, (int)(g.k % BK));
            __syncwarp();
            ring.leave<1>(0);
            ring.next();
        }
        if (walk.piece == Pieces::LEFT) {
            walk.leave(acc);
            continue;
        }
        if (walk.piece == Pieces::ENDED) walk.add_left(acc);
        finish<false>(g, walk.z, walk.rest, walk.part, threadIdx.x, acc, ring.memory, turn);
        if (g.parts > 1) return_ring<1>();
    }
}

// Returns the number of this block in the order in which blocks start. A block waits only for blocks of lower numbers.
// These have already started, so the wait ends, whatever else runs on the GPU. *count is 0 before and after the launch.
INLINE unsigned counted(unsigned *count) {
    __shared__ unsigned number;
    if (threadIdx.x == 0) {
        number = atomicAdd(count, 1u);
        if (number == gridDim.x - 1) *count = 0;
    }
    __syncthreads();
    return number;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_cuda_ffma_tma(ARGUMENT Gemm g, ARGUMENT TensorMap a_map, ARGUMENT TensorMap b_map) {
    extern __shared__ unsigned char shared[];
    Stages ring(shared);
    ring.start(WORKERS / 32, g.parts > 1, &a_map, &b_map);
    const Pieces walk(g, g.memory ? counted(g.arrivals + gridDim.x) : blockIdx.x);
    if (threadIdx.x >= WORKERS) {
        registers_down<LOADER_REGISTERS>();
        produce<A, B, BK, 1>(g, ring, walk, &a_map, &b_map);
    } else {
        registers_up<Registers<WORKERS / 128, 1>::EACH>();
        multiply(g, ring, walk);
    }
}
