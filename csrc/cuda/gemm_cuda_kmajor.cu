// gemm_cuda_kmajor: TF32, int8 and fp8 on Hopper's tensor cores; see hopper.cuh for who does what.
//
//                           BN                 A warpgroup multiplies 64 rows of a's tile by all of b's, four wgmma of 32
//                     +-----------+            bytes of k a stage. wgmma reads these types from shared memory only where
//              128 B  | b         |            they lie contiguous along k; who lie otherwise are packed first.
//            128 B    +-----------+
//         +-------+   +-----------+            But a may be contiguous along m where it is float: its fragments, single
//      BM | a     |   | 64 rows   |            words, then come through registers, of which there are two sets: the next
//         |       |   | 64 rows   |            stage's are loaded while the tensor cores multiply this one's.
//         +-------+   +-----------+
//
// Sums: int8 and uint8 exact in int32, modulo 2^32. TF32 in the tensor core's accumulator, which cuts what it drops; a
// and b are rounded to TF32 (to nearest even) by their maps. fp8's accumulator keeps 14 bits, so that it joins sums in
// float32 after each stage of 128 (PROMOTE); a warpgroup then multiplies PIECE columns at a time, for want of registers,
// while another one's products keep the tensor cores busy. docs/cuda.md has the bounds.
//
// Grid: x over clusters of MULTICAST * parts blocks, persistent. Strides of a and b are their maps'; c, bias and out may
// lie in any strides. The sums' order is that of the tensor cores: fixed for a form of the launch, not ORDERED.

#ifndef A_TYPE
#define A_TYPE float // TF32; or int8 or uint8 by int8, or e4m3 or e5m2 by any of the two
#endif
#ifndef B_TYPE
#define B_TYPE float
#endif
#ifndef OUT_TYPE
#define OUT_TYPE float // int32 for integers; float or bfloat16 for fp8
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m; float only
#endif
#ifndef BM
#define BM 128 // rows of out a block, 64 for each warpgroup
#endif
#ifndef BN
#define BN 256 // columns of out a block
#endif
#ifndef BK
#define BK 32 // of k a stage: 128 bytes
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MULTICAST
#define MULTICAST 2 // blocks of a cluster that share b
#endif
#ifndef PROMOTE
#define PROMOTE 0 // 1: the sums of each stage join those of all others in float32
#endif
#ifndef PIECE
#define PIECE BN // columns that a warpgroup multiplies at a time
#endif
#ifndef RESIDENT
#define RESIDENT 1 // blocks of a multiprocessor that registers must suffice for
#endif
#ifndef THREADS
#define THREADS 384 // BM / 64 warpgroups, and the one that loads
#endif

#include "hopper.cuh"
#include "deliver.cuh"

#define CONSUMERS (BM / 64)
static_assert(THREADS == CONSUMERS * 128 + 128, "a warpgroup for each 64 rows, and the loading one");
static_assert(BK * sizeof(A_TYPE) == 128 && sizeof(A_TYPE) == sizeof(B_TYPE), "a stage is 128 bytes of k");
static_assert(!A_TURNED || sizeof(A_TYPE) == 4, "of fragments that come through registers an element is a register");
static_assert(BN % PIECE == 0 && (PROMOTE || PIECE == BN), "whole pieces");

typedef Operand<A_TYPE, BM, BK, !A_TURNED> A;
typedef Operand<B_TYPE, BN, BK, true, 128, BN / MULTICAST> B;
typedef Ring<STAGES, A::BYTES + B::BYTES> Stages;

#define PRODUCT(A_TYPE, B_TYPE, wgmma)                                                            \
    template <class D, class FROM>                                                                \
    INLINE void product(A_TYPE, B_TYPE, D &sums, const FROM &a, unsigned long long b, int keep) { \
        wgmma(sums, a, b, keep);                                                                  \
    }
PRODUCT(float, float, wgmma_tf32)
PRODUCT(int8, int8, wgmma_s8_s8)
PRODUCT(uint8, int8, wgmma_u8_s8)
PRODUCT(e4m3, e4m3, wgmma_e4m3_e4m3)
PRODUCT(e4m3, e5m2, wgmma_e4m3_e5m2)
PRODUCT(e5m2, e4m3, wgmma_e5m2_e4m3)
PRODUCT(e5m2, e5m2, wgmma_e5m2_e5m2)

template <class T> struct Accumulator {
    typedef float type;
};
template <> struct Accumulator<int8> {
    typedef int type;
};
template <> struct Accumulator<uint8> {
    typedef int type;
};
typedef Accumulator<A_TYPE>::type SUMS[BN / 2];

// The warpgroup's share of a stage: 64 rows from `rows` on, from shared memory.
template <class D> INLINE void multiply(unsigned tiles, int rows, int first, D &sums, bool keep) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
        product(A_TYPE{}, B_TYPE{}, sums, A::at(tiles, rows, k), B::at(tiles + A::BYTES, first, k), keep || k);
    wgmma_commit();
}

// The sums of the stages of one tile. A warp leaves a stage when the products that read it are done: with PROMOTE its
// own, while other warpgroups multiply, else those of the stage before.
template <class D> INLINE void sum_up(Stages &ring, int steps, int rows, int block, D &sums) {
    if constexpr (PROMOTE) {
        for (int step = 0; step < steps; ++step, ring.next()) {
            barrier_wait(ring.full(), ring.parity);
#pragma unroll
            for (int first = 0; first < BN; first += PIECE) {
                float piece[PIECE / 2];
                multiply(ring.tiles(), rows, first, piece, false);
                wgmma_wait<0>();
                wgmma_hold(piece);
                if (first == BN - PIECE) ring.leave<MULTICAST>(block);
#pragma unroll
                for (int i = 0; i < PIECE / 2; ++i) sums[first / 2 + i] = add(sums[first / 2 + i], piece[i]);
            }
        }
    } else {
        Stages before = ring;
        for (int step = 0; step < steps; ++step, ring.next()) {
            barrier_wait(ring.full(), ring.parity);
            multiply(ring.tiles(), rows, 0, sums, true);
            wgmma_wait<1>();
            if (step) before.leave<MULTICAST>(block);
            before = ring;
        }
        wgmma_wait<0>();
        wgmma_hold(sums);
        if (steps) before.leave<MULTICAST>(block);
    }
}

INLINE void consume(const Gemm &g, Stages ring) {
    const int rows = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64; // of this warpgroup; uniform, says the shuffle
    for (Walk<BM, BN, MULTICAST> walk(g); walk.more(); walk.next()) {
        SUMS sums = {};
        sum_up(ring, share_of<BK>(g, walk.part).steps, rows, walk.first(), sums);
        deliver<BN, CONSUMERS, MULTICAST>(g, sums, ring.behind(), ring.memory, walk.tile(), walk.z);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda_kmajor(const __grid_constant__ Gemm g, const __grid_constant__ TensorMap a_map,
                     const __grid_constant__ TensorMap b_map) {
    extern __shared__ unsigned char shared[];
    const bool cluster = MULTICAST * g.parts > 1;
    Stages ring(shared);
    ring.start(4 * CONSUMERS * MULTICAST, cluster);
    if (threadIdx.x >= CONSUMERS * 128) {
        registers_down<LOADER_REGISTERS>();
        produce<A, B, BM, BN, BK, MULTICAST, 1>(g, ring, &a_map, &b_map);
    } else {
        registers_up<Registers<CONSUMERS, RESIDENT>::EACH>();
        consume(g, ring);
    }
    if (cluster) cluster_sync(); // others may yet arrive at barriers of this block, or write to its ring
}
