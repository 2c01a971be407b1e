// gemm_cuda_ffma_tma: out = alpha * a * b + beta * c in float32, operands by TMA, outputs in registers (Hopper).
//
//   memory --TMA--> ring of STAGES tiles of a (BK x BM) and b (BK x BN) --16 bytes a load--> registers --fma--> acc
//
// A warpgroup loads and the others multiply, as in hopper.cuh. A warp waits for the tile that it needs and for nothing
// else, so that warps drift apart and one's loads hide behind the other's arithmetic; the first row of a tile is loaded
// behind the last of the one before. The BK rows of a tile are one piece of code without a branch; of pieces longer than
// 36 KiB, or of more warps than 8, which are at different places in it, the instructions come too slowly. A block walks
// tiles until none is left: the next tile's operands come while this one's results go. a must be contiguous along m and b
// along n: others are packed so first, which costs a hundredth of a product of 4096 x 4096 x 4096. (16 bytes along k are
// four k of one row: four times as many registers for what is multiplied, and for what is loaded meanwhile.)
//
// ORDERED when k is not cut: each output is one chain of fma, k ascending.
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
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 384
#endif
#define JOIN_BARRIER 2 // 1 is that of hopper.cuh

#include "ffma.cuh"
#include "hopper.cuh"

static_assert(THREADS == WORKERS + 128 && WORKERS % 128 == 0, "a thread has TM * TN outputs; a warpgroup loads");

// The tile of an operand: BK rows of `WIDE` of m or n, which are one box.
template <int WIDE> struct Rows {
    enum { BYTES = BK * WIDE * (int)sizeof(float), BOXES = 1 };

    static __device__ __forceinline__ void load(int, unsigned tile, const TensorMap *map, unsigned full, int row, int k,
                                                int z, unsigned short) {
        tma_load_3d(tile, map, full, row, k, z);
    }
};
typedef Rows<BM> A;
typedef Rows<BN> B;
typedef Ring<STAGES, A::BYTES + B::BYTES> Stages;

INLINE void multiply(const Gemm &g, Stages ring) {
    const Lane lane = lane_of(threadIdx.x);
    const unsigned tiles = shared_address(ring.memory), bytes = A::BYTES + B::BYTES;
    const unsigned a_from = kept(tiles + lane.m * (unsigned)sizeof(float));
    const unsigned b_from = kept(tiles + A::BYTES + lane.n * (unsigned)sizeof(float));
    int turn = 0;
    for (Walk<BM, BN, 1> walk(g); walk.more(); walk.next(), ++turn) {
        const Share share = share_of<BK>(g, walk.part);
        const int ragged = (share.first + share.steps) * (long long)BK > g.k; // steps of fewer rows: the last
        float acc[TM * TN] = {};
        Fragments<BM, BN> fragments;
        const auto begin = [&] { fragments.begin(a_from + ring.stage * bytes, b_from + ring.stage * bytes); };
        int left = share.steps;
        if (left > 0) {
            barrier_wait(ring.full(), ring.parity);
            begin();
        }
#pragma unroll 1
        for (; left > ragged; --left) {
            const Stages before = ring;
            ring.next();
            if (left > 1) barrier_wait(ring.full(), ring.parity); // so early that no branch is in what follows
            fragments.template multiply<BK>(acc, [&] {
                if (left > 1) begin();
            });
            __syncwarp(); // all lanes have read it
            before.leave<1>(0);
        }
        if (left > 0) {
            fragments.multiply_rest(acc, (int)(g.k % BK));
            __syncwarp();
            ring.leave<1>(0);
            ring.next();
        }
        finish<false>(g, walk.z, walk.rest, walk.part, threadIdx.x, acc, ring.memory, turn);
        if (g.parts > 1) {
            fence_async();               // TMA writes next to what was read here
            bar_arrive(1, WORKERS + 32); // the warp that loads waits there
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_cuda_ffma_tma(ARGUMENT Gemm g, ARGUMENT TensorMap a_map, ARGUMENT TensorMap b_map) {
    extern __shared__ unsigned char shared[];
    Stages ring(shared);
    ring.start(WORKERS / 32, g.parts > 1, &a_map, &b_map);
    if (threadIdx.x >= WORKERS) {
        registers_down<LOADER_REGISTERS>();
        produce<A, B, BM, BN, BK, 1, 1>(g, ring, &a_map, &b_map);
    } else {
        registers_up<Registers<WORKERS / 128, 1>::EACH>();
        multiply(g, ring);
    }
}
