// gemm_cuda_gemv: few columns, n <= BN: out = alpha * a * b + beta * c in one pass over a, which is all the time it takes.
//
//                       n <= BN
//                      +--+         A block owns BM rows. Its THREADS threads have LOADS accesses of 16 bytes to a on
//                    k |b |         their way while they multiply what the LOADS before have brought (by elements
//          k           +--+         where a does not lie aligned); b comes through shared memory, CHUNK of k at once.
//      +-------+       +--+
//    m | a     | BM    |  |         a along k (A_TURNED 0)           a along m (A_TURNED 1)
//      +-------+       +--+         a warp: ROWS rows,               a row of lanes: BM rows, another k each;
//                                   its lanes run along k            the rows of lanes run along k
//
// Sums of a row that lie in several lanes or warps are added up in a fixed order, those of the parts of k by join.cuh.
// ORDERED: one thread sums an element, k in order; the block then brings a through shared memory for its BM * BN chains.
//
// Products of few rows are launched transposed: out' = b' a'. Grid: x over the parts of ceil(m / BM) blocks of rows, y
// over the batch. Any strides, but that one of a's is 1 where A_VECTOR is not. Bytes of a in flight decide the speed:
// 8 loads of 512 threads are 64 KiB a multiprocessor, and a loaded one of an H200 needs about 30.

#ifndef BM
#define BM 64 // rows of out a block
#endif
#ifndef BN
#define BN 1 // columns at most: 1, 2, 4 or 8
#endif
#ifndef THREADS
#define THREADS 512
#endif
#ifndef LOADS
#define LOADS 8 // 16-byte accesses of a thread that are on their way
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements of a in an access: 16 bytes' or 1
#endif
#ifndef ORDERED
#define ORDERED 0 // 1: each element is one chain of fma along k
#endif

#include "gemm.cuh"
#include "ptx.cuh"
//#include "join.cuh"

constexpr int SIZE = sizeof(A_TYPE), FULL = 16 / SIZE, VEC = A_VECTOR; // elements of 16 bytes; of an access
constexpr int BATCH = ORDERED ? 4 : SIZE == 2 && VEC == 1 ? LOADS / 2 : LOADS; // what tile and registers hold
constexpr int RUNS = BATCH * FULL / VEC;                               // accesses to fill a thread's registers
constexpr int PIECE = THREADS * BATCH * FULL / BM;                     // of k, which a block has in registers
constexpr int CHUNK = 16384 / (BN * sizeof(SUM));                      // of k, for which b is in shared memory
constexpr int WARPS = THREADS / 32, ROWS = BM / WARPS;                 // A_TURNED 0: rows of a warp
constexpr int ACROSS = BM / VEC, DOWN = THREADS / ACROSS;              // A_TURNED 1: lanes along m, and along k
constexpr int SUMS = (A_TURNED ? VEC : ROWS) * BN;                     // of a thread
constexpr int LOWEST = A_TURNED ? ACROSS : 1;                          // lanes so far apart and more share rows
constexpr int LEFT = LOWEST > 16 ? SUMS : SUMS * LOWEST > 32 ? SUMS * LOWEST / 32 : 1; // of a lane when they have met
constexpr int SLOTS = A_TURNED ? THREADS / (ACROSS > 32 ? ACROSS : 32) : 1; // sums of an element
constexpr int STAGED = CHUNK * BN / THREADS;                           // elements of b a thread brings
constexpr int WORDS = VEC * SIZE > 4 ? VEC * SIZE / 4 : 1;             // of an access
static_assert(CHUNK % PIECE == 0 && BM * BN <= THREADS && SLOTS * BM * BN <= 2 * CHUNK * BN, "the block is too small");

typedef unsigned Piece[RUNS][WORDS];

// Element e of an access.
INLINE float element(const unsigned *words, int e, float) {
    return __uint_as_float(words[e]);
}
INLINE double element(const unsigned *words, int e, double) {
    return __longlong_as_double((long long)((unsigned long long)words[2 * e + 1] << 32 | words[2 * e]));
}
INLINE float element(const unsigned *words, int e, float16) {
    return f16_to_float((unsigned short)(words[e / 2] >> e % 2 * 16));
}
INLINE float element(const unsigned *words, int e, bfloat16) {
    return __uint_as_float(e % 2 ? words[e / 2] & 0xFFFF0000 : words[e / 2] << 16);
}

// VEC elements from `from` on. The first `left` of them exist, the others are 0.
template <bool WHOLE> INLINE void load(unsigned (&words)[WORDS], const A_TYPE *from, long long left) {
    if (VEC > 1 && (WHOLE || left >= VEC)) {
        const uint4 x = load_once((const uint4 *)from);
        const unsigned all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int w = 0; w < WORDS; ++w) words[w] = all[w];
        return;
    }
#pragma unroll
    for (int w = 0; w < WORDS; ++w) words[w] = 0;
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        const A_TYPE *at = from + e;
        unsigned long long bits = 0;
        if (WHOLE || e < left)
            bits = SIZE == 2   ? *(const unsigned short *)at
                   : SIZE == 4 ? *(const unsigned *)at
                               : *(const unsigned long long *)at;
#pragma unroll
        for (int w = 0; w < (SIZE + 3) / 4; ++w) words[e * SIZE / 4 + w] |= (unsigned)(bits >> 32 * w) << e * SIZE % 4 * 8;
    }
}

// Access r of a piece: its first row in the block and first step along k in the piece.
INLINE int row_of(int r) {
    const int t = threadIdx.x;
    return A_TURNED ? t % ACROSS * VEC : t / 32 * ROWS + r % ROWS;
}
INLINE int step_of(int r) {
    const int t = threadIdx.x;
    return A_TURNED ? r * DOWN + t / ACROSS : (r / ROWS * 32 + t % 32) * VEC;
}

struct Block {
    const A_TYPE *a;  // the block's first row at k = 0
    int rows;         // that exist
    long long end;    // of its part of k
};

template <bool WHOLE>
INLINE void fetch(unsigned (&words)[WORDS], const Gemm &g, const Block &block, long long p, int r) {
    const int i = row_of(r);
    const long long q = p + step_of(r), rows = block.rows - i, steps = block.end - q;
    const bool any = WHOLE || (rows > 0 && steps > 0);
    load<WHOLE>(words, block.a + i * g.a_row + q * g.a_col, !any ? 0 : A_TURNED ? rows : steps);
}
INLINE bool whole(const Block &block, long long p) {
    return block.rows == BM && p + PIECE <= block.end;
}
INLINE void fetch(Piece &piece, const Gemm &g, const Block &block, long long p) {
    if (whole(block, p)) {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) fetch<true>(piece[r], g, block, p, r);
    } else {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) fetch<false>(piece[r], g, block, p, r);
    }
}

// Where b's element (q, j) of a chunk lies in shared memory: lanes along k then read 16 bytes each, side by side.
INLINE int place(int q, int j) {
    if (A_TURNED) return q * BN + j;
    const int lanes = 32 * 8; // lanes that take 8 steps each read them in halves
    return j * CHUNK + (VEC < 8 ? q : q / lanes * lanes + q / 4 % 2 * (lanes / 2) + q % lanes / 8 * 4 + q % 4);
}

// b's elements of the chunk from p on, or 0 beyond: by threads along its unit stride, first into registers.
struct Element {
    int q, j;
};
INLINE Element staged_element(const Gemm &g, int x) {
    const int i = x * THREADS + threadIdx.x;
    return g.b_row == 1 ? Element{i % CHUNK, i / CHUNK} : Element{i / BN, i % BN};
}
INLINE void fetch_b(SUM (&staged)[STAGED], const Gemm &g, const B_TYPE *b, long long p, long long end) {
#pragma unroll
    for (int x = 0; x < STAGED; ++x) {
        const Element at = staged_element(g, x);
        const bool exists = p + at.q < end && at.j < g.n;
        staged[x] = exists ? (SUM)widen(b[(p + at.q) * g.b_row + at.j * g.b_col]) : SUM{};
    }
}

// Adds the products of the piece whose b begins at step `from` of the chunk. FETCH: each access, once done with, is replaced
// by that of the piece from p on, which is a whole one.
template <bool FETCH>
INLINE void multiply_piece(SUM (&acc)[SUMS], Piece &piece, const SUM *b, int from, const Gemm &g, const Block &block,
                           long long p) {
#pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        const int q = from + step_of(r);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const SUM x = element(piece[r], e, A_TYPE{});
#pragma unroll
            for (int j = 0; j < BN; ++j) {
                SUM &sum = acc[(A_TURNED ? e : r % ROWS) * BN + j];
                sum = multiply_add(x, b[place(q + (A_TURNED ? 0 : e), j)], sum);
            }
        }
        if (FETCH) fetch<true>(piece[r], g, block, p, r);
    }
}

// Adds up what lanes that share rows have, by halves, so that COUNT sums become one in few steps; a lane's first is then
// number `base`. Where lanes have the same one, a single lane keeps it.
template <int COUNT, int BIT> INLINE void fold(SUM (&acc)[SUMS], int &base, bool &mine) {
    const bool upper = threadIdx.x & BIT;
    constexpr int HALF = COUNT / 2;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        const SUM keep = upper ? acc[i + HALF] : acc[i], send = upper ? acc[i] : acc[i + HALF];
        acc[i] = add(keep, __shfl_xor_sync(0xffffffff, send, BIT));
    }
    if (COUNT == 1) acc[0] = add(acc[0], __shfl_xor_sync(0xffffffff, acc[0], BIT));
    if (upper) (COUNT == 1) ? mine = false : base += HALF;
    if constexpr (BIT > LOWEST) fold<(HALF > 0 ? HALF : 1), BIT / 2>(acc, base, mine);
}

// Puts a warp's sums into slots[.][j * BM + row].
INLINE void put_sums(SUM (&acc)[SUMS], SUM *slots) {
    int base = 0;
    bool mine = true;
    if constexpr (LOWEST <= 16) fold<SUMS, 16>(acc, base, mine);
    const int slot = !A_TURNED ? 0 : ACROSS > 32 ? threadIdx.x / ACROSS : threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < LEFT; ++i) {
        const int row = row_of(0) + (base + i) / BN, j = (base + i) % BN;
        if (mine) slots[slot * BM * BN + j * BM + row] = acc[i];
    }
}

// This thread's element of the block, summed over the block's part of k.
INLINE SUM by_lanes(const Gemm &g, const Block &block, const B_TYPE *b, long long p, SUM *shared) {
    SUM acc[SUMS] = {}, staged[STAGED];
    Piece piece;
    int from = CHUNK, buffer = 1;
    if (p < block.end) {
        fetch(piece, g, block, p);
        fetch_b(staged, g, b, p, block.end);
    }
    for (; p < block.end; p += PIECE, from += PIECE) {
        if (from == CHUNK) {
            from = 0, buffer ^= 1;
#pragma unroll
            for (int x = 0; x < STAGED; ++x) {
                const Element at = staged_element(g, x);
                shared[buffer * CHUNK * BN + place(at.q, at.j)] = staged[x];
            }
            __syncthreads(); // all are done with the chunk before the last, whose place the next will take
            fetch_b(staged, g, b, p + CHUNK, block.end);
        }
const SUM *chunk = shared + buffer * CHUNK * BN;
        if (whole(block, p + PIECE)) {
            multiply_piece<true>(acc, piece, chunk, from, g, block, p + PIECE);
        } else {
            multiply_piece<false>(acc, piece, chunk, from, g, block, 0);
            if (p + PIECE < block.end) fetch(piece, g, block, p + PIECE);
        }
    }
    __syncthreads();
    put_sums(acc, shared);
    __syncthreads();
    SUM sum = 0;
    if (threadIdx.x < BM * BN)
#pragma unroll
        for (int s = 0; s < SLOTS; ++s) sum = add(sum, shared[s * BM * BN + threadIdx.x]);
    return sum;
}

// The same by one chain a thread, from a tile of a in shared memory.
INLINE SUM by_chains(const Gemm &g, const Block &block, const B_TYPE *b, A_TYPE *tile) {
    constexpr int PITCH = PIECE + FULL; // rows lie 16 bytes apart modulo the banks
    const int i = threadIdx.x % BM, j = threadIdx.x / BM;
    b += j * g.b_col;
    SUM acc = 0;
    Piece piece;
    if (block.end > 0) fetch(piece, g, block, 0);
    for (long long p = 0; p < block.end; p += PIECE) {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            A_TYPE *to = tile + (A_TURNED ? step_of(r) * BM + row_of(r) : row_of(r) * PITCH + step_of(r));
            if (VEC > 1)
                *(uint4 *)to = uint4{piece[r][0], piece[r][1 % WORDS], piece[r][2 % WORDS], piece[r][3 % WORDS]};
            else if (SIZE == 2)
                *(unsigned short *)to = (unsigned short)piece[r][0];
            else
#pragma unroll
                for (int w = 0; w < WORDS; ++w) ((unsigned *)to)[w] = piece[r][w];
        }
        __syncthreads();
        if (p + PIECE < block.end) fetch(piece, g, block, p + PIECE);
        if (threadIdx.x < BM * BN && j < g.n) {
            const int steps = (int)min((long long)PIECE, block.end - p);
            const B_TYPE *x = b + p * g.b_row;
            int q = 0;
#pragma unroll 4
            for (; q + FULL <= steps; q += FULL) {
                const uint4 run = A_TURNED ? uint4{} : *(const uint4 *)(tile + i * PITCH + q);
                const unsigned words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
                for (int e = 0; e < FULL; ++e) {
                    const SUM from_a = A_TURNED ? (SUM)widen(tile[(q + e) * BM + i]) : element(words, e, A_TYPE{});
                    acc = multiply_add(from_a, (SUM)widen(x[(q + e) * g.b_row]), acc);
                }
            }
            for (; q < steps; ++q)
                acc = multiply_add((SUM)widen(tile[A_TURNED ? q * BM + i : i * PITCH + q]), (SUM)widen(x[q * g.b_row]), acc);
        }
        __syncthreads();
    }
    return acc;
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_cuda_gemv(ARGUMENT Gemm g) {
    constexpr int NEEDED = ORDERED ? BM * (PIECE + FULL) * SIZE : 2 * CHUNK * BN * (int)sizeof(SUM);
    __shared__ alignas(16) SUM shared[NEEDED / sizeof(SUM)];

    const int part = blockIdx.x % g.parts;
    const long long top = (long long)(blockIdx.x / g.parts) * BM;
    const Share share = share_of<PIECE>(g, part);
    const long long first = (long long)share.first * PIECE;
    const Block block = {g.a + blockIdx.y * g.a_batch + top * g.a_row, (int)min((long long)BM, g.m - top),
                         min(g.k, first + (long long)share.steps * PIECE)};
    const B_TYPE *b = g.b + blockIdx.y * g.b_batch;

    SUM sum[1];
    sum[0] = ORDERED ? by_chains(g, block, b, (A_TYPE *)shared) : by_lanes(g, block, b, first, shared);
    if (threadIdx.x < BM * BN && threadIdx.x % BM < block.rows)
        Output<1>(g, blockIdx.y).put(top + threadIdx.x % BM, threadIdx.x / BM, sum);
}
