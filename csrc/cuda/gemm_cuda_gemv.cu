// gemm_cuda_gemv: out = alpha * a * b + beta * c for few columns of b. Reading a, once, determines the time.
//
//                       n <= BN
//                      +--+         A block computes BM rows. Its THREADS threads have BK steps of k of a in flight to
//                    k |b |         registers, by loads of 16 bytes (single elements if a is not aligned). As soon as a
//          k           +--+         thread has multiplied the data of a load, it starts the next load to the same
//      +-------+       +--+         registers. b goes through shared memory, CHUNK steps of k at a time.
//    m | a     | BM    |  |
//      +-------+       +--+         a contiguous along k (A_TURNED 0)   a contiguous along m (A_TURNED 1)
//                                   a warp has ROWS rows;               ACROSS lanes cover BM rows at one k;
//                                   its lanes run along k               different groups of lanes have different k
//
// Several lanes or warps may have sums of the same output. These are added in a fixed order. If k is split, join.cuh
// adds the parts. With ORDERED 1, one thread sums each output in ascending k, from a copy of a in shared memory.
//
// A product with few rows is launched as the transposed product out' = b' a'. The kernel also accepts more than BN
// columns: it computes BN columns at a time, and each group of columns reads a again. Strides may be anything, except
// that a's stride along k (with A_TURNED: along m) must be 1 if A_VECTOR is not 1. The number of bytes of a in flight
// determines the speed: a busy multiprocessor of an H200 needs 30 KiB; 16 loads by each of 256 threads are 64 KiB.
//
// Grid: x = ceil(n / BN) * ceil(m / BM) * parts, for groups of columns, blocks of rows and parts of k. The part changes
// fastest, then the block of rows. y = the batch.

#ifndef BM
#define BM 64 // rows of out per block
#endif
#ifndef BN
#define BN 1 // columns per pass: 1, 2, 4 or 8
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef BK
#define BK 256 // elements of k in flight to a block's registers: BM * BK elements of a are 64 KiB, or half of that
#endif
#ifndef A_TURNED
#define A_TURNED 0 // 1: a is contiguous along m, not k
#endif
#ifndef A_VECTOR
#define A_VECTOR 1 // elements of a per load: as many as 16 bytes hold, or 1
#endif
#ifndef ORDERED
#define ORDERED 0 // 1: each element is one chain of fma along k
#endif

#include "gemm.cuh"
#include "ptx.cuh"
#include "join.cuh"

constexpr int SIZE = sizeof(A_TYPE), FULL = 16 / SIZE, VEC = A_VECTOR; // FULL: elements in 16 bytes; VEC: in a load
// BK is divided by CUT. CUT is greater than 1 where a piece of BK steps would need too many registers.
constexpr int CUT = (VEC == 1 ? 2 : 1) * (__CUDA_ARCH__ >= 1200 && SIZE == 2 ? 2 : 1);
constexpr int PIECE = ORDERED ? 512 / SIZE : BK / CUT;    // elements of k in a piece, the part of a in registers
constexpr int RUNS = BM * PIECE / (THREADS * VEC);        // loads per thread for a piece
constexpr int CHUNK = 16384 / (BN * sizeof(SUM));         // elements of k of b in shared memory at a time
constexpr int WARPS = THREADS / 32, ROWS = BM / WARPS;    // A_TURNED 0: rows per warp
constexpr int ACROSS = BM / VEC, DOWN = THREADS / ACROSS; // A_TURNED 1: lanes along m, and along k
constexpr int SUMS = (A_TURNED ? VEC : ROWS) * BN;        // sums per thread
// Lanes have the same rows if their numbers differ by a multiple of LOWEST.
constexpr int LOWEST = A_TURNED ? ACROSS : 1;
// Sums per lane after the reduction in the warp.
constexpr int LEFT = LOWEST > 16 ? SUMS : SUMS *LOWEST > 32 ? SUMS *LOWEST / 32 : 1;
// Number of partial sums in shared memory for each element of out.
constexpr int SLOTS = A_TURNED ? THREADS / (ACROSS > 32 ? ACROSS : 32) : 1;
constexpr int CHAINS = BM * BN > THREADS ? BM *BN / THREADS : 1; // ORDERED: elements per thread
constexpr int MEMBERS = BM * BN / RUN > 32 ? BM *BN / RUN : 32;  // threads that add partial sums and store results
constexpr int STAGED = CHUNK * BN / THREADS;                     // elements of b that a thread loads per chunk
constexpr int WORDS = VEC * SIZE > 4 ? VEC *SIZE / 4 : 1;        // 32-bit words per load
static_assert(CHUNK % PIECE == 0 && SLOTS * BM * BN <= 2 * CHUNK * BN, "the block is too small");
static_assert(2 * CHUNK * BN * (int)sizeof(SUM) >= JOIN_BYTES(RUN, MEMBERS), "what parts exchange has no room");

typedef unsigned Piece[RUNS][WORDS];

// Returns element e of a load, widened to float or double.
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

// Loads VEC elements starting at `from`. The first `left` of them exist; the others become 0. WHOLE: all of them exist.
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

// Stores the words of a load to shared memory at `to`.
INLINE void store_words(A_TYPE *to, const unsigned (&words)[WORDS]) {
    if (VEC * SIZE >= 4)
        *(Vector<unsigned, WORDS> *)to = *(const Vector<unsigned, WORDS> *)words;
    else
        *(unsigned short *)to = (unsigned short)words[0];
}

// row_of returns the first row (in the block) of load r of a piece. step_of returns the load's first step along k.
INLINE int row_of(int r) {
    const int t = threadIdx.x;
    return A_TURNED ? t % ACROSS * VEC : t / 32 * ROWS + r % ROWS;
}
INLINE int step_of(int r) {
    const int t = threadIdx.x;
    return A_TURNED ? r * DOWN + t / ACROSS : (r / ROWS * 32 + t % 32) * VEC;
}

struct Block {
    const A_TYPE *a; // address of the block's first row at k = 0
    int rows;        // number of rows that exist
    long long end;   // end of the block's part of k
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

// Returns the position in shared memory of element (q, j) of a chunk of b. With this order, each of the lanes along k
// reads 16 bytes, and neighboring lanes read adjacent 16 bytes.
INLINE int place(int q, int j) {
    if (A_TURNED) return q * BN + j;
    const int lanes = 32 * 8; // steps of a warp, 8 per lane: the first 4 of all lanes come first, then the last 4
    return j * CHUNK + (VEC < 8 ? q : q / lanes * lanes + q / 4 % 2 * (lanes / 2) + q % lanes / 8 * 4 + q % 4);
}

// fetch_b loads a thread's elements of the chunk of b that starts at step p into registers. Element x is the one at
// (step_b(x), column_b(x)) of the chunk. Elements outside the matrix become 0.
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

// Multiplies the piece of a by b and adds the products to acc. `b` is a chunk of b; the piece starts at step `from` of
// the chunk. FETCH: as soon as the data of a load has been multiplied, the corresponding load of the next piece starts
// to the same registers. The next piece begins at step p of k and must be completely inside the matrix.
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

// Adds the sums of lanes that have the same rows. In each step, two lanes exchange half of their COUNT sums, so each
// lane keeps half as many. At the end, `base` is the number of the lane's first remaining sum. If several lanes have
// the same sum, `mine` stays true in only one of them.
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

// Adds the sums of a warp's lanes and stores the results to slots[slot * BM * BN + j * BM + row].
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

// Stores the block's sums over its part of k to shared[slot * BM * BN + j * BM + row]. The caller adds the slots.
//
// Why one barrier per chunk is enough for two buffers of b: the barrier comes after all stores of its chunk. A thread
// stores chunk c + 2 to the buffer of chunk c only after the barrier of chunk c + 1, and each thread reaches that
// barrier after its last read of chunk c. One more barrier comes before the sums are stored over both buffers, and
// another one before they are read. The exchange in `join`, which reuses the memory, starts with a barrier of its own.
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
            __syncthreads(); // all threads have read the previous chunk, whose buffer the next chunk will use
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

// For ORDERED: computes the sums of row threadIdx.x % BM and columns threadIdx.x / BM + c * (THREADS / BM). Each sum is
// one chain, from a tile of a in shared memory. All threads synchronize after the tile is stored, and after it is read.
INLINE void by_chains(SUM (&acc)[CHAINS], const Gemm &g, const Block &block, const B_TYPE *b, A_TYPE *tile) {
    constexpr int PITCH = PIECE + FULL; // shifts each row by 16 bytes, which avoids bank conflicts
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
    Gemm own = g; // the product restricted to the columns of this block
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
    const int mine = threadIdx.x * RUN % (BM * BN); // MEMBERS is at least a warp, which may be more threads than needed
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
