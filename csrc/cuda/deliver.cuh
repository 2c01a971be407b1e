// Stores a tile that wgmma has computed: moves the accumulators from a warp's fragments to adjacent elements of out.
//
// A warp holds 16 rows of the tile. In lane l, sums[4j + 2h + i] is the element of column 8j + 2(l%4) + i and of row
// l/4 + 8h, or of row 2(l/4) + h if PAIRED. The sums pass through shared memory, from which each lane reads the sums of
// a run (16 bytes of adjacent elements of out) and stores the run at once. If the runs are not aligned, the lane stores
// single elements. A run is part of a row of out, or part of a column if out_row is 1 and out_col is not. Each warp
// works independently, except with split-K: the blocks of a tile then exchange partial sums (exchange.cuh).
#ifndef GEMM_CUDA_DELIVER
#define GEMM_CUDA_DELIVER

#include "exchange.cuh"
#include "gemm.cuh"
#include "hopper.cuh"
#include "ptx.cuh"

// OUT_BOXES: boxes (16 rows by 128 bytes of out) that a warp may store by TMA at the same time; 0: no stores by TMA.
#ifndef OUT_BOXES
#define OUT_BOXES 0
#endif

enum {
    STRETCH = 16 / sizeof(OUT_TYPE) < 4 ? 4 : 16 / sizeof(OUT_TYPE), // elements of out that a lane stores at once
    STAGED = 32,                        // columns of a warp's sums that are in shared memory at a time
    PITCH = STAGED + 8,                 // elements from row to row in shared memory, chosen to avoid bank conflicts
    BOX_BYTES = 16 * 128,               // bytes of a box
    STAGING_AT = OUT_BOXES ? 1024 : 16, // alignment of the staging memory
    // Bytes of staging memory per warp. It must hold 16 rows of PITCH 4-byte sums (2560 bytes) or the warp's boxes.
    // With one box, the 2560 bytes are rounded up to the alignment.
    STAGING = OUT_BOXES == 0   ? 16 * PITCH * 4
              : OUT_BOXES == 1 ? 3072
                               : OUT_BOXES * BOX_BYTES
};

// Rounds two floats to the 16-bit type of the first argument. For other types, the result is not used.
INLINE unsigned halves(bfloat16, float low, float high) {
    return floats_to_bf16x2(low, high);
}
INLINE unsigned halves(float16, float low, float high) {
    return floats_to_f16x2(low, high);
}
template <class T> INLINE unsigned halves(T, float, float) {
    return 0;
}

// Stores columns FIRST .. FIRST + WIDE - 1 of the sums to shared memory at `to`, with rows `pitch` elements apart.
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

// Stores STAGED columns of the sums, starting at column block * STAGED, to shared memory at `to`. The recursion turns
// `block` into a constant, because registers cannot be indexed at run time.
template <int WIDE, bool PAIRED, class T, int COUNT> INLINE void put_block(int block, T *to, const T (&sums)[COUNT]) {
    if constexpr (WIDE > STAGED) {
        if (block < WIDE / STAGED - 1) return put_block<WIDE - STAGED, PAIRED>(block, to, sums);
    }
    put<WIDE - STAGED, STAGED, PAIRED>(to, PITCH, sums);
}

// Loads four rows of a column: mine[0], mine[step], mine[2 * step] and mine[3 * step]. Four adjacent lanes load from
// the same column. Lane x loads row x % 4 of its four rows first, so that the loads of the four lanes hit different
// banks. The two selection steps then restore the order of the rows.
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

// Loads STRETCH sums, `step` elements apart, starting at `mine`.
template <class T> INLINE void take(T (&sums)[STRETCH], const T *mine, int step) {
    union Four {
        float4 words;
        T at[4];
    };
#pragma unroll
    for (int x = 0; x < STRETCH; x += 4) {
        Four four;
        if (step == 1)
            four.words = *(const float4 *)(mine + x);
        else
            four = column_of<Four>(mine + x * step, step);
        for (int y = 0; y < 4; ++y) sums[x + y] = four.at[y];
    }
}

// Applies the epilogue to the sums at `from` (16 rows, the first `here` of WIDE columns) and stores the results. The
// first sum belongs to row `top` and column `left` of the original out. If `down`, g describes the transpose of that
// out, and a run follows a column of the sums instead of a row.
template <int WIDE, class T, class ADJUST>
INLINE void finish(const Gemm &g, bool down, const T *from, int here, long long top, long long left, long long z,
                   ADJUST adjust) {
    const Output<STRETCH> output(g, z);
    const int lane = threadIdx.x % 32;
    if (!output.vectors) { // adjacent lanes store adjacent elements, as in finish_halves
        const Output<1> single(g, z);
#pragma unroll 4
        for (int at = lane; at < 16 * WIDE; at += 32) {
            const int row = down ? at % 16 : at / WIDE, col = down ? at / 16 : at % WIDE;
            if (col >= here) continue;
            const SUM sum[1] = {(SUM)adjust(from[row * PITCH + col], top + row, left + col)};
            single.put(down ? left + col : top + row, down ? top + row : left + col, sum);
        }
        return;
    }
#pragma unroll 1
    for (int run = lane; run < 16 * WIDE / STRETCH; run += 32) {
        const int row = down ? run % (16 / STRETCH) * STRETCH : run / (WIDE / STRETCH);
        const int col = down ? run / (16 / STRETCH) : run % (WIDE / STRETCH) * STRETCH;
        if (col >= here) continue;
        SUM sums[STRETCH];
        T taken[STRETCH];
        take(taken, from + row * PITCH + col, down ? PITCH : 1);
#pragma unroll
        for (int x = 0; x < STRETCH; ++x)
            sums[x] = (SUM)adjust(taken[x], top + row + (down ? x : 0), left + col + (down ? 0 : x));
        if (down)
            output.put(left + col, top + row, sums);
        else
            output.put(top + row, left + col, sums);
    }
}

// Returns the address of chunk `chunk` (16 bytes) of row `row`, in a warp's 16 rows of BLOCK 16-bit numbers in shared
// memory. Chunk j of a row is stored at position j ^ swapped. With this swizzle, 8 lanes access all 32 banks, whether
// their chunks are adjacent along rows or along a column. If BLOCK is 64, this swizzle is TMA's 128-byte swizzle.
template <int BLOCK> INLINE unsigned char *chunk_at(unsigned char *rows, int row, int chunk) {
    const int swapped = BLOCK == 64 ? row % 8 : row / 2 % 4;
    return rows + (row * (BLOCK / 8) + (chunk ^ swapped)) * 16;
}

// Stores columns `first` to first + BLOCK - 1 of alpha * sums to shared memory at `rows`, as 16-bit numbers. The
// results are rounded in registers; stmatrix then stores the fragments as rows.
template <int BLOCK, bool PAIRED, class T, int COUNT>
INLINE void put_halves(const Gemm &g, const T (&sums)[COUNT], int first, unsigned char *rows) {
    const int lane = threadIdx.x % 32, mine = PAIRED ? lane % 8 * 2 + lane / 8 % 2 : lane % 16;
#pragma unroll
    for (int j = 0; j < BLOCK / 8; j += 2) {
        unsigned four[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const int i = first / 2 + 4 * j + 2 * x;
            four[x] = halves(OUT_TYPE{}, multiply(g.alpha, sums[i]), multiply(g.alpha, sums[i + 1]));
        }
        stmatrix_x4(shared_address(chunk_at<BLOCK>(rows, mine, j + lane / 16)), four);
    }
}

// Stores 16-bit results along the rows of out, for products without c. The lanes store WIDE columns, BLOCK at a time.
// If the rows are aligned, each lane stores 16 bytes at a time. Otherwise each lane stores two elements at a time, and
// adjacent lanes store adjacent pairs. (If each lane instead stored its own 16 bytes one element after the other, each
// store instruction would touch all sectors of the rows.)
template <int WIDE, bool PAIRED, class T, int COUNT>
INLINE void finish_halves(const Gemm &g, const Output<8> &output, const T (&sums)[COUNT], unsigned char *staging,
                          long long top, long long left) {
    enum { BLOCK = WIDE % 64 ? 32 : 64, CHUNKS = BLOCK / 8, ROWS = 32 / CHUNKS, PAIRS = BLOCK / 2 };
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < WIDE; first += BLOCK) {
        __syncwarp(); // all lanes have read the previous block
        put_halves<BLOCK, PAIRED>(g, sums, first, staging);
        __syncwarp();
        if (!output.vectors) {
            const long long j = left + first + lane % PAIRS * 2;
#pragma unroll 4
            for (int row = lane / PAIRS; row < 16; row += 32 / PAIRS) {
                if (top + row >= g.m || j >= g.n) continue;
                const Vector<OUT_TYPE, 2> pair =
                    *(const Vector<OUT_TYPE, 2> *)(chunk_at<BLOCK>(staging, row, lane % PAIRS / 4) + lane % 4 * 4);
                OUT_TYPE *to = output.out + (top + row) * g.out_row + j;
                if (j + 2 <= g.n && (unsigned long long)to % 4 == 0) {
                    *(Vector<OUT_TYPE, 2> *)to = pair;
                } else {
                    to[0] = pair.at[0];
                    if (j + 2 <= g.n) to[1] = pair.at[1];
                }
            }
            continue;
        }
#pragma unroll
        for (int pass = 0; pass < 16 / ROWS; ++pass) {
            const int row = pass * ROWS + lane / CHUNKS, chunk = lane % CHUNKS;
            const long long i = top + row, j = left + first + chunk * 8;
            if (i >= g.m || j >= g.n) continue;
            const Vector<OUT_TYPE, 8> run = *(const Vector<OUT_TYPE, 8> *)chunk_at<BLOCK>(staging, row, chunk);
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

// Stores 32 columns of alpha * sums, from `first` on, to shared memory: 4-byte numbers in TMA's 128-byte swizzle.
template <bool PAIRED, class T, int COUNT>
INLINE void put_words(const Gemm &g, const T (&sums)[COUNT], int first, unsigned char *rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = first / 2 + 4 * j + 2 * half, row = PAIRED ? lane / 4 * 2 + half : lane / 4 + 8 * half;
            unsigned char *const to = chunk_at<64>(rows, row, 2 * j + lane % 4 / 2) + lane % 2 * 8;
            *(Vector<SUM, 2> *)to = {{multiply(g.alpha, (SUM)sums[i]), multiply(g.alpha, (SUM)sums[i + 1])}};
        }
}

// Stores results by TMA, for products without c. The warp continues while its boxes are in flight. When a box was
// completely beyond n, TMA on an H200 wrote past the end of the row, up to the next multiple of 16 bytes. Therefore
// such boxes are not sent, and rows of out must be multiples of 16 bytes (`out_map` in operand_layout.py).
//
// The memory of a box belongs to one warp. Before the warp writes a new box to this memory, the lane that sent the
// previous box waits until TMA has read it, and the warp synchronizes. Before the new box is sent, each lane executes a
// proxy fence, and the warp synchronizes again.
template <int WIDE, bool PAIRED, class T, int COUNT>
INLINE void send_boxes(const Gemm &g, const T (&sums)[COUNT], unsigned char *staging, const TensorMap *out_map,
                       unsigned top, unsigned left, int z) {
    enum { COLUMNS = 128 / sizeof(OUT_TYPE), COUNTED = WIDE / COLUMNS };
    static_assert(WIDE % COLUMNS == 0, "boxes are whole");
    static_assert(OUT_BOXES <= 1 || COUNTED % OUT_BOXES == 0, "a tile begins with the box that was sent first");
#pragma unroll
    for (int box = 0; box < COUNTED; ++box) {
        unsigned char *const rows = staging + (OUT_BOXES > 1 ? box % OUT_BOXES * BOX_BYTES : 0);
        if (threadIdx.x % 32 == 0) bulk_wait_read<(OUT_BOXES > 1 ? OUT_BOXES - 1 : 0)>();
        __syncwarp();
        if (top < g.m && left + box * COLUMNS < g.n) {
            if constexpr (sizeof(OUT_TYPE) == 2)
                put_halves<64, PAIRED>(g, sums, box * COLUMNS, rows);
            else
                put_words<PAIRED>(g, sums, box * COLUMNS, rows);
            fence_async();
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                tma_store_3d(out_map, shared_address(rows), (int)left + box * COLUMNS, (int)top, z);
        }
        // Every box is one group, so that bulk_wait_read can count boxes. A box that was not sent is an empty group.
        if (threadIdx.x % 32 == 0) bulk_commit();
    }
}

// The default of `adjust` in deliver: does not change the sums.
struct AsTheyAre {
    template <class T> __device__ __forceinline__ T operator()(T sum, long long, long long) const {
        return sum;
    }
};

// Stores tile `tile` of product z. In `sums`, each warp has 16 rows of WIDE columns. All warps of GROUPS warpgroups
// call this function together. `staging`: STAGING bytes per warp. `ring`, `joined`: shared memory and barrier for the
// split-K exchange. `out_map`: tensor map of out, used only if g.mapped is 1. Before the epilogue, each sum becomes
// adjust(sum, i, j), where i and j are the row and the column of the sum in out. Sums beyond
// the edges of out have i >= m or j >= n.
template <int WIDE, int GROUPS, int SHARING, bool PAIRED = false, class T, int COUNT, class ADJUST = AsTheyAre>
INLINE void deliver(const Gemm &g, const T (&sums)[COUNT], unsigned char *staging, unsigned char *ring, unsigned joined,
                    Tile tile, long long z, const TensorMap *out_map, ADJUST adjust = ADJUST()) {
    enum { MEMBERS = GROUPS * 128, RUNS = COUNT / 4 };
    static_assert(WIDE % STAGED == 0, "tiles are whole");
    const int warp = threadIdx.x / 32;
    const unsigned top = (unsigned)tile.top + 16 * warp; // tensor maps have 32-bit coordinates
    unsigned left = (unsigned)tile.left;
    staging += warp * STAGING;
    if constexpr (OUT_BOXES > 0 && !EPILOGUE) {
        if (g.mapped && g.parts == 1) {
            send_boxes<WIDE, PAIRED>(g, sums, staging, out_map, top, left, (int)z);
            return;
        }
    }
    if constexpr (sizeof(OUT_TYPE) == 2 && !EPILOGUE) {
        const Output<8> output(g, z);
        if (!g.c && g.parts == 1 && g.out_col == 1) {
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
    int here = WIDE; // number of columns that this block stores, from `left` on
    // The 4 sums that a lane holds for 8 adjacent columns: 2 columns in each of 2 rows. See the top of this file.
    union Run {
        float4 words;
        T at[4];
    };
    typedef Exchange<RUNS, MEMBERS> Parts;
    if (g.parts > 1) {
        const Parts exchange(ring, joined, g.parts, blockIdx.x / SHARING % g.parts);
        // The parity of the barrier's current phase. This phase cannot end before the cluster synchronizes in `pass`.
        const unsigned parity = barrier_passed(joined, 0);
        exchange.pass(threadIdx.x, blockIdx.x % SHARING, SHARING, parity, [&](int i) {
            Run run;
#pragma unroll
            for (int x = 0; x < 4; ++x) run.at[x] = sums[4 * i + x];
            return run.words;
        });
        left += 8 * exchange.first(), here = 8 * exchange.count();
    }
#pragma unroll 1
    for (int at = 0; at < here; at += STAGED) { // not unrolled: one copy of the epilogue's code
        __syncwarp();
        if (g.parts > 1) {
            const Parts exchange(ring, joined, g.parts, blockIdx.x / SHARING % g.parts);
            T added[STAGED / 2] = {};
#pragma unroll
            for (int i = 0; i < STAGED / 8; ++i) {
                if (at + 8 * i >= here) break;
#pragma unroll 1
                for (int part = 0; part < g.parts; ++part) {
                    Run run;
                    run.words = exchange.from(part, at / 8 + i, threadIdx.x);
#pragma unroll
                    for (int x = 0; x < 4; ++x) added[4 * i + x] = part ? add(added[4 * i + x], run.at[x]) : run.at[x];
                }
            }
            put<0, STAGED, PAIRED>((T *)staging, PITCH, added);
        } else {
            put_block<WIDE, PAIRED>(at / STAGED, (T *)staging, sums);
        }
        __syncwarp();
        finish<STAGED>(turned, down, (const T *)staging, here - at, top, left + at, z, adjust);
    }
    if (g.parts > 1) return_ring<SHARING>();
}

#endif
