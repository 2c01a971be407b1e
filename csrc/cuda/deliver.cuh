// The end of a tile that wgmma has summed: from the fragments of a warp to neighbouring elements of out.
//
// A warp's sums are 16 rows of the tile, sums[4j + 2h + i] in lane l that of row l/4 + 8h and column 8j + 2(l%4) + i; or
// of row 2(l/4) + h, if PAIRED.
// They pass through shared memory, from where lanes read runs of 16 bytes of out: along its rows, or down its columns
// where out is contiguous so. No block waits for another and no warp for another, but where parts of k are joined.
#ifndef GEMM_CUDA_DELIVER
#define GEMM_CUDA_DELIVER

#include "gemm.cuh"
#include "ptx.cuh"

enum {
    STRETCH = 16 / sizeof(OUT_TYPE) < 4 ? 4 : 16 / sizeof(OUT_TYPE), // elements of out that a lane stores at once
    STAGED = 32,                                                     // columns of a warp's sums that pass at once
    PITCH = STAGED + 8,      // elements between rows there: no conflict of banks
    STAGING = 16 * PITCH * 4 // bytes a warp
};

INLINE unsigned halves(bfloat16, float low, float high) {
    return floats_to_bf16x2(low, high);
}
INLINE unsigned halves(float16, float low, float high) {
    return floats_to_f16x2(low, high);
}
template <class T> INLINE unsigned halves(T, float, float) {
    return 0;
}

// Columns FIRST .. FIRST + WIDE - 1 of the sums to rows `pitch` apart.
template <int FIRST, int WIDE, bool PAIRED, class T, int COUNT>
INLINE void put(T *to, int pitch, const T (&sums)[COUNT]) {
    const int lane = threadIdx.x % 32;
    to += lane / 4 * (PAIRED ? 2 : 1) * pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < WIDE / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = FIRST / 2 + 4 * j + 2 * half;
            *(Vector<T, 2> *)(to + (PAIRED ? 1 : 8) * half * pitch + 8 * j) = {{sums[i], sums[i + 1]}};
        }
}

// The block of STAGED columns that has number `block`: registers have no run-time index.
template <int WIDE, bool PAIRED, class T, int COUNT> INLINE void put_block(int block, T *to, const T (&sums)[COUNT]) {
    if constexpr (WIDE > STAGED) {
        if (block < WIDE / STAGED - 1) return put_block<WIDE - STAGED, PAIRED>(block, to, sums);
    }
    put<WIDE - STAGED, STAGED, PAIRED>(to, PITCH, sums);
}

// Four rows of a column, from `mine` on. Four lanes read below each other: each starts with another of its four, whose
// rows lie in other banks.
template <class FOUR, class T> INLINE FOUR column_of(const T *mine, int step) {
    const int first = threadIdx.x % 4;
    FOUR x, y, z;
#pragma unroll
    for (int i = 0; i < 4; ++i) x.at[i] = mine[(i + first) % 4 * step];
#pragma unroll
    for (int i = 0; i < 4; ++i) y.at[i] = first & 1 ? x.at[(i + 3) % 4] : x.at[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) z.at[i] = first & 2 ? y.at[(i + 2) % 4] : y.at[i];
    return z;
}

// STRETCH sums, `step` apart from `mine`, of all parts in their order: of the same place in every SHARING-th block.
// APART: the step may be another than 1.
template <int SHARING, bool APART, class T> INLINE void take(T (&sums)[STRETCH], const T *mine, int step, int parts) {
    enum { TOGETHER = 4 }; // parts whose loads are on their way at once
    union Four {
        float4 words;
        T at[4];
    };
    const unsigned pair = blockIdx.x % SHARING;
    if (parts == 1) {
#pragma unroll
        for (int x = 0; x < STRETCH; x += 4) {
            Four four;
            if (!APART || step == 1)
                four.words = *(const float4 *)(mine + x);
            else
                four = column_of<Four>(mine + x * step, step);
            for (int y = 0; y < 4; ++y) sums[x + y] = four.at[y];
        }
        return;
    }
    for (int first = 0; first < parts; first += TOGETHER) {
        T more[TOGETHER][STRETCH];
#pragma unroll
        for (int part = 0; part < TOGETHER; ++part) {
            const unsigned block = min(first + part, parts - 1) * SHARING + pair;
#pragma unroll
            for (int x = 0; x < STRETCH; x += 4) {
                Four four;
                if (!APART || step == 1)
                    four.words = remote_load((const float4 *)(mine + x), block);
                else
                    for (int y = 0; y < 4; ++y) four.at[y] = remote_load(mine + (x + y) * step, block);
                for (int y = 0; y < 4; ++y) more[part][x + y] = four.at[y];
            }
        }
#pragma unroll
        for (int part = 0; part < TOGETHER; ++part)
#pragma unroll
            for (int x = 0; x < STRETCH; ++x)
                if (first + part < parts) sums[x] = first + part ? add(sums[x], more[part][x]) : more[part][x];
    }
}

// The epilogue of the 16 rows and WIDE columns of sums at `from`, that of out being (top, left): if JOINED, of this
// block's share of the runs. `down`: g and so out are transposed, and runs go down the columns of sums. APART: as take has it.
template <int WIDE, int SHARING, bool JOINED, bool APART, class T, class ADJUST>
INLINE void finish(const Gemm &g, bool down, const T *from, int pitch, long long top, long long left, long long z,
                   ADJUST adjust) {
    const Output<STRETCH> output(g, z);
    const int lane = threadIdx.x % 32, runs = 16 * WIDE / STRETCH;
    const int parts = JOINED ? g.parts : 1, part = JOINED ? blockIdx.x / SHARING % parts : 0;
#pragma unroll 1
    for (int run = runs * part / parts + lane; run < runs * (part + 1) / parts; run += 32) {
        const int row = down ? run % (16 / STRETCH) * STRETCH : run / (WIDE / STRETCH);
        const int col = down ? run / (16 / STRETCH) : run % (WIDE / STRETCH) * STRETCH;
        SUM sums[STRETCH];
        T taken[STRETCH];
        take<SHARING, APART>(taken, from + row * pitch + col, down ? pitch : 1, parts);
#pragma unroll
        for (int x = 0; x < STRETCH; ++x)
            sums[x] = (SUM)adjust(taken[x], top + row + (down ? x : 0), left + col + (down ? 0 : x));
        if (down)
            output.put(left + col, top + row, sums);
        else
            output.put(top + row, left + col, sums);
    }
}

// 16-bit results without c: rounded in registers, then turned by stmatrix into rows, WIDE columns at a time.
template <int WIDE, bool PAIRED, class T, int COUNT>
INLINE void finish_halves(const Gemm &g, const Output<8> &output, const T (&sums)[COUNT], unsigned char *staging,
                          long long top, long long left) {
    enum { BLOCK = WIDE % 64 ? 32 : 64, CHUNKS = BLOCK / 8, ROWS = 32 / CHUNKS };
    const int lane = threadIdx.x % 32, mine = PAIRED ? lane % 8 * 2 + lane / 8 % 2 : lane % 16;
    // Row r of 16-byte chunks keeps chunk j in place j ^ swapped(r), so that 8 lanes meet 32 banks both ways.
    const auto place = [=](int row, int chunk) {
        const int swapped = BLOCK == 64 ? row % 8 : row / 2 % 4;
        return staging + (row * CHUNKS + (chunk ^ swapped)) * 16;
    };
#pragma unroll
    for (int first = 0; first < WIDE; first += BLOCK) {
        __syncwarp(); // the last block is read
#pragma unroll
        for (int j = 0; j < CHUNKS; j += 2) {
            unsigned four[4];
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const int i = first / 2 + 4 * j + 2 * x;
                four[x] = halves(OUT_TYPE{}, multiply(g.alpha, sums[i]), multiply(g.alpha, sums[i + 1]));
            }
            stmatrix_x4(shared_address(place(mine, j + lane / 16)), four);
        }
        __syncwarp();
#pragma unroll
        for (int pass = 0; pass < 16 / ROWS; ++pass) {
            const int row = pass * ROWS + lane / CHUNKS, chunk = lane % CHUNKS;
            const long long i = top + row, j = left + first + chunk * 8;
            if (i >= g.m || j >= g.n) continue;
            const Vector<OUT_TYPE, 8> run = *(const Vector<OUT_TYPE, 8> *)place(row, chunk);
            OUT_TYPE *to = output.out + i * g.out_row + j;
            if (j + 8 <= g.n)
                *(Vector<OUT_TYPE, 8> *)to = run;
            else
#pragma unroll
                for (int x = 0; x < 7; ++x)
                    if (j + x < g.n) to[x] = run.at[x];
        }
    }
}

struct AsTheyAre {
    template <class T> __device__ __forceinline__ T operator()(T sum, long long, long long) const {
        return sum;
    }
};

// Delivers the tile at (top, left) of product z, of which this warp holds 16 rows of WIDE columns. By all warps of
// GROUPS warpgroups at once. `staging`: STAGING bytes a warp; `ring`: shared memory for all sums, used with parts.
// Before the epilogue each sum becomes adjust(sum, i, j), also where these are beyond m and n.
template <int WIDE, int GROUPS, int SHARING, bool PAIRED = false, class T, int COUNT, class ADJUST = AsTheyAre>
INLINE void deliver(const Gemm &g, const T (&sums)[COUNT], unsigned char *staging, unsigned char *ring, Tile tile,
                    long long z, ADJUST adjust = ADJUST()) {
    const int warp = threadIdx.x / 32;
    const long long top = tile.top + 16 * warp, left = tile.left;
    staging += warp * STAGING;
    if constexpr (sizeof(OUT_TYPE) == 2 && !EPILOGUE) {
        const Output<8> output(g, z);
        if (!g.c && g.parts == 1 && output.vectors) {
            finish_halves<WIDE, PAIRED>(g, output, sums, staging, top, left);
            return;
        }
    }
    Gemm turned = g;
    const bool down = g.out_row == 1 && g.out_col != 1;
    if (down) {
        turned.m = g.n, turned.n = g.m;
        turned.out_row = g.out_col, turned.out_col = g.out_row;
        turned.c_row = g.c_col, turned.c_col = g.c_row;
        turned.bias_row = g.bias_col, turned.bias_col = g.bias_row;
    }
    if (g.parts > 1) {
        bar_sync(1, GROUPS * 128); // the other warpgroup may still multiply from the ring
        T *mine = (T *)ring + warp * 16 * (WIDE + 8);
        put<0, WIDE, PAIRED>(mine, WIDE + 8, sums);
        cluster_sync();
        // Each way has code of its own: a load from another block takes many instructions if both are in one. But with a
        // bias or activation, whose code is long, registers would not suffice for two.
        if (EPILOGUE || down)
            finish<WIDE, SHARING, true, true>(turned, down, mine, WIDE + 8, top, left, z, adjust);
        else
            finish<WIDE, SHARING, true, false>(turned, false, mine, WIDE + 8, top, left, z, adjust);
        fence_async(); // TMA writes next to what was read here
        cluster_sync();
        return;
    }
#pragma unroll 1
    for (int block = 0; block < WIDE / STAGED; ++block) { // one copy of the epilogue's code
        __syncwarp();
        put_block<WIDE, PAIRED>(block, (T *)staging, sums);
        __syncwarp();
        finish<STAGED, SHARING, false, true>(turned, down, (const T *)staging, PITCH, top, left + block * STAGED, z,
                                             adjust);
    }
}

#endif
