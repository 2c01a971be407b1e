// gemm_cuda_dmma: out = alpha * a * b + beta * c in float64 on tensor cores, operands by cp.async (sm_80 and newer).
//
//   memory --cp.async--> shared memory, STAGES tiles of a and b --8 bytes per load--> fragments --mma--> acc
//
// A block computes BM x BN outputs, a warp TM x TN of them. While one tile is multiplied, STAGES - 1 tiles are in
// flight. A fragment of a has 16 rows and 8 columns (k). As soon as a fragment of a has been multiplied, the next one
// is loaded into its registers. Fragments of b are double-buffered.
//
// A scheduler has only two warps here, and a tensor core takes 32 cycles for an mma of 16 x 8 x 8. Other instructions
// of a warp are free only if they fit between two mma. The kernel therefore has few other instructions and distributes
// them evenly:
//   - In an mma, lane (g, t) = (lane / 4, lane % 4) needs rows g and g + 8 of a, or column g of b, at k = t and
//     k = t + 4, in adjacent registers. A load of 16 bytes would return two elements that are adjacent in memory
//     instead. Moving elements between registers would take longer than loading 8 bytes at a time.
//   - Tiles that are completely inside the matrix are copied without bounds checks, one or two copies after each mma.
//   - Addresses differ by constants where possible, so that the offsets are part of the load and copy instructions.
//
// A tile is contiguous along the same axis in shared memory as in global memory. A row of a tile has 128 bytes or a
// multiple of that. Pieces of 32 bytes within a row are permuted: shared memory serves 16 lanes at once, which read 4
// pieces (4 lanes read 8 bytes each of a piece), and the permutation puts these pieces into different banks.
//
// The kernel is not ORDERED: on Hopper, an mma sums 8 products in an unspecified order.
//
// Grid: x = tiles * parts, y = the batch.

#ifndef BM
#define BM 128 // rows of out per block
#endif
#ifndef BN
#define BN 64 // columns of out per block
#endif
#ifndef BK
#define BK 16 // elements of k per stage
#endif
#ifndef TM
#define TM 64 // rows of out per warp
#endif
#ifndef TN
#define TN 32 // columns of out per warp
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef BLOCKS
#define BLOCKS 2 // blocks that a multiprocessor must be able to hold at once
#endif
#ifndef A_TYPE
#define A_TYPE double
#define B_TYPE double
#define OUT_TYPE double
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k, not n
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements per copy: 2 or 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#include "join.cuh"

constexpr int WARPS_N = BN / TN, SLICES = BK / 8, HIGH = TM / 16, WIDE = TN / 8;
// Whether the kernel loads the fragments of the next 8 elements of k while it multiplies the current fragments. From
// sm_120 on, the compiler does not find enough registers for this.
constexpr bool ROLLS = __CUDA_ARCH__ < 1200;
static_assert(BK % 16 == 0 && SLICES % 2 == 0 && TM % 16 == 0 && TN % 16 == 0, "rows of 128 bytes, whole mma");
static_assert(THREADS == 32 * (BM / TM) * WARPS_N, "warps own the block's outputs");

// Returns the position in shared memory of row x of a (column x of b) at k = p, in a tile of SIZE rows (columns) by BK
// elements of k. ALONG: the operand is contiguous along m (n), and each row of the tile in shared memory has one k.
// Otherwise each row of the tile is one row of a (column of b).
template <bool ALONG, int SIZE> INLINE int place(int x, int p) {
    return ALONG ? p * SIZE + (x ^ p % 4 * 4) : x * BK + (p ^ x % 4 * 4);
}

// A thread's share of the copies of an operand's tiles to shared memory. In every DOWN-th row of a tile, the thread
// copies the WIDTH elements that start at position `col` of the row. `size` of the tile's SIZE rows of a (columns of b)
// exist. of_x is the stride along m (n), of_p the stride along k.
template <bool ALONG, int SIZE, int WIDTH> struct Copies {
    static constexpr int ACROSS = (ALONG ? SIZE : BK) / WIDTH, DOWN = THREADS / ACROSS, ROWS = ALONG ? BK : SIZE;
    static constexpr int COUNT = ROWS / DOWN;
    static_assert(THREADS % ACROSS == 0 && ROWS % DOWN == 0, "a row of copies is a share of the threads");
    static_assert((DOWN & (DOWN - 1)) == 0, "row + i * DOWN is row | i * DOWN");
    const double *at;             // address of the next copy
    const long long &of_x, &of_p; // read from the arguments at each use, because registers are scarce
    int row, col, size;

    __device__ __forceinline__ Copies(const double *from, const long long &of_x, const long long &of_p, int size)
        : of_x(of_x), of_p(of_p), size(size) {
        row = threadIdx.x / ACROSS, col = threadIdx.x % ACROSS * WIDTH;
        at = from + row * (ALONG ? of_p : of_x) + col * (ALONG ? of_x : of_p);
    }

    // Starts the thread's copy number i into the tile at `tile`. `valid` of the copy's WIDTH elements exist; the copy
    // writes zeros for the others and does not read their memory. For each tile, this function must be called with
    // i = 0, 1, ..., COUNT - 1 in this order, because each call advances `at`.
    __device__ __forceinline__ void start(unsigned tile, int i, int valid) {
        const int first = ALONG ? place<true, SIZE>(col, row) : place<false, SIZE>(row, col);
        // The expression in parentheses has few values; the other terms of the addresses are compile-time constants.
        const unsigned to = tile + (first ^ i * DOWN % 4 * 4) * 8;
        copy_async<WIDTH * 8>(to + i * DOWN * (ALONG ? SIZE : BK) * 8, at, valid * 8);
        at += DOWN * (ALONG ? of_p : of_x);
        if (!ALONG && i + 1 == COUNT) at += BK * of_p - SIZE * of_x;
    }

    // Starts all copies of a tile. Of its BK elements along k, `steps` exist; the copies write zeros for the others.
    __device__ __forceinline__ void start_all(unsigned tile, int steps) {
        const int width = max(0, min(WIDTH, (ALONG ? size : steps) - col)), rows = ALONG ? steps : size;
#pragma unroll(WIDTH == 1 ? 1 : COUNT) // WIDTH 1: no unrolling, which would need too many registers
        for (int i = 0; i < COUNT; ++i) start(tile, i, row + i * DOWN < rows ? width : 0);
    }

    // Divides the copies of a tile that is completely inside the matrix into `all` shares, and starts share number n.
    __device__ __forceinline__ void start_share(unsigned tile, int n, int all) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (COUNT * n / all <= i && i < COUNT * (n + 1) / all) start(tile, i, WIDTH);
        }
    }
};

// Loads this lane's elements of the warp's rows of a (columns of b). Their addresses have constant distances from the
// addresses in `at`.
template <bool ALONG, int SIZE> struct Elements {
    const double *at[ALONG ? 2 : 4];

    __device__ __forceinline__ Elements(const double *tiles, int first) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int here = ALONG ? place<true, SIZE>(g, t) + first : place<false, SIZE>(g, t) + first * BK;
#pragma unroll
        for (int i = 0; i < (ALONG ? 2 : 4); ++i) at[i] = tiles + (here ^ i * (ALONG ? 8 : 4));
    }

    // Returns the element of a in row x + g (of b in column x + g) at k = p + t of the tile in stage `tile`. x must be
    // a multiple of 8, and p a multiple of 4.
    __device__ __forceinline__ double of(int tile, int x, int p) const {
        const int within = (ALONG ? x : p) % 16;
        return (at[within / (ALONG ? 8 : 4)] + tile * (SIZE * BK))[ALONG ? p * SIZE + x - within : x * BK + p - within];
    }
};

// d += a * b for 16 x 8 outputs and 8 elements of k.
INLINE void multiply_fragments(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    mma_f64(d, a, b);
#else
    double upper[2] = {d[0], d[1]}, lower[2] = {d[2], d[3]};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        mma_f64(upper, a[2 * j], b[j]);
        mma_f64(lower, a[2 * j + 1], b[j]);
    }
    d[0] = upper[0], d[1] = upper[1], d[2] = lower[0], d[3] = lower[1];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gemm_cuda_dmma(ARGUMENT Gemm g) {
    alignas(128) extern __shared__ double shared[];
    double *const a_tiles = shared, *const b_tiles = shared + STAGES * BM * BK;
    const unsigned a_address = shared_address(a_tiles), b_address = shared_address(b_tiles);

    follow_launch();
    const unsigned index = blockIdx.x / g.parts;
    const int part = blockIdx.x % g.parts;
    const Tile tile = tile_of<BM, BN>(g, index);
    const Share share = share_of<BK>(g, part);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int top = warp / WARPS_N * TM, left = warp % WARPS_N * TN; // the warp's place in the block's tile

    const long long first = share.first * (long long)BK;
    Copies<A_TURNED, BM, A_VECTOR> a_copies(g.a + blockIdx.y * g.a_batch + tile.top * g.a_row + first * g.a_col,
                                            g.a_row, g.a_col, (int)min((long long)BM, g.m - tile.top));
    Copies<!B_TURNED, BN, B_VECTOR> b_copies(g.b + blockIdx.y * g.b_batch + tile.left * g.b_col + first * g.b_row,
                                             g.b_col, g.b_row, (int)min((long long)BN, g.n - tile.left));
    // The number of elements of k in the last tile of this part.
    const int rest = (int)min((long long)BK, g.k - first - (share.steps - 1) * (long long)BK);
    int copied = 0;
    auto start = [&](int stage) {
        if (copied < share.steps) {
            const int steps = copied + 1 < share.steps ? BK : rest;
            a_copies.start_all(a_address + stage * (BM * BK * 8), steps);
            b_copies.start_all(b_address + stage * (BN * BK * 8), steps);
            ++copied;
        }
        copy_commit(); // one copy group per call, empty if there was nothing to copy: copy_wait counts copy groups
    };

    double acc[HIGH][WIDE][4] = {}; // [x][y]: rows g and g + 8 of 16 rows, columns 2t and 2t + 1 of 8 columns
    double a[HIGH][4], b[ROLLS ? 2 : 1][WIDE][2];
    const Elements<A_TURNED, BM> a_elements(a_tiles, top);
    const Elements<!B_TURNED, BN> b_elements(b_tiles, left);
    auto fetch_a = [&](int x, int stage, int slice) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[x][i] = a_elements.of(stage, 16 * x + i % 2 * 8, slice * 8 + i / 2 * 4);
    };
    auto fetch_b = [&](int y, int stage, int slice) {
#pragma unroll
        for (int i = 0; i < 2; ++i) b[ROLLS ? slice % 2 : 0][y][i] = b_elements.of(stage, 8 * y, slice * 8 + i * 4);
    };

    // Why a stage may be read and refilled: each thread waits for its own copies of a tile (all copy groups except the
    // newest STAGES - 2). Then all threads synchronize, so the whole tile is in shared memory. This barrier also comes
    // after all reads of the previous tile: with ROLLS, the last fragments of that tile are already in registers. A
    // thread starts copies into the previous tile's memory only after the barrier. When `join` reuses the shared
    // memory, no copy is in flight, and no thread reads a stage.
    for (int stage = 0; stage < STAGES - 1; ++stage) start(stage);
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (ROLLS) {
#pragma unroll
        for (int x = 0; x < HIGH; ++x) fetch_a(x, 0, 0);
#pragma unroll
        for (int y = 0; y < WIDE; ++y) fetch_b(y, 0, 0);
    }
    int stage = 0;
    // Multiplies a tile and starts the copies of a later tile. `whole`: the later tile is completely inside the matrix.
    // Its copies are then distributed over the first slice (8 steps of k), a few after each mma. Otherwise all copies
    // of the later tile start before the first mma.
    auto multiply_tile = [&](bool whole) { // `whole` is a compile-time constant, because the lambda is inlined
        const int next = stage + 1 == STAGES ? 0 : stage + 1, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (!ROLLS) {
            copy_wait<STAGES - 2>();
            __syncthreads();
        }
        if (!whole) start(free);
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            const bool last = slice + 1 == SLICES;
            if (ROLLS && last) {
                copy_wait<STAGES - 2>(); // the next tile is in shared memory, and
                __syncthreads();         // no thread reads this tile any more
            }
            if (!ROLLS) {
#pragma unroll
                for (int y = 0; y < WIDE; ++y) fetch_b(y, stage, slice);
            }
            // The stage and slice of the fragments to load next. Fragments after the last tile are loaded but not used.
            const int from = last ? next : stage, ahead = last ? 0 : slice + 1;
#pragma unroll
            for (int x = 0; x < HIGH; ++x) {
                if (!ROLLS) fetch_a(x, stage, slice);
#pragma unroll
                for (int y = 0; y < WIDE; ++y) {
                    multiply_fragments(acc[x][y], a[x], b[ROLLS ? slice % 2 : 0][y]);
                    if (ROLLS && (x * WIDE + y) % HIGH == 0) fetch_b((x * WIDE + y) / HIGH, from, ahead);
                    if (whole && slice == 0) {
                        a_copies.start_share(a_address + free * (BM * BK * 8), x * WIDE + y, HIGH * WIDE);
                        b_copies.start_share(b_address + free * (BN * BK * 8), x * WIDE + y, HIGH * WIDE);
                    }
                }
                if (ROLLS) fetch_a(x, from, ahead);
            }
            if (whole && slice == 0) copy_commit();
        }
        stage = next;
    };
    int step = 0;
    // The copies of a whole tile are distributed over the multiplications of another tile if an operand is copied two
    // elements at a time. If both operands are copied element by element, there are too many copies for the registers.
    if (A_VECTOR + B_VECTOR > 2 && a_copies.size == BM && b_copies.size == BN) {
        const int full = share.steps - (rest < BK);
#pragma unroll 1
        for (; step + STAGES - 1 < full; ++step) multiply_tile(true);
        copied += step;
    }
#pragma unroll 1
    for (; step < share.steps; ++step) multiply_tile(false);
    copy_wait<0>();
    __syncthreads();

    const Output<RUN> output(g, blockIdx.y);
    const long long number = blockIdx.y * (long long)tiles_of<BM, BN>(g) + index;
    join<TM * TN / 32, THREADS, true>(g, number, part, threadIdx.x, *(const double(*)[TM * TN / 32]) & acc, shared,
                                      [&](int i, const double(&sums)[RUN]) {
                                          const int row = i / 4 / WIDE * 16 + i / 2 % 2 * 8 + lane / 4;
                                          const int column = i / 4 % WIDE * 8 + lane % 4 * 2;
                                          output.put(tile.top + top + row, tile.left + left + column, sums);
                                      });
}
