// gemm_cuda_pack: copies an operand into a row-major layout (adjacent columns are adjacent in memory), for kernels that
// cannot read its original layout.
//
//     to[z, i, j] = from[z, i, j]     i < rows, j < cols;      0 for cols <= j < to_row, so that a kernel may read each
//                                                              row to its end in loads of 16 bytes
//
// A copy that is contiguous along k has m (b: n) rows and k columns. A copy that is contiguous along m (b: n) has k
// rows and m (n) columns. The kernel only moves bits; ELEMENT_BYTES describes the type. With WIDEN, the kernel also
// converts fp8 to float16, which is exact. A block copies tiles of EDGE x EDGE elements in steps of 16 bytes:
//
//     |from_col| <= |from_row|                chunk by chunk, without shared memory
//     else (mostly from_row = 1):
//             i                      j
//         +-------+              +-------+    A chunk of 16 bytes along i is stored unchanged in a row of `tile`. Each
//       j |=======|     ->     i |=======|    row of `tile` has one j. A thread then reads CHUNK units of UNIT bytes
//         |=======|              |=======|    from a column of `tile`, and transposes them in registers into chunks
//         +-------+              +-------+    along j. The units that a warp reads, 8 along i by 4 chunks along j, are
//           tile                    to        in different banks, because the chunks of each row of `tile` are permuted
//                                             by an XOR: see `place`.
//
// Grid: x counts ceil(rows / EDGE) * ceil(to_row / EDGE) tiles, row by row. y counts the batch; if y is smaller than
// the batch, blocks step through it by gridDim.y. 256 threads. `to`, to_row and to_batch must be multiples of 16 bytes.

#ifndef ELEMENT_BYTES
#define ELEMENT_BYTES 4 // size of an element of the copy: 1, 2, 4 or 8
#endif
// WIDEN: undefined, or the operand's type (e4m3 or e5m2) if the kernel converts it to float16. ELEMENT_BYTES is then 2.

#include "gemm.cuh"
#include "ptx.cuh"

#define THREADS 256
// Blocks per multiprocessor. Older GPUs need more registers for addresses.
#define RESIDENT (__CUDA_ARCH__ < 700 ? 2 : 4)
#define CHUNK (16 / ELEMENT_BYTES)                                     // elements moved at a time
#define EDGE (ELEMENT_BYTES == 1 ? 128 : ELEMENT_BYTES == 8 ? 32 : 64) // edge of a tile: rows of 128 or 256 bytes
#define UNIT (ELEMENT_BYTES < 4 ? 4 : ELEMENT_BYTES)                   // bytes per read from a column of the tile
#define ACROSS (UNIT / ELEMENT_BYTES) // elements per unit; each of them belongs to a different row of `to`

struct Pack {
    const void *from;
    void *to;
    long long rows, cols, batch;
    long long from_row, from_col, from_batch; // strides in elements; they may be negative
    long long to_row, to_batch;               // to_row >= cols
};

template <int SIZE> struct Bits {};
template <> struct Bits<1> {
    typedef unsigned char type;
};
template <> struct Bits<2> {
    typedef unsigned short type;
};
template <> struct Bits<4> {
    typedef unsigned type;
};
template <> struct Bits<8> {
    typedef unsigned long long type;
};
typedef Bits<ELEMENT_BYTES>::type Element;
typedef Bits<UNIT>::type Unit;

#ifdef WIDEN
typedef WIDEN Source;
INLINE Element moved(Source x) {
    return float_to_f16(widen(x));
}
#else
typedef Element Source;
INLINE Element moved(Source x) {
    return x;
}
#endif

struct alignas(16) Chunk {
    Unit units[16 / UNIT];

    __device__ __forceinline__ void set(int e, Unit element) { // element e must still be 0
        units[e / ACROSS] |= element << e % ACROSS * ELEMENT_BYTES * 8;
    }
};

INLINE bool aligned(const Source *from) {
    return (unsigned long long)from % (CHUNK * sizeof(Source)) == 0;
}

// Loads CHUNK elements that are `step` apart, starting at `from`. `left` of them exist; the others become 0. WHOLE:
// the elements are adjacent and aligned, and all of them exist.
template <bool WHOLE> INLINE Chunk fetch(const Source *from, long long step, long long left) {
    Chunk chunk = {};
    if (WHOLE || (step == 1 && left >= CHUNK && aligned(from))) {
#ifdef WIDEN
        const Vector<Source, CHUNK> sources = *(const Vector<Source, CHUNK> *)from;
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) chunk.set(e, moved(sources.at[e]));
#else
        chunk = *(const Chunk *)from;
#endif
    } else {
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) chunk.set(e, e < left ? moved(from[e * step]) : 0);
    }
    return chunk;
}

// Returns the position, in chunks, of chunk `along` of row j of the tile. Eight threads read 8 units along i, which are
// in 8 * UNIT / 16 = UNIT / 2 chunks. Each time j increases by CHUNK, the XOR moves these chunks by UNIT / 2 positions,
// to other banks.
INLINE int place(int j, int along) {
    return j * (EDGE / CHUNK) + (along ^ (j / CHUNK * (UNIT / 2) & 7));
}

// The first element of a tile, and the rows and columns that exist from there on.
struct Corner {
    const Source *from;
    Element *to;
    long long rows, cols, width; // rows left; columns left in `from`; columns left in `to`
};

template <bool WHOLE> INLINE void copy_tile(const Pack &p, const Corner &at) {
#pragma unroll(WHOLE ? 4 : 1)
    for (int first = 0; first < EDGE * EDGE / CHUNK; first += THREADS) {
        const int x = first + threadIdx.x, i = x / (EDGE / CHUNK), j = x % (EDGE / CHUNK) * CHUNK;
        if (!WHOLE && (i >= at.rows || j >= at.width)) continue;
        *(Chunk *)(at.to + i * p.to_row + j) =
            fetch<WHOLE>(at.from + i * p.from_row + j * p.from_col, p.from_col, at.cols - j);
    }
}

template <bool WHOLE> INLINE void fetch_tile(Chunk *tile, const Pack &p, const Corner &at) {
#pragma unroll(WHOLE ? 4 : 1)
    for (int first = 0; first < EDGE * EDGE / CHUNK; first += THREADS) {
        const int x = first + threadIdx.x, j = x / (EDGE / CHUNK), along = x % (EDGE / CHUNK), i = along * CHUNK;
        tile[place(j, along)] =
            fetch<WHOLE>(at.from + i * p.from_row + j * p.from_col, p.from_row, j < at.cols ? at.rows - i : 0);
    }
}

INLINE void store_turned(const Chunk *tile, const Pack &p, const Corner &at) {
#pragma unroll
    for (int first = 0; first < EDGE / ACROSS * (EDGE / CHUNK); first += THREADS) {
        // A warp reads 8 units along i by 4 chunks along j. Consecutive warps continue along i, and then along j.
        const int x = first + threadIdx.x, i = (x % 8 + x / 32 * 8) % (EDGE / ACROSS) * ACROSS;
        const int j = (x / 8 % 4 + x / 32 * 8 / (EDGE / ACROSS) * 4) * CHUNK;
        Unit down[CHUNK];
#pragma unroll
        for (int s = 0; s < CHUNK; ++s) down[s] = tile[place(j + s, i / CHUNK)].units[i % CHUNK / ACROSS];
#pragma unroll
        for (int r = 0; r < ACROSS; ++r) {
            Chunk chunk = {};
#pragma unroll
            for (int s = 0; s < CHUNK; ++s) chunk.set(s, (Element)(down[s] >> r * ELEMENT_BYTES * 8));
            if (i + r < at.rows && j < at.width) ((Chunk *)at.to)[((i + r) * p.to_row + j) / CHUNK] = chunk;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gemm_cuda_pack(ARGUMENT Pack p) {
    __shared__ Chunk tile[EDGE * EDGE / CHUNK];

    follow_launch();
    const unsigned across = (unsigned)((p.to_row + EDGE - 1) / EDGE);
    const long long top = (long long)(blockIdx.x / across) * EDGE, left = (long long)(blockIdx.x % across) * EDGE;

    for (long long z = blockIdx.y; z < p.batch; z += gridDim.y) {
        const Corner at = {(const Source *)p.from + z * p.from_batch + top * p.from_row + left * p.from_col,
                           (Element *)p.to + z * p.to_batch + top * p.to_row + left, p.rows - top, p.cols - left,
                           p.to_row - left};
        const bool whole = at.rows >= EDGE && at.cols >= EDGE;

        if (llabs(p.from_col) <= llabs(p.from_row)) {
            if (whole && p.from_col == 1 && p.from_row % CHUNK == 0 && aligned(at.from))
                copy_tile<true>(p, at);
            else
                copy_tile<false>(p, at);
        } else {
            if (whole && p.from_row == 1 && p.from_col % CHUNK == 0 && aligned(at.from))
                fetch_tile<true>(tile, p, at);
            else
                fetch_tile<false>(tile, p, at);
            __syncthreads();
            store_turned(tile, p, at);
            __syncthreads();
        }
    }
}
