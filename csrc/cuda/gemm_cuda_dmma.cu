// gemm_cuda_dmma: out = alpha * a * b + beta * c in float64 on tensor cores (sm_80 and newer), operands by cp.async.
//
//   memory --cp.async--> shared memory, STAGES tiles of a and b --16 bytes a load--> fragments --mma--> acc
//
// A block owns BM x BN outputs, a warp TM x TN of them, in squares of 16. STAGES - 1 tiles are on their way while one is
// multiplied, and each fragment of 8 steps along k is replaced by the next as soon as it is multiplied.
//
// An mma of 16 x 8 outputs asks lane (g, t) = (lane / 4, lane % 4) for rows g, g + 8, for columns g, and for steps t, t + 4 of
// the 8. Which row, column or step of memory these are is ours to say, as long as a and b agree. We say
//
//     mma    row g, g + 8      column g of the square's left, right half      step t, t + 4
//     ours   2g, 2g + 1        2g, 2g + 1                                     2t, 2t + 1
//
// so that all come as pairs of 16 bytes, whichever way an operand lies, and a lane's outputs, 4 columns of 2 rows, lie
// side by side. Tiles stay as they lie in memory: rows of 128 bytes or a multiple, whose chunks of 16 are swapped such
// that the 8 lanes that are served at once find them in different banks.
//
// Not ORDERED: on Hopper one instruction sums 8 steps, in an order of its own. Grid: x = tiles * parts, y = the batch.

#ifndef BM
#define BM 128 // rows of out a block
#endif
#ifndef BN
#define BN 64 // columns of out a block
#endif
#ifndef BK
#define BK 16 // steps along k a stage
#endif
#ifndef TM
#define TM 64 // rows of out a warp
#endif
#ifndef TN
#define TN 32 // columns of out a warp
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef BLOCKS
#define BLOCKS 2 // blocks that a multiprocessor shall hold at once
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
#define A_VECTOR 1 // elements of one copy: 2 or 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#include "join.cuh"

constexpr int WARPS_N = BN / TN, SLICES = BK / 8;
constexpr bool ROLLS = __CUDA_ARCH__ < 1200; // later compilers do not find registers for the fragments ahead
static_assert(BK % 16 == 0 && SLICES % 2 == 0 && TM % 16 == 0 && TN % 16 == 0, "rows of 128 bytes, squares of 16");
static_assert(THREADS == 32 * (BM / TM) * WARPS_N, "warps own the block's outputs");

// Where element (x, p) of a tile of SIZE rows of a (columns of b) and BK steps lies. ALONG: its rows are steps.
template <bool ALONG, int SIZE> INLINE int place(int x, int p) {
    if (ALONG) return p * SIZE + (((x / 2) ^ (p / 2 % 4 * 2)) * 2 | x % 2);
    return x * BK + (((p / 2) ^ (x / 2 % 2 * 4)) * 2 | p % 2);
}

// A thread's share of the copies of an operand's tiles: of one place in every DOWN-th of the tile's rows, which are of memory,
// too. Of rows of a (columns of b) `size` exist.
template <bool ALONG, int SIZE, int WIDTH> struct Copies {
    static constexpr int ACROSS = (ALONG ? SIZE : BK) / WIDTH, DOWN = THREADS / ACROSS, ROWS = ALONG ? BK : SIZE;
    static_assert(THREADS % ACROSS == 0, "a row of copies is a share of the threads");
    const double *from;
    const long long &of_x, &of_p; // read again where they are needed: registers are short
    int row, col, size;

    __device__ __forceinline__ Copies(const double *from, const long long &of_x, const long long &of_p, int size)
        : of_x(of_x), of_p(of_p), size(size) {
        row = threadIdx.x / ACROSS, col = threadIdx.x % ACROSS * WIDTH;
        this->from = from + row * (ALONG ? of_p : of_x) + col * (ALONG ? of_x : of_p);
    }

    // Starts the copies of the next tile, of which `steps` exist. Zeros come from beyond.
    __device__ __forceinline__ void start(double *tile, int steps) {
        const int width = max(0, min(WIDTH, (ALONG ? size : steps) - col)), rows = ALONG ? steps : size;
        const double *at = from;
        const long long next = DOWN * (ALONG ? of_p : of_x);
#pragma unroll(WIDTH == 1 ? 2 : ROWS / DOWN) // twice as many at once would not find registers
        for (int i = 0; i < ROWS; i += DOWN, at += next) {
            const int r = row + i, valid = r < rows ? width : 0;
            if (ROWS % DOWN && r >= ROWS) break;
            double *to = tile + (ALONG ? place<true, SIZE>(col, r) : place<false, SIZE>(r, col));
            copy_async<WIDTH * 8>(shared_address(to), valid ? at : from, valid * 8);
        }
        from += BK * of_p;
    }
};

// The fragment of the 16 rows of a (columns of b) from `first` on and steps p to p + 7: in [2 * j + h] row 2g + h, step 2t + j.
template <bool ALONG, int SIZE> INLINE void load(double (&to)[4], const double *tile, int first, int p) {
    const int row = threadIdx.x % 32 / 4 * 2, step = threadIdx.x % 4 * 2;
    tile += ALONG ? first + p * SIZE : first * BK; // multiples of what decides where chunks are swapped to
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int at = ALONG ? place<true, SIZE>(row, step + i) : place<false, SIZE>(row + i, p + step);
        const Vector<double, 2> pair = *(const Vector<double, 2> *)(tile + at);
        to[ALONG ? 2 * i : i] = pair.at[0];
        to[ALONG ? 2 * i + 1 : 2 + i] = pair.at[1];
    }
}

// d += a * b for 16 x 8 outputs and 8 steps.
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

    const unsigned index = blockIdx.x / g.parts;
    const int part = blockIdx.x % g.parts;
    const Tile tile = tile_of<BM, BN>(g, index);
    const Share share = share_of<BK>(g, part);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int top = warp / WARPS_N * TM, left = warp % WARPS_N * TN; // of the warp in the block

    const long long first = share.first * (long long)BK;
    Copies<A_TURNED, BM, A_VECTOR> a_copies(g.a + blockIdx.y * g.a_batch + tile.top * g.a_row + first * g.a_col,
                                            g.a_row, g.a_col, (int)min((long long)BM, g.m - tile.top));
    Copies<!B_TURNED, BN, B_VECTOR> b_copies(g.b + blockIdx.y * g.b_batch + tile.left * g.b_col + first * g.b_row,
                                             g.b_col, g.b_row, (int)min((long long)BN, g.n - tile.left));
    const int rest = (int)min((long long)BK, g.k - first - (share.steps - 1) * (long long)BK); // steps of the last tile
    int copied = 0;
    auto start = [&](int stage) {
        if (copied < share.steps) {
            const int steps = copied + 1 < share.steps ? BK : rest;
            a_copies.start(a_tiles + stage * BM * BK, steps);
            b_copies.start(b_tiles + stage * BN * BK, steps);
            ++copied;
        }
        copy_commit(); // an empty group keeps the count
    };

    double acc[TM / 16][2][TN / 16][4] = {}; // of square (x, y): row 2g + h, columns 4t to 4t + 3
    double a[TM / 16][4], b[TN / 16][4];
    auto fetch_a = [&](int x, int stage, int slice) {
        load<A_TURNED, BM>(a[x], a_tiles + stage * BM * BK, top + 16 * x, slice * 8);
    };
    auto fetch_b = [&](int y, int stage, int slice) {
        load<!B_TURNED, BN>(b[y], b_tiles + stage * BN * BK, left + 16 * y, slice * 8);
    };

    for (int stage = 0; stage < STAGES - 1; ++stage) start(stage);
    copy_wait<STAGES - 2>();
    __syncthreads();
#pragma unroll
    for (int x = 0; x < TM / 16; ++x) fetch_a(x, 0, 0);
#pragma unroll
    for (int y = 0; y < TN / 16; ++y) fetch_b(y, 0, 0);
    for (int step = 0, stage = 0; step < share.steps; ++step) {
        const int next = stage + 1 == STAGES ? 0 : stage + 1;
        if (!ROLLS) {
            copy_wait<STAGES - 2>();
            __syncthreads();
        }
#pragma unroll 1 // more would want more than 255 registers
        for (int slice = 0; slice < SLICES; ++slice) {
            const bool last = slice + 1 == SLICES;
            if (slice == 0) start(stage == 0 ? STAGES - 1 : stage - 1);
            if (ROLLS && last) {
                copy_wait<STAGES - 2>(); // the next tile is there, and
                __syncthreads();         // nobody needs memory of this one any more
            }
            if (!ROLLS) {
#pragma unroll
                for (int y = 0; y < TN / 16; ++y) fetch_b(y, stage, slice);
            }
            const int from = last ? next : stage, ahead = last ? 0 : slice + 1; // after the last step unused
#pragma unroll
            for (int x = 0; x < TM / 16; ++x) {
                if (!ROLLS) fetch_a(x, stage, slice);
#pragma unroll
                for (int y = 0; y < TN / 16; ++y) {
#pragma unroll
                    for (int half = 0; half < 2; ++half) { // columns 4t + 2q + half, q = 0, 1
                        double(&upper)[4] = acc[x][0][y], (&lower)[4] = acc[x][1][y];
                        double d[4] = {upper[half], upper[2 + half], lower[half], lower[2 + half]};
                        const double steps[2] = {b[y][half], b[y][2 + half]};
                        multiply_fragments(d, a[x], steps);
                        upper[half] = d[0], upper[2 + half] = d[1], lower[half] = d[2], lower[2 + half] = d[3];
                    }
                    if (ROLLS && x + 1 == TM / 16) fetch_b(y, from, ahead);
                }
                if (ROLLS) fetch_a(x, from, ahead);
            }
        }
        stage = next;
    }
    copy_wait<0>();
    __syncthreads();

    const Output<RUN> output(g, blockIdx.y);
    const long long number = blockIdx.y * (long long)tiles_of<BM, BN>(g) + index;
    constexpr int WIDE = TN / 4; // sums of a row
    join<TM * TN / 32, THREADS>(g, number, part, threadIdx.x, *(const double(*)[TM * TN / 32]) & acc, shared,
                                [&](int i, const double(&sums)[RUN]) {
                                    const int row = i / WIDE / 2 * 16 + lane / 4 * 2 + i / WIDE % 2;
                                    const int column = i % WIDE / 4 * 16 + lane % 4 * 4 + i % 4;
                                    output.put(tile.top + top + row, tile.left + left + column, sums);
                                });
}
