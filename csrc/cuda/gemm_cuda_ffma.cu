// gemm_cuda_ffma: out = alpha * a * b + beta * c, outputs in registers, operands by cp.async (sm_80 and newer).
//
//   memory --cp.async--> shared memory, STAGES tiles of a and b --16 bytes per load--> registers --fma--> acc
//
// While one tile is multiplied, STAGES - 1 tiles are in flight. One barrier per tile is enough: after it, this tile has
// arrived and all threads have read the previous tile. An operand that is contiguous along m (n) is copied in pieces of
// A_VECTOR (B_VECTOR) elements. An operand that is contiguous along k is copied element by element and transposed by
// the copy: 8 lanes copy 8 adjacent elements (32 bytes of float). The transposition costs one or two percent of the
// speed. Beyond the edges of the matrix the copies write zeros. See ffma.cuh.
//
// A block has GROUPS groups of threads. Each group multiplies BK / GROUPS of a stage's elements of k, and add_groups
// adds the groups' sums at the end. This keeps a multiprocessor busy if a tile has few outputs. With a single group of
// as many threads, each thread would have fewer than 64 sums. The kernel is ORDERED if GROUPS is 1 and k is not split
// into parts: each output is then one chain of fma in ascending k.
//
// Grid: x = tiles * parts, y = the batch. Block: THREADS = BM * BN / (TM * TN) * GROUPS.

#ifndef BM
#define BM 128 // rows of out per block
#endif
#ifndef BN
#define BN 128 // columns of out per block
#endif
#ifndef BK
#define BK 16 // elements of k per stage
#endif
#ifndef TM
#define TM 8 // rows of out per thread
#endif
#ifndef TN
#define TN 8 // columns of out per thread
#endif
#ifndef STAGES
#define STAGES 4 // tiles of a and b in shared memory
#endif
#ifndef GROUPS
#define GROUPS 1 // groups of threads; each multiplies BK / GROUPS of a stage's elements of k
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef RESIDENT
#define RESIDENT 1 // blocks that a multiprocessor must be able to hold at once
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef B_TURNED
#define B_TURNED 0 // 1: b is contiguous along k, not n
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements per copy
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#include "ffma.cuh"

static_assert(THREADS == WORKERS * GROUPS && BK % GROUPS == 0, "a thread has TM * TN sums");

// Distance in elements between two rows of a tile in shared memory (k and k + 1). The padding of 16 bytes avoids bank
// conflicts of transposed copies.
enum { A_PITCH = BM + CHUNK, B_PITCH = BN + CHUNK };

// A thread's share of the copies of an operand's tiles. In shared memory, a tile is BK rows (one for each k) of WIDE
// elements along m (n). In global memory, the operand is contiguous along k if TURNED, else along m (n). A line is
// LENGTH contiguous elements of the tile in global memory; the next line is `stride` elements further. `corner` is the
// first element of the first tile, `from` the thread's first element of the next tile.
template <int WIDE, int WIDTH, bool TURNED> struct Copies {
    static constexpr int PITCH = WIDE + CHUNK; // distance in elements between two rows in shared memory
    static constexpr int LENGTH = TURNED ? BK : WIDE, LINES = TURNED ? WIDE : BK; // shape of the tile in global memory
    static constexpr int WHOLE = LENGTH / WIDTH, LINE = TURNED            ? 8
                                                        : WHOLE < THREADS ? WHOLE
                                                                          : THREADS; // threads per line
    static constexpr int AT_ONCE = THREADS / LINE;                                   // lines copied at a time
    static_assert(THREADS % LINE == 0 && WHOLE % LINE == 0 && !(TURNED && WIDTH > 1), "lines are whole");
    const T *from;
    long long stride;
    int line, at;

    __device__ __forceinline__ Copies(const T *corner, long long stride) : stride(stride) {
        line = threadIdx.x / LINE, at = threadIdx.x % LINE * WIDTH;
        from = corner + line * stride + at;
    }

    // Starts the copies of a tile to shared memory at `tile`; the next call copies the next tile along k. `wide`
    // elements per row and `steps` rows of the tile exist. FULL: the whole tile exists.
    template <bool FULL> __device__ __forceinline__ void start(T *tile, int wide, int steps) {
        const T *next = from;
#pragma unroll
        for (int first = 0; first < LINES; first += AT_ONCE, next += AT_ONCE * stride) {
            const int l = first + line;
            if (LINES % AT_ONCE && l >= LINES) break;
#pragma unroll
            for (int x = 0; x < LENGTH; x += LINE * WIDTH) {
                const int left = (TURNED ? steps : wide) - at - x;
                const int valid = FULL ? WIDTH : l < (TURNED ? wide : steps) ? max(0, min(WIDTH, left)) : 0;
                T *const to = TURNED ? tile + (at + x) * PITCH + l : tile + l * PITCH + at + x;
                copy_async<WIDTH * sizeof(T)>(shared_address(to), valid ? next + x : from, valid * (int)sizeof(T));
            }
        }
        from += TURNED ? BK : BK * stride;
    }
};

// Adds the sums of the other groups to those of the first group. `shared` must have room for the sums of the other
// groups.
INLINE void add_groups(T (&acc)[TM * TN], T *shared) {
    const int group = threadIdx.x / WORKERS;
    Vector<T, CHUNK> *const sums = (Vector<T, CHUNK> *)shared + threadIdx.x % WORKERS;
    constexpr int CHUNKS = TM * TN / CHUNK;
    __syncthreads(); // all threads have read the last stage
#pragma unroll
    for (int i = 0; i < TM * TN; ++i)
        if (group) sums[((group - 1) * CHUNKS + i / CHUNK) * WORKERS].at[i % CHUNK] = acc[i];
    __syncthreads();
    if (group) return;
#pragma unroll 1
    for (int other = 1; other < GROUPS; ++other) {
#pragma unroll
        for (int i = 0; i < TM * TN; ++i)
            acc[i] = add(acc[i], sums[((other - 1) * CHUNKS + i / CHUNK) * WORKERS].at[i % CHUNK]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_cuda_ffma(ARGUMENT Gemm g) {
    alignas(128) extern __shared__ unsigned char shared[];
    constexpr int STEPS = BK / GROUPS;
    T *const a_tiles = (T *)shared, *const b_tiles = a_tiles + STAGES * BK * A_PITCH;

    follow_launch();
    const unsigned index = blockIdx.x / g.parts;
    const int part = blockIdx.x % g.parts;
    const Tile tile = tile_of<BM, BN>(g, index);
    const Share share = share_of<BK>(g, part);
    const Lane lane = lane_of(threadIdx.x % WORKERS);
    const int rows = (int)min((long long)BM, g.m - tile.top), cols = (int)min((long long)BN, g.n - tile.left);

    const long long first = share.first * (long long)BK;
    Copies<BM, A_TURNED ? A_VECTOR : 1, !A_TURNED> a(
        g.a + blockIdx.y * g.a_batch + tile.top * g.a_row + first * g.a_col, A_TURNED ? g.a_col : g.a_row);
    Copies<BN, B_TURNED ? 1 : B_VECTOR, B_TURNED> b(
        g.b + blockIdx.y * g.b_batch + tile.left * g.b_col + first * g.b_row, B_TURNED ? g.b_col : g.b_row);

    const int ragged = (int)((g.k - first) / BK); // index of the tile that has fewer than BK rows, if there is one
    const bool whole = rows == BM && cols == BN;
    int copied = 0;
    auto start = [&](int stage) {
        if (copied < share.steps) {
            T *const a_tile = a_tiles + stage * BK * A_PITCH, *const b_tile = b_tiles + stage * BK * B_PITCH;
            if (whole && copied < ragged) {
                a.template start<true>(a_tile, BM, BK);
                b.template start<true>(b_tile, BN, BK);
            } else {
                const int steps = copied < ragged ? BK : (int)(g.k - first - copied * (long long)BK);
                a.template start<false>(a_tile, rows, steps);
                b.template start<false>(b_tile, cols, steps);
            }
            ++copied;
        }
        copy_commit(); // one copy group per call, empty if there was nothing to copy: copy_wait counts copy groups
    };

    T acc[TM * TN] = {};
    Fragments<A_PITCH, B_PITCH> fragments;
    const int mine = threadIdx.x / WORKERS * STEPS; // first of this group's rows in a stage
    const unsigned a_from = kept(shared_address(a_tiles + lane.m)), b_from = kept(shared_address(b_tiles + lane.n));
    // Why a stage may be read and refilled: each thread waits for its own copies of this step's tile (all copy groups
    // except the newest STAGES - 2). Then all threads synchronize, so the whole tile is in shared memory. At this
    // barrier, all threads have also read the tile of the previous step. New copies into the previous tile's memory
    // start only after the barrier. `join` and add_groups reuse the memory after every thread has waited for all of its
    // copies and the threads have synchronized.
    for (int stage = 0; stage < STAGES - 1; ++stage) start(stage);
    for (int step = 0, stage = 0; step < share.steps; ++step) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        start(stage == 0 ? STAGES - 1 : stage - 1);
        const unsigned row = (stage * BK + mine) * (unsigned)sizeof(T);
        fragments.begin(a_from + row * A_PITCH, b_from + row * B_PITCH);
        if (GROUPS > 1 || step < ragged)
            fragments.template multiply<STEPS>(acc);
        else
            fragments.multiply_rest(acc, (int)(g.k % BK));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    if (GROUPS > 1) add_groups(acc, (T *)shared);
    if (threadIdx.x < WORKERS) finish<true>(g, blockIdx.y, index, part, threadIdx.x, acc, shared);
}
