// gemm_cuda_kmajor: TF32, int8 and fp8 on Hopper's tensor cores. hopper.cuh describes the roles of the warpgroups.
//
//                           BN                 A warpgroup multiplies 64 rows of a's tile by the whole tile of b, with
//                     +-----------+            four wgmma of 32 bytes of k per stage. From shared memory, wgmma reads
//              128 B  | b         |            these types only if they are contiguous along k. b must therefore always
//            128 B    +-----------+            be contiguous along k.
//         +-------+   +-----------+
//      BM | a     |   | 64 rows   |            a may be contiguous along m (A_TURNED). Its fragments then go through
//         |       |   | 64 rows   |            registers and are transposed on the way. They are double-buffered: the
//         +-------+   +-----------+            next stage is fetched while the tensor cores multiply this one.
//
// Sums of int8 and uint8 are exact in int32, modulo 2^32. TF32 is summed in the tensor core's accumulator, which
// truncates; the tensor maps round a and b to TF32 (to nearest even). The tensor core sums fp8 with only 14 bits. The
// kernel therefore adds each stage of 128 products to sums in float32 (PROMOTE). Registers then suffice only for PIECE
// columns at a time. While a warpgroup adds, the products of another warpgroup keep the tensor cores busy. docs/cuda.md
// lists the error bounds.
//
// With MODULI, the products are those of residues (residues.cuh): product z of the batch is modulo modulus(z), and out
// gets the sums' residues as bytes. A sum of residues is exact for k below 2^17.
//
// hopper.cuh describes the grid.

// A_TYPE and B_TYPE are both float (for TF32). Or each is int8 or uint8, but not both are uint8. Or each is e4m3 or
// e5m2.
#ifndef A_TYPE
#define A_TYPE float
#endif
#ifndef B_TYPE
#define B_TYPE float
#endif
#ifndef OUT_TYPE
#define OUT_TYPE float // int32 for integers (uint8 with MODULI); float or bfloat16 for fp8
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m. 1-byte types allow 1 only if BM is a multiple of 128
#endif
#ifndef BM
#define BM 128 // rows of out per block, 64 for each warpgroup
#endif
#ifndef BN
#define BN 256 // columns of out per block
#endif
#ifndef BK
#define BK 32 // elements of k per stage: 128 bytes
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef MULTICAST
#define MULTICAST 2 // blocks of a cluster that share b
#endif
#ifndef PROMOTE
#define PROMOTE 0 // 1: the tensor cores sum only the products of one stage; these sums are then added in float32
#endif
#ifndef PIECE
#define PIECE 256 // columns of b that a warpgroup multiplies at a time; must be BN if PROMOTE is 0
#endif
#ifndef MODULI
#define MODULI 0 // more than 0: the number of moduli of residues.cuh
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
#include "residues.cuh"

#define CONSUMERS (BM / 64)
static_assert(THREADS == CONSUMERS * 128 + 128, "a warpgroup for each 64 rows, and the loading one");
static_assert(BK * sizeof(A_TYPE) == 128 && sizeof(A_TYPE) == sizeof(B_TYPE), "a stage is 128 bytes of k");
static_assert(MODULI == 0 || MODULI == COUNT_OF_MODULI, "the moduli of residues.cuh");
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
PRODUCT(int8, uint8, wgmma_s8_u8)
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

// The operand a of the four wgmma of a stage: descriptors of 64 rows; with A_TURNED, fragments of the warp's 16 rows.
#if !A_TURNED
enum { SETS = 2 };
typedef unsigned long long From[4];

INLINE void fetch(From &a, const Stages &stage, int rows) {
#pragma unroll
    for (int k = 0; k < 4; ++k) a[k] = A::at(stage.tiles(), rows, k);
}

INLINE void leave(const Stages &stage, int block) {
    stage.leave<MULTICAST>(block);
}
#else
// Number of sets of fragments. One set is enough if other warpgroups keep the tensor cores busy.
enum { SETS = RESIDENT > 1 || CONSUMERS > 2 ? 1 : 2 };
typedef unsigned From[4][4];

// Fragments of float (TF32). For each 8 elements of k, lane 4g + t needs rows g and g + 8 at k = t (registers 0 and 1)
// and at k = t + 4 (registers 2 and 3). In shared memory, a row of the tile has 32 elements of m at one k. Chunk c of 4
// elements is at position c ^ k % 8 of the row. If all lanes read k = t first, lanes with g < 4 and lanes with g >= 4
// (whose chunk is the next one) would use the same banks. Lanes with g >= 4 therefore read k = t + 4 first (`late`).
INLINE void fetch_words(From &a, const Stages &stage, int rows) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = rows + threadIdx.x / 32 % 4 * 16 + g;
    const unsigned char *tile = stage.memory + stage.stage * (A::BYTES + B::BYTES) + row / 32 * A::SLAB + row % 4 * 4;
    const bool late = g >= 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int chunk = row % 32 / 4 + 2 * half, first = t + 4 * late, second = t + 4 * !late;
        const unsigned char *const one = tile + first * 128 + (chunk ^ first) * 16;
        const unsigned char *const other = tile + second * 128 + (chunk ^ second) * 16;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const unsigned x = *(const unsigned *)(one + k * 1024), y = *(const unsigned *)(other + k * 1024);
            a[k][half] = late ? y : x;
            a[k][half + 2] = late ? x : y;
        }
    }
}

// Fragments of 1-byte types. In lane 4g + t, registers 0 and 1 hold the fragment's rows g and g + 8 at k = 4t to
// 4t + 3, and registers 2 and 3 hold the same rows at k = 16 + 4t to 16 + 4t + 3.
// ldmatrix with .trans transposes 16-bit units, which are pairs of bytes here. Each input row is 16 elements of m
// at one k. The instruction gives lane 4g + t the elements m = 2g and m = 2g + 1 at two values of k. Therefore:
//   - The fragment's rows g and g + 8 are rows 2g and 2g + 1 of the tile. PAIRED tells this to `deliver`.
//   - Two such results hold the bytes of two registers of the fragment. __byte_perm puts these bytes into order.
//   - Quad q is k = 4q to 4q + 3, which the lanes with t = q need. One 8 x 8 matrix of ldmatrix has the first two k of
//     quads 0 and 1, and the last two k of quads 2 and 3. The next matrix has the other k. Lanes with t >= 2 therefore
//     receive their later pair of k first (`late`). The 8 input rows of a matrix all differ in k % 8, so they are in
//     different banks.
INLINE void fetch_bytes(From &a, const Stages &stage, int rows) {
    const int lane = threadIdx.x % 32, row = rows + threadIdx.x / 32 % 4 * 16, quad = lane % 8 / 2;
    // The k of the input row whose address this lane passes to ldmatrix.
    const int at = lane / 16 * 16 + quad * 4 + lane % 2 + 2 * (lane / 8 % 2 ^ quad / 2);
    const unsigned from = stage.tiles() + row / 128 * A::SLAB + at * 128 + (row % 128 / 16 ^ at % 8) * 16;
    const bool late = lane % 4 >= 2; // this lane's first pair of k is the later one
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        unsigned pairs[4];
        ldmatrix_x4_trans(pairs, from + k * 4096);
#pragma unroll
        for (int x = 0; x < 4; x += 2) {
            a[k][x] = __byte_perm(pairs[x], pairs[x + 1], late ? 0x2064 : 0x6420);
            a[k][x + 1] = __byte_perm(pairs[x], pairs[x + 1], late ? 0x3175 : 0x7531);
        }
    }
}

INLINE void fetch(From &a, const Stages &stage, int rows) {
    if (sizeof(A_TYPE) == 4)
        fetch_words(a, stage, rows);
    else
        fetch_bytes(a, stage, rows);
}

// All lanes call this function and arrive at the barriers, because each lane has read the stage itself.
INLINE void leave(const Stages &stage, int block) {
#pragma unroll
    for (int i = 0; i < MULTICAST; ++i) {
        if (MULTICAST == 1)
            barrier_arrive(stage.empty());
        else
            barrier_arrive_remote(stage.empty(), block + i);
    }
}
#endif

// sums = a * b + (keep ? sums : 0) for the columns of b from `first` on.
template <class D> INLINE void multiply(const From &a, const Stages &stage, int first, D &sums, bool keep) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
        product(A_TYPE{}, B_TYPE{}, sums, a[k], B::at(stage.tiles() + A::BYTES, first, k), keep || k);
    wgmma_commit();
}

// Starts the products of a stage. With two sets of fragments (SETS), the function then waits for the products of the
// previous stage and releases that stage, if there is one (`any`). With one set, the function waits for the products of
// this stage and releases this stage.
template <class D>
INLINE void add_stage(From &a, Stages &ring, Stages &before, bool any, int rows, int block, D &sums) {
    barrier_wait(ring.full(), ring.parity);
    fetch(a, ring, rows);
    multiply(a, ring, 0, sums, true);
    wgmma_wait<SETS - 1>();
    if (SETS == 1)
        leave(ring, block);
    else if (any)
        leave(before, block);
    before = ring;
    ring.next();
}

// Adds the products of `steps` stages to `sums`.
template <class D> INLINE void sum_up(Stages &ring, int steps, int rows, int block, D &sums) {
    From sets[SETS];
    Stages before = ring;
    int step = 0;
    for (; step + 1 < steps; step += 2) {
        add_stage(sets[0], ring, before, step, rows, block, sums);
        add_stage(sets[SETS - 1], ring, before, true, rows, block, sums);
    }
    if (step < steps) add_stage(sets[0], ring, before, step, rows, block, sums);
    wgmma_wait<0>();
    wgmma_hold(sums);
    if (SETS == 2 && steps) leave(before, block);
}

// Like sum_up, but for PROMOTE: multiplies each piece of a stage separately, and then adds the result to the sums.
template <class D> INLINE void sum_up_promoted(Stages &ring, int steps, int rows, int block, D &sums) {
    for (int step = 0; step < steps; ++step, ring.next()) {
        From a;
        barrier_wait(ring.full(), ring.parity);
        fetch(a, ring, rows);
#pragma unroll
        for (int first = 0; first < BN; first += PIECE) {
            Accumulator<A_TYPE>::type piece[PIECE / 2];
            multiply(a, ring, first, piece, false);
            wgmma_wait<0>();
            wgmma_hold(piece);
            if (first == BN - PIECE) leave(ring, block);
#pragma unroll
            for (int i = 0; i < PIECE / 2; ++i) sums[first / 2 + i] = add(sums[first / 2 + i], piece[i]);
        }
    }
}

// Stores the residues of a tile's sums, modulo modulus(z). From 64 columns of b's tile, a lane has 16 residues for each
// of two rows, and stores them as 16 adjacent bytes. The lane's sums do not belong to adjacent columns of the tile; the
// order of b's lines (`place`) compensates for this.
//
// sum * reciprocal / 2^38 approximates sum / modulus with an error below 1 / modulus. Its floor is therefore exact, or
// too small by 1 if the sum is a multiple of the modulus. Then the modulus is stored instead of 0, which is right, too.
template <class T, int COUNT> INLINE void store_residues(const Gemm &g, const T (&sums)[COUNT], Tile tile, int z) {
    int q = 0;
#pragma unroll
    for (int i = 0; i < COUNT_OF_MODULI; ++i) q = i == z ? (int)modulus(i) : q;
    const int reciprocal = (int)(((1ll << 38) + q / 2) / q), lane = threadIdx.x % 32;
    uint8 *const out = (uint8 *)g.out + z * g.out_batch + tile.left + lane % 4 * 16;
#pragma unroll
    for (int first = 0; first < COUNT; first += 32) { // 64 columns, 32 sums of this lane
        if (tile.left + 2 * first >= g.n) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            Vector<unsigned, 4> words;
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                unsigned rest[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int sum = (int)sums[first + 8 * word + i / 2 * 4 + 2 * half + i % 2];
                    rest[i] = sum - (__mulhi(sum, reciprocal) >> 6) * q;
                }
                const unsigned two = __byte_perm(rest[0], rest[1], 0x0040);
                words.at[word] = __byte_perm(two, __byte_perm(rest[2], rest[3], 0x0040), 0x5410);
            }
            const long long row = tile.top + threadIdx.x / 32 * 16 + lane / 4 + 8 * half;
            if (row < g.m) *(Vector<unsigned, 4> *)(out + row * g.out_row + 2 * first) = words;
        }
    }
}

INLINE void consume(const Gemm &g, Stages ring, const TensorMap *out_map) {
    // The first row of this warpgroup. The shuffle tells the compiler that all lanes of a warp have the same value.
    const int rows = __shfl_sync(~0u, threadIdx.x / 128, 0) * 64;
    for (Walk<BM, BN, MULTICAST> walk(g); walk.more(); walk.next()) {
        SUMS sums = {};
        const int steps = share_of<BK>(g, walk.part).steps;
        if (PROMOTE)
            sum_up_promoted(ring, steps, rows, walk.first(), sums);
        else
            sum_up(ring, steps, rows, walk.first(), sums);
        if constexpr (MODULI > 0)
            store_residues(g, sums, walk.tile(), (int)walk.z);
        else
            deliver<BN, CONSUMERS, MULTICAST, A_TURNED && sizeof(A_TYPE) == 1>(
                g, sums, ring.behind(STAGING_AT), ring.memory, ring.joined(), walk.tile(), walk.z, out_map);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    gemm_cuda_kmajor(const __grid_constant__ Gemm g, const __grid_constant__ TensorMap a_map,
                     const __grid_constant__ TensorMap b_map
#if OUT_BOXES
                     ,
                     const __grid_constant__ TensorMap out_map
#endif
    ) {
    extern __shared__ unsigned char shared[];
    Stages ring(shared);
    ring.start((A_TURNED ? 128 : 4) * CONSUMERS * MULTICAST, MULTICAST * g.parts > 1, &a_map, &b_map);
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
