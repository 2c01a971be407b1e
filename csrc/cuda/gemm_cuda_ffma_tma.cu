// gemm_cuda_ffma_tma: out = alpha * a * b + beta * c in float32, operands by TMA, outputs in registers (Hopper).
//
//   memory --TMA--> ring of STAGES tiles of a (BK x BM) and b (BK x BN) --16 bytes a load--> registers --fma--> acc
//
// A warpgroup loads and the others multiply, as in hopper.cuh. A warp waits for the tile that it needs and for nothing
// else, so that warps drift apart and one's loads hide behind the other's arithmetic; what of a tile comes first is loaded
// behind the last of the one before. The BK rows of a tile are one piece of code without a branch; of pieces longer than
// 36 KiB, or of more warps than 8, which are at different places in it, the instructions come too slowly. A block walks
// tiles until none is left: the next tile's operands come while this one's results go. The last tiles, fewer than there
// are blocks, are shared by all. b must be contiguous along n, a along m (A_TURNED) or k: else they are packed so first.
// Along m the loop is quicker by a fiftieth, which large products earn back when they pack a: two rows of the catalog.
//
// ORDERED when k is not cut and no tile shared: each output is one chain of fma, k ascending.
//
// Grid: x = parts * as many blocks as run at once, or less. Block: THREADS = BM * BN / (TM * TN) + 128.

#ifndef BM
#define BM 128 // rows of out a block
#endif
#ifndef BN
#define BN 128 // columns of out a block
#endif
#ifndef BK
#define BK 32 // steps along k a stage
#endif
#ifndef TM
#define TM 8 // rows of out a thread
#endif
#ifndef TN
#define TN 8 // columns of out a thread
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
#define JOIN_BARRIER 2 // 1 is that of hopper.cuh
#define ACTIVATION static __device__ __noinline__
#if !A_TURNED
#define BESIDE_M 1 // lanes read neighbouring rows, whose 16 bytes of the same k lie in different banks
#endif

#include "ffma.cuh"
#include "hopper.cuh"

static_assert(THREADS == WORKERS + 128 && WORKERS % 128 == 0, "a thread has TM * TN outputs; a warpgroup loads");
static_assert(BK == 32 && LANES_M * TM == 32, "a slab of a is 128 bytes along k, or along m the rows of a warp");

// The tile of b: BK rows of BN elements, which are one box.
struct B {
    enum { BYTES = BK * BN * (int)sizeof(float), BOXES = 1 };

    static __device__ __forceinline__ void load(int, unsigned tile, const TensorMap *map, unsigned full, int col, int k,
                                                int z, unsigned short) {
        tma_load_3d(tile, map, full, col, k, z);
    }
};
typedef Operand<float, BM, BK, !A_TURNED> A;
typedef Ring<STAGES, A::BYTES + B::BYTES> Stages;

// What a lane multiplies of a stage while it loads what follows, also of the next one: of b a row of k ahead, of a the 16
// bytes of its TM rows that are four k, or those of a row of k that are four rows of m. Either way TM / 4 loads of a for
// each row of k, without conflicts of banks: TMA has swizzled a, 16 bytes x of line y lie at x ^ y % 8.
struct Rolling {
    enum { DEEP = A_TURNED ? 1 : 4 };
    alignas(16) float a[2][TM * DEEP], b[2][TN];
    unsigned a_bases[4], b_base;

    // Where this lane's 16 bytes of a's first line begin in a tile that lies at 0.
    static __device__ __forceinline__ unsigned a_first(Lane lane) {
        return A_TURNED ? lane.m / 32 * A::SLAB + lane.m % 32 * 4 : lane.m * 128 + lane.m % 4 * 16;
    }
    __device__ __forceinline__ void a_begin(unsigned at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a_bases[i] = kept(at ^ i * 16);
    }
    // The loads of a that are due DEEP rows before row p.
    __device__ __forceinline__ void load_a(int p) {
#pragma unroll
        for (int x = 0; x < TM / 4; ++x) {
            const int i = A_TURNED ? x : p % 4 * (TM / 4) + x, line = A_TURNED ? p : i * LANES_M; // 128 bytes long
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
    // acc += a * b over the BK rows that are begun, k ascending, and begins those of another stage.
    __device__ __forceinline__ void multiply(float (&acc)[TM * TN], unsigned a_at, unsigned b_at) {
#pragma unroll // without a branch: moves of sums at the end of a loop cost up to a tenth
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
    // The same over the `steps` rows that the last tile of k has. Zeros behind them must not be multiplied: they would
    // make +0 of a sum that has come to -0, which the chain over k does not.
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

// What a block computes, one after the other. Where g.memory is there, the tiles that would be a last round of fewer than
// there are blocks are shared by all, in equal runs of steps along k ("stream-K": Osama et al., PPoPP 2023), which come
// first: the beginning or middle of a tile, whose sums the block leaves in memory; then the end of a tile, to which it adds
// what blocks of lower numbers have left of that. Then whole tiles, as in Walk.
struct Pieces : Walk<BM, BN, 1> {
    enum { LEFT, ENDED, WHOLE };
    unsigned block, shared, steps; // number of this block; tiles that are shared; steps of a tile
    long long whole;               // tiles that are not
    int piece = LEFT - 1;
    Share run{};

    __device__ __forceinline__ Pieces(const Gemm &g, unsigned block) : Walk<BM, BN, 1>(g, block), block(block) {
        const long long all = (long long)tiles * g.batch;
        shared = g.memory ? all % gridDim.x : 0, whole = all - shared, steps = (unsigned)((g.k + BK - 1) / BK);
        next();
    }
    // The step, counted over all shared tiles, at which block x begins.
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

    // Where block x leaves the sums of this thread, WORKERS apart. They are there when its arrival is: each thread has its
    // fence before the barrier after which one of them sets it. Who takes it has a fence, and a barrier tells the others.
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
    // What others have left of the tile that this block ends, in the order of k.
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
        const int ragged = (share.first + share.steps) * (long long)BK > g.k; // steps of fewer rows: the last
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
            if (left > 1) barrier_wait(ring.full(), ring.parity); // so early that no branch is in what follows
            const unsigned next = kept((left > 1 ? ring : before).stage * bytes); // some tile: loads without a branch
            rolling.multiply(acc, a_from + next, b_from + next);
            __syncwarp(); // all lanes have read it
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

// The number of this block in the order in which blocks start, so that one which waits for a lower number waits for one
// that runs, whatever else does on the chip. `count` is 0 before and after.
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
