// gemm_cuda_wgmma: float16 and bfloat16 on Hopper's tensor cores, sums in float32. hopper.cuh describes the warpgroups.
//
//                           BN                 A warpgroup multiplies 64 rows of a's tile by the whole tile of b, with
//                     +-----------+            BK / 16 wgmma per stage. It releases the previous stage only when the
//                  BK | b         |            wgmma of this stage are in flight, so the tensor cores never wait.
//            BK       +-----------+
//         +-------+   +-----------+
//      BM | a     |   | 64 rows   |  warpgroup 0     Each operand may be contiguous along k or along m (n): wgmma reads
//         |       |   | 64 rows   |  warpgroup 1     16-bit types in both layouts, and TMA loads boxes that fit them
//         +-------+   +-----------+                  (struct Operand).

#ifndef A_TYPE
#define A_TYPE bfloat16 // or float16; B_TYPE must be the same
#endif
#ifndef B_TYPE
#define B_TYPE bfloat16
#endif
#ifndef OUT_TYPE
#define OUT_TYPE bfloat16 // or float
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k
#endif
#ifndef BM
#define BM 128 // rows of out per block, 64 for each warpgroup
#endif
#ifndef BN
#define BN 256 // columns of out per block
#endif
#ifndef BK
#define BK 64 // elements of k per stage
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MULTICAST
#define MULTICAST 2 // blocks of a cluster that share b
#endif
#ifndef B_WIDTH
#define B_WIDTH 128 // width of b's swizzle in bytes
#endif
#ifndef OUT_BOXES
#define OUT_BOXES 2 // boxes of out that a warp may store by TMA at the same time; 0: the lanes store out without TMA
#endif
#ifndef RESIDENT
#define RESIDENT 1 // blocks per multiprocessor; limits the registers per thread
#endif
#ifndef THREADS
#define THREADS 384 // BM / 64 warpgroups that multiply, and one that loads
#endif

#include "hopper.cuh"
#include "deliver.cuh"

#define CONSUMERS (BM / 64)
static_assert(THREADS == CONSUMERS * 128 + 128, "a warpgroup for each 64 rows, and the loading one");

typedef Operand<A_TYPE, BM, BK, !A_TURNED> A;
typedef Operand<B_TYPE, BN, BK, B_TURNED, B_WIDTH, BN / MULTICAST> B;
typedef Ring<STAGES, A::BYTES + B::BYTES> Stages;

template <class D> INLINE void product(bfloat16, D &sums, unsigned long long a, unsigned long long b) {
    wgmma_bf16<A::TRANSPOSED, B::TRANSPOSED>(sums, a, b, 1);
}
template <class D> INLINE void product(float16, D &sums, unsigned long long a, unsigned long long b) {
    wgmma_f16<A::TRANSPOSED, B::TRANSPOSED>(sums, a, b, 1);
}

INLINE void consume(const Gemm &g, Stages ring, const TensorMap *out_map) {
    // The first row of this warpgroup. The shuffle tells the compiler that all lanes of a warp have the same value.
    const int rows = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64;
    for (Walk<BM, BN, MULTICAST> walk(g); walk.more(); walk.next()) {
        const Tile tile = walk.tile();
        float sums[BN / 2] = {};
        const int steps = share_of<BK>(g, walk.part).steps;
        Stages before = ring;
        for (int step = 0; step < steps; ++step, ring.next()) {
            barrier_wait(ring.full(), ring.parity);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BK / 16; ++k)
                product(A_TYPE{}, sums, A::at(ring.tiles(), rows, k), B::at(ring.tiles() + A::BYTES, 0, k));
            wgmma_commit();
            wgmma_wait<1>();
            if (step) before.leave<MULTICAST>(walk.first());
            before = ring;
        }
        wgmma_wait<0>();
        wgmma_hold(sums);
        if (steps) before.leave<MULTICAST>(walk.first());
        deliver<BN, CONSUMERS, MULTICAST>(g, sums, ring.behind(STAGING_AT), ring.memory, ring.joined(), tile, walk.z,
                                          out_map);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda_wgmma(const __grid_constant__ Gemm g, const __grid_constant__ TensorMap a_map,
                    const __grid_constant__ TensorMap b_map
#if OUT_BOXES
                    ,
                    const __grid_constant__ TensorMap out_map
#endif
    ) {
    extern __shared__ unsigned char shared[];
    Stages ring(shared);
    ring.start(4 * CONSUMERS * MULTICAST, MULTICAST * g.parts > 1, &a_map, &b_map);
    if (threadIdx.x >= CONSUMERS * 128) {
        registers_down<LOADER_REGISTERS>();
        produce<A, B, BK, 1>(g, ring, Walk<BM, BN, MULTICAST>(g), &a_map, &b_map);
    } else {
        registers_up<Registers<CONSUMERS, RESIDENT>::EACH>();
#if OUT_BOXES
        consume(g, ring, &out_map);
        if (threadIdx.x % 32 == 0) bulk_wait_read<0>(); // TMA must have read the boxes before the block exits
#else
        consume(g, ring, nullptr);
#endif
    }
}
