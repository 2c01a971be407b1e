// gemm_cuda_gemv: few columns: out = alpha * a * b + beta * c in one pass over a, which is all the time it takes.
//
//                       n <= BN
//                      +--+         A block owns BM rows. Its THREADS threads have BK of k on their way by accesses of 16
//                    k |b |         bytes (by elements where a does not lie aligned), each replaced by the next as
//          k           +--+         soon as it is multiplied; b comes through shared memory, CHUNK of k at once.
//      +-------+       +--+
//    m | a     | BM    |  |         a along k (A_TURNED 0)           a along m (A_TURNED 1)
//      +-------+       +--+         a warp: ROWS rows,               a row of lanes: BM rows, another k each;
//                                   its lanes run along k            the rows of lanes run along k
//
// Sums of a row that lie in several lanes or warps are added up in a fixed order, those of the parts of k by join.cuh.
// ORDERED: one thread sums an element, k in order; the block then brings a through shared memory for its BM * BN chains.
//
// Products of few rows are launched transposed: out' = b' a'. Those of more columns are computed, too, BN at a time, each
// by a pass of its own. Grid: x over the parts of ceil(m / BM) blocks of rows, then over ceil(n / BN) of columns; y over
// the batch. Any strides, but that one of a's is 1 where A_VECTOR is not. Bytes of a in flight decide the speed:
// 16 loads of 256 threads are 64 KiB a multiprocessor, and a loaded one of an H200 needs about 30.

#ifndef BM
#define BM 64 // rows of out a block
#endif
#ifndef BN
#define BN 1 // columns a pass: 1, 2, 4 or 8
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef BK
#define BK 256 // of k, which is on its way to a block's registers: 64 KiB of a, or half of it
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
#include "join.cuh"

constexpr int SIZE = sizeof(A_TYPE), FULL = 16 / SIZE, VEC = A_VECTOR; // elements of 16 bytes; of an access
constexpr int CUT = (VEC == 1 ? 2 : 1) * (__CUDA_ARCH__ >= 1200 && SIZE == 2 ? 2 : 1); // where registers are short
constexpr int PIECE = ORDERED ? 512 / SIZE : BK / CUT;    // of k: what a tile or registers hold at once
constexpr int RUNS = BM * PIECE / (THREADS * VEC);        // accesses of a thread for a piece
constexpr int CHUNK = 16384 / (BN * sizeof(SUM));         // of k, for which b is in shared memory
constexpr int WARPS = THREADS / 32, ROWS = BM / WARPS;    // A_TURNED 0: rows of a warp
constexpr int ACROSS = BM / VEC, DOWN = THREADS / ACROSS; // A_TURNED 1: lanes along m, and along k
constexpr int SUMS = (A_TURNED ? VEC : ROWS) * BN;        // of a thread
constexpr int LOWEST = A_TURNED ? ACROSS : 1;             // lanes so far apart and more share rows
constexpr int LEFT = LOWEST > 16 ? SUMS : SUMS *LOWEST > 32 ? SUMS *LOWEST / 32 : 1; // of a lane when they have met
constexpr int SLOTS = A_TURNED ? THREADS / (ACROSS > 32 ? ACROSS : 32) : 1;          // sums of an element
constexpr int CHAINS = BM * BN > THREADS ? BM *BN / THREADS : 1;                     // ORDERED: elements of a thread
constexpr int MEMBERS = BM * BN / RUN > 32 ? BM *BN / RUN : 32;                      // threads that add up and store
constexpr int STAGED = CHUNK * BN / THREADS;                                         // elements of b a thread brings
constexpr int WORDS = VEC * SIZE > 4 ? VEC *SIZE / 4 : 1;                            // of an access
static_assert(CHUNK % PIECE == 0 && SLOTS * BM * BN <= 2 * CHUNK * BN, "the block is too small");
static_assert(2 * CHUNK * BN * (int)sizeof(SUM) >= JOIN_BYTES(RUN, MEMBERS), "what parts exchange has no room");

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
template <bool WHOLE> INLINE void load(unsigned (&words)[WORDS], const A_TYPE *from, int left) {
    if (VEC > 1 && (WHOLE || left >= VEC)) {
        load_once(words, from);
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
        for (int w = 0; w < (SIZE + 3) / 4; ++w)
            words[e * SIZE / 4 + w] |= (unsigned)(bits >> 32 * w) << e * SIZE % 4 * 8;
    }
}

// The words of an access to `to` in shared memory.
INLINE void store_words(A_TYPE *to, const unsigned (&words)[WORDS]) {
    if (VEC * SIZE >= 4)
        *(Vector<unsigned, WORDS> *)to = *(const Vector<unsigned, WORDS> *)words;
    else
        *(unsigned short *)to = (unsigned short)words[0];
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
    const A_TYPE *a; // its first row at k = 0
    int rows;        // that exist
    long long end;   // of its part of k
    long long a_row, a_col;
};

template <bool WHOLE> INLINE void fetch(unsigned (&words)[WORDS], const Block &block, long long p, int r) {
    const int i = row_of(r), q = step_of(r);
    const int rows = block.rows - i, steps = WHOLE ? 0 : (int)min(block.end - p, (long long)PIECE) - q;
    const bool any = WHOLE || (rows > 0 && steps > 0);
    const A_TYPE *corner = block.a + p * block.a_col;
    load<WHOLE>(words, corner + i * block.a_row + q * block.a_col, !any ? 0 : A_TURNED ? rows : steps);
}
INLINE bool whole(const Block &block, long long p) {
    return block.rows == BM && p + PIECE <= block.end;
}
INLINE void fetch(Piece &piece, const Block &block, long long p) {
    if (whole(block, p)) {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) fetch<true>(piece[r], block, p, r);
    } else {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) fetch<false>(piece[r], block, p, r);
    }
}

// Where b's element (q, j) of a chunk lies in shared memory: lanes along k then read 16 bytes each, side by side.
INLINE int place(int q, int j) {
    if (A_TURNED) return q * BN + j;
    const int lanes = 32 * 8; // lanes that take 8 steps each read them in halves
    return j * CHUNK + (VEC < 8 ? q : q / lanes * lanes + q / 4 % 2 * (lanes / 2) + q % lanes / 8 * 4 + q % 4);
}

// Of the chunk from p on a thread brings the elements (step_b(x), column_b(x)), or 0 beyond: first into registers.
INLINE int step_b(int x) {
    return x % (CHUNK / THREADS) * THREADS + threadIdx.x;
}
INLINE int column_b(int x) {
    return x / (CHUNK / THREADS);
}
INLINE void fetch_b(SUM (&staged)[STAGED], const Gemm &g, const B_TYPE *b, long long p, long long end) {
    b += p * g.b_row;
    const int steps = (int)min(max(end - p, 0ll), (long long)CHUNK);
#pragma unroll
    for (int x = 0; x < STAGED; ++x) {
        const bool exists = step_b(x) < steps && column_b(x) < g.n;
        staged[x] = exists ? (SUM)widen(b[step_b(x) * g.b_row + column_b(x) * g.b_col]) : SUM{};
    }
}

// Adds the products of the piece whose b begins at step `from` of the chunk. FETCH: each access, once done with, is replaced
// by that of the piece from p on, which is a whole one.
template <bool FETCH>
INLINE void multiply_piece(SUM (&acc)[SUMS], Piece &piece, const SUM *b, int from, const Block &block, long long p) {
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
        if (FETCH) fetch<true>(piece[r], block, p, r);
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

// The block's sums over its part of k, at shared[slot * BM * BN + j * BM + row] to be added up.
//
// Why two buffers of b need one meeting a chunk: it comes after all stores of that chunk. Who stores the chunk after
// the next to the same place has passed the meeting of the next, to which each thread comes after its last read of this
// one. The sums take the memory of both after one more meeting. They are read after another, and given to join's
// exchange, which begins with a meeting of its own.
INLINE void by_lanes(const Gemm &g, const Block &block, const B_TYPE *b, long long p, SUM *shared) {
    SUM acc[SUMS] = {}, staged[STAGED];
    Piece piece;
    int from = CHUNK, buffer = 1;
    if (p < block.end) {
        fetch(piece, block, p);
        fetch_b(staged, g, b, p, block.end);
    }
    for (; p < block.end; p += PIECE, from += PIECE) {
        if (from == CHUNK) {
            from = 0, buffer ^= 1;
#pragma unroll
            for (int x = 0; x < STAGED; ++x) shared[buffer * CHUNK * BN + place(step_b(x), column_b(x))] = staged[x];
            __syncthreads(); // all are done with the chunk before the last, whose place the next will take
            fetch_b(staged, g, b, p + CHUNK, block.end);
        }
        const SUM *chunk = shared + buffer * CHUNK * BN;
        if (whole(block, p + PIECE)) {
            multiply_piece<true>(acc, piece, chunk, from, block, p + PIECE);
        } else {
            multiply_piece<false>(acc, piece, chunk, from, block, 0);
            if (p + PIECE < block.end) fetch(piece, block, p + PIECE);
        }
    }
    __syncthreads();
    put_sums(acc, shared);
    __syncthreads();
}

// Sums of row threadIdx.x % BM and columns threadIdx.x / BM + c * (THREADS / BM), each by one chain, from a tile of a in
// shared memory. All meet after it is stored, and again after it is read.
INLINE void by_chains(SUM (&acc)[CHAINS], const Gemm &g, const Block &block, const B_TYPE *b, A_TYPE *tile) {
    constexpr int PITCH = PIECE + FULL; // rows lie 16 bytes apart modulo the banks
    const int i = threadIdx.x % BM;
    const B_TYPE *column[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) column[c] = b + min(threadIdx.x / BM + c * (THREADS / BM), (int)g.n - 1) * g.b_col;
    Piece piece;
    if (block.end > 0) fetch(piece, block, 0);
    for (long long p = 0; p < block.end; p += PIECE) {
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            A_TYPE *to = tile + (A_TURNED ? step_of(r) * BM + row_of(r) : row_of(r) * PITCH + step_of(r));
            store_words(to, piece[r]);
        }
        __syncthreads();
        if (p + PIECE < block.end) fetch(piece, block, p + PIECE);
        const int steps = (int)min((long long)PIECE, block.end - p);
#pragma unroll 16
        for (int q = 0; threadIdx.x < BM * BN && q < steps; ++q) {
            const SUM x = (SUM)widen(tile[A_TURNED ? q * BM + i : i * PITCH + q]);
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) acc[c] = multiply_add(x, (SUM)widen(column[c][(p + q) * g.b_row]), acc[c]);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_cuda_gemv(ARGUMENT Gemm g) {
    constexpr int NEEDED = ORDERED ? BM * (PIECE + FULL) * SIZE : 2 * CHUNK * BN * (int)sizeof(SUM);
    alignas(16) __shared__ SUM shared[NEEDED / sizeof(SUM)];

    follow_launch();
    const unsigned tile = blockIdx.x / g.parts, down = (unsigned)((g.m + BM - 1) / BM);
    const int part = blockIdx.x % g.parts;
    const long long top = (long long)(tile % down) * BM, left = (long long)(tile / down) * BN;
    Gemm own = g; // the columns of this block alone
    own.n = min((long long)BN, g.n - left);
    own.out += left * g.out_col;
    if (g.c) own.c += left * g.c_col;
    if (g.bias) own.bias += left * g.bias_col;
    const Share share = share_of<PIECE>(g, part);
    const long long first = (long long)share.first * PIECE;
    const Block block = {g.a + blockIdx.y * g.a_batch + top * g.a_row, (int)min((long long)BM, g.m - top),
                         min(g.k, first + (long long)share.steps * PIECE), VEC > 1 && A_TURNED ? 1 : g.a_row,
                         VEC > 1 && !A_TURNED ? 1 : g.a_col};
    const B_TYPE *b = g.b + blockIdx.y * g.b_batch + left * g.b_col;
    const Output<1> output(own, blockIdx.y);

    if (ORDERED) {
        SUM acc[CHAINS] = {};
        by_chains(acc, own, block, b, (A_TYPE *)shared);
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) {
            const SUM sum[1] = {acc[c]};
            const int j = threadIdx.x / BM + c * (THREADS / BM);
            if (j < BN) output.put(top + threadIdx.x % BM, j, sum);
        }
        return;
    }
    by_lanes(own, block, b, first, shared);
    if (threadIdx.x >= MEMBERS) return;
    const int mine = threadIdx.x * RUN % (BM * BN); // MEMBERS is a warp at least, which may be more than needed
    SUM sums[RUN] = {};
#pragma unroll
    for (int s = 0; s < SLOTS; ++s)
#pragma unroll
        for (int x = 0; x < RUN; ++x) sums[x] = add(sums[x], shared[s * BM * BN + mine + x]);
    const long long tiles = gridDim.x / g.parts;
    join<RUN, MEMBERS>(g, blockIdx.y * tiles + tile, part, threadIdx.x, sums, shared, [&](int, const SUM(&total)[RUN]) {
        if (threadIdx.x * RUN >= BM * BN) return;
#pragma unroll
        for (int x = 0; x < RUN; ++x) {
            const SUM one[1] = {total[x]};
            output.put(top + mine % BM + x, mine / BM, one);
        }
    });
}
