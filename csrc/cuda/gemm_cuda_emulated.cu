// gemm_cuda_emulated: float32 products, computed from bfloat16 or float16 products on Hopper's tensor cores, as
// accurate as a chain of float32 fma. hopper.cuh describes the warpgroups, gemm_cuda_split the operands' planes.
//
//     PLANES 3, bfloat16    a*b = a0 b0 + (a0 b1 + a1 b0) + (a1 b1 + a0 b2 + a2 b0)     dropped: below 2^-23 |a b|
//     PLANES 2, float16     a*b = a0 b0 + (a0 b1 + a1 b0)                               dropped: below 2^-22 |a b|
//
// The tensor core's accumulator truncates, so its errors would have one direction and add up with k. A warpgroup
// therefore uses this accumulator for one stage only, adding the smallest products first. Then the warpgroup adds the
// result to separate float32 sums, rounded to nearest. The two warpgroups alternate: while one adds, the other
// multiplies, so the tensor cores never wait for additions.
//
// |error| <= (k + 48) 2^-24 |a| |b|, where |a| |b| is the product of the absolute values. With float16, the error of
// gemm_cuda_split is added: elements that are at most 2^-17 times the largest element of their row (column) lose up to
// 2^-39 of the largest. test_emulated.py models the kernel; the errors that it measures are far smaller.
//
// Rows of a and columns of b are scaled by powers of two. The results are scaled back without loss. If a result's row
// of a or column of b contains an infinity or NaN, the kernel computes this result again from the planes, with one fma
// for each k, as IEEE arithmetic requires.

#ifndef A_TYPE
#define A_TYPE bfloat16 // type of the planes: bfloat16 or float16; B_TYPE must be the same
#endif
#ifndef B_TYPE
#define B_TYPE bfloat16
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a's planes are contiguous along m
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b's planes are contiguous along k
#endif
#ifndef PLANES
#define PLANES 3 // 3 of bfloat16, or 2 of float16
#endif
#ifndef BM
#define BM 128 // rows of out per block, 64 for each warpgroup
#endif
#ifndef BN
#define BN 192 // columns of out per block
#endif
#ifndef BK
#define BK 32 // elements of k per stage
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MULTICAST
#define MULTICAST 2 // blocks of a cluster that share b
#endif
#ifndef THREADS
#define THREADS 384 // two warpgroups that multiply, and one that loads
#endif

#include "hopper.cuh"
#include "deliver.cuh"
#include "planes.cuh"

#define CONSUMERS (BM / 64)
static_assert(CONSUMERS == 2 && THREADS == 384, "two warpgroups that take turns, and the loading one");
static_assert(BK <= 64, "the accumulator truncates");

typedef Operand<A_TYPE, BM, BK, !A_TURNED, 64> A;
typedef Operand<B_TYPE, BN, BK, B_TURNED, 64, BN / MULTICAST> B;
typedef Ring<STAGES, PLANES *(A::BYTES + B::BYTES)> Stages;

template <class D> INLINE void product(bfloat16, D &sums, unsigned long long a, unsigned long long b, bool add) {
    wgmma_bf16<A::TRANSPOSED, B::TRANSPOSED>(sums, a, b, add);
}
template <class D> INLINE void product(float16, D &sums, unsigned long long a, unsigned long long b, bool add) {
    wgmma_f16<A::TRANSPOSED, B::TRANSPOSED>(sums, a, b, add);
}

// Sets `sums` to the sum of all products of a stage's planes, added from the smallest to the largest.
template <class D> INLINE void products(D &sums, unsigned tiles, int rows) {
#pragma unroll
    for (int order = PLANES - 1; order >= 0; --order) // the plane number of a plus that of b
#pragma unroll
        for (int p = 0; p <= order; ++p)
#pragma unroll
            for (int k = 0; k < BK / 16; ++k)
                product(A_TYPE{}, sums, A::at(tiles + p * A::BYTES, rows, k),
                        B::at(tiles + PLANES * A::BYTES + (order - p) * B::BYTES, 0, k), order < PLANES - 1 || p || k);
}

// Scales a sum of scaled products back to the sum of the original products.
struct Unscale {
    const Gemm &g;
    const int *of_a, *of_b; // exponents of a's rows and b's columns; g.memory and g.arrivals pass them to this kernel

    __device__ __forceinline__ Unscale(const Gemm &g, long long z)
        : g(g), of_a((const int *)g.memory + (g.a_batch ? z * g.m : 0)),
          of_b((const int *)g.arrivals + (g.b_batch ? z * g.n : 0)), z(z) {}
    __device__ __forceinline__ float operator()(float sum, long long i, long long j) const {
        if (i >= g.m || j >= g.n) return 0;
        const int a = of_a[i], b = of_b[j];
        return a == SPECIAL || b == SPECIAL ? chain(i, j) : times_power(sum, a + b);
    }

  private:
    long long z;

    // Computes one result from the planes, if the exponent of its row of a or of its column of b is SPECIAL. The planes
    // are scaled by a 2^-e that is not known here, because SPECIAL is stored in place of the exponent e. This does not
    // matter: the result is an infinity or NaN, which scaling does not change. The other terms of this sum only have to
    // be finite.
    __device__ __noinline__ float chain(long long i, long long j) const {
        const A_TYPE *a = g.a + (g.a_batch ? z * g.a_batch : 0) + i * g.a_row;
        const B_TYPE *b = g.b + (g.b_batch ? z * g.b_batch : 0) + j * g.b_col;
        const long long a_plane = A_TURNED ? g.k * g.a_col : g.m * g.a_row;
        const long long b_plane = B_TURNED ? g.n * g.b_col : g.k * g.b_row;
        float sum = 0;
        for (long long p = 0; p < g.k; ++p) {
            float x = 0, y = 0;
            for (int plane = PLANES - 1; plane >= 0; --plane) {
                x = add(x, widen(a[p * g.a_col + plane * a_plane]));
                y = add(y, widen(b[p * g.b_row + plane * b_plane]));
            }
            sum = multiply_add(x, y, sum);
        }
        return sum;
    }
};

INLINE void consume(const Gemm &g, Stages ring) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), rows = group * 64;
    for (Walk<BM, BN, MULTICAST> walk(g); walk.more(); walk.next()) {
        const Tile tile = walk.tile();
        float sums[BN / 2] = {};
        const int steps = share_of<BK>(g, walk.part).steps;
        if (group == 1 && steps) bar_arrive(2, 256);
        for (int step = 0; step < steps; ++step, ring.next()) {
            float latest[BN / 2];
            barrier_wait(ring.full(), ring.parity);
            bar_sync(2 + group, 256); // waits until the other warpgroup has issued its products
            wgmma_fence();
            products(latest, ring.tiles(), rows);
            wgmma_commit();
            if (group == 0 || step + 1 < steps) bar_arrive(3 - group, 256);
            wgmma_wait<0>();
            wgmma_hold(latest);
            ring.leave<MULTICAST>(walk.first());
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) sums[i] = add(sums[i], latest[i]);
        }
        deliver<BN, CONSUMERS, MULTICAST>(g, sums, ring.behind(STAGING_AT), ring.memory, ring.joined(), tile, walk.z,
                                          nullptr, Unscale(g, walk.z));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_cuda_emulated(const __grid_constant__ Gemm g, const __grid_constant__ TensorMap a_map,
                       const __grid_constant__ TensorMap b_map) {
    extern __shared__ unsigned char shared[];
    Stages ring(shared);
    ring.start(4 * CONSUMERS * MULTICAST, MULTICAST * g.parts > 1, &a_map, &b_map);
    if (threadIdx.x >= CONSUMERS * 128) {
        registers_down<LOADER_REGISTERS>();
        produce<A, B, BK, PLANES>(g, ring, Walk<BM, BN, MULTICAST>(g), &a_map, &b_map);
    } else {
        registers_up<Registers<CONSUMERS, 1>::EACH>();
        consume(g, ring);
    }
}
