// gemm_cuda_pack: a copy of an operand that is contiguous along its columns, for kernels that cannot read it as it lies.
//
//     to[z, i, j] = from[z, i, j]     i < rows, j < cols;      0 for cols <= j < to_row, so that rows may be read by
//                                                              16 bytes to their end
//
// k-contiguous copies have m (b: n) rows and k columns; m-contiguous ones k rows and m columns. Only bits are moved:
// ELEMENT_BYTES is all that a type is here. Or fp8 becomes float16 on the way, exactly (WIDEN). A block moves tiles of EDGE x
// EDGE elements in steps of 16 bytes:
//
//     from contiguous along its columns       chunk by chunk, without shared memory
//     else, so mostly along its rows:
//             i                      j
//         +-------+              +-------+    Chunks of 16 bytes along i are put as they come into a row of `tile`,
//       j |=======|     ->     i |=======|    one row a column j. A thread then reads words of it downwards, CHUNK
//         |=======|              |=======|    of them, and turns them in registers into chunks along j.
//         +-------+              +-------+
//           tile                    to        A warp's words, 8 along i by 4 chunks along j, lie in 32 banks since the
//                                             chunks of tile's rows are swapped by an exclusive or: see `place`.
//
// Grid: x over ceil(rows / EDGE) * ceil(to_row / EDGE) tiles, along a row of tiles first; y over the batch, or less of
// it: blocks walk on by gridDim.y. 256 threads. `to`, to_row and to_batch must be multiples of 16 bytes.

#ifndef ELEMENT_BYTES
#define ELEMENT_BYTES 4 // of an element of the copy: 1, 2, 4 or 8
#endif
// WIDEN: e4m3 or e5m2, of which float16 is made; ELEMENT_BYTES is 2 then

#include "gemm.cuh"
#include "ptx.cuh"

#define THREADS 256
#define RESIDENT (__CUDA_ARCH__ < 700 ? 2 : 4) // blocks of a multiprocessor; older chips address by more registers
#define CHUNK (16 / ELEMENT_BYTES)             // elements moved at once
#define EDGE (ELEMENT_BYTES == 1 ? 128 : ELEMENT_BYTES == 8 ? 32 : 64) // of a tile: rows of 128 or 256 bytes
#define UNIT (ELEMENT_BYTES < 4 ? 4 : ELEMENT_BYTES)                   // bytes read at once from a tile's column
#define ACROSS (UNIT / ELEMENT_BYTES) // elements of a unit, each of its own row of `to`

struct Pack {
    const void *from;
    void *to;
    long long rows, cols, batch;
    long long from_row, from_col, from_batch; // strides in elements, of any sign
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

    __device__ __forceinline__ void set(int e, Unit element) { // of a chunk that was 0 there
        units[e / ACROSS] |= element << e % ACROSS * ELEMENT_BYTES * 8;
    }
};

INLINE bool aligned(const Source *from) {
    return (unsigned long long)from % (CHUNK * sizeof(Source)) == 0;
}

// CHUNK elements from `from` on, `step` apart, of which `left` exist; the others are 0. WHOLE: they lie side by side,
// aligned, and all exist.
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

// Where chunk `along` of the tile's row j lies, in chunks. Threads that read 8 units along i span 8 * UNIT / 16 chunks;
// for each next chunk of j they find them as many chunks further on, in other banks.
INLINE int place(int j, int along) {
    return j * (EDGE / CHUNK) + (along ^ (j / CHUNK * (UNIT / 2) & 7));
}

// A tile's corner and what exists of it from there on.
struct Corner {
    const Source *from;
    Element *to;
    long long rows, cols, width; // cols of `from`, width of `to`
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
        // 8 units along i by 4 chunks along j a warp; then the tile's other rows, then its other columns
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
