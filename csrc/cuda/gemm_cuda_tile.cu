// gemm_cuda_tile: out = alpha * a * b + beta * c, one output a thread, tiles of a and b in shared memory.
//
//                        n
//                  +------+----+---     A block owns BM x BN outputs, a thread one of them. Along k the block steps
//                k | b    |BKxBN        over BK: its threads fetch one tile of a and one of b, meet at a barrier,
//                  |      |    |        multiply from shared memory, and meet again before the next fetch.
//          k       +------+----+---
//      +-------+   +------+----+---     threadIdx.x runs along n: a warp (32 threads of one row) reads one word of
//    m | a     |   |      |    |        the a tile, broadcast, and 32 neighbouring words of the b tile, without a
//      +-------+   +------+----+---     bank conflict, and stores 32 neighbouring outputs.
//      | BM x BK   |      |BMxBN
//
// Source: a 32x32 tile for the Jetson Nano (Maxwell, sm_53), row-major fp32. As printed it is wrong for a k that is
// no multiple of 32: the guards skip the fetch but not the product, so that the tail is multiplied with what the step
// before left in shared memory. Here the product stops at k. New are the strides, the batch, alpha and beta; a tile
// is fetched along whichever of its axes is contiguous, and its rows are one word longer than the tile so that
// writing it by columns (column-major operands) is as free of bank conflicts as by rows.
//
// ORDERED: acc = fma(a[i,p], b[p,j], acc) for p = 0 .. k-1 from +0, then alpha * acc, then fma(beta, c, .), each
// rounded on its own and no denormal flushed. The intrinsics say so: no compiler flag can contract or split them.
//
// Grid: x over the tiles of one product, n fastest (x may count 2^31 - 1 blocks, y and z only 65535); y over the
// batch. Block: (BN, BM). Strides count elements and may be negative or zero. c is null exactly when beta is 0, so
// that a C full of NaN is never read; it may be out itself. With k = 0 nothing is read from a or b: they may be null.

#ifndef REAL
#define REAL float // or double
#endif
#ifndef BM
#define BM 32 // rows of C a block
#endif
#ifndef BN
#define BN 32 // columns of C a block; BM * BN threads
#endif
#ifndef BK
#define BK 32 // steps along k between two barriers
#endif

static __device__ __forceinline__ REAL fma_rn(REAL x, REAL y, REAL z) {
    return sizeof(REAL) == sizeof(float) ? (REAL)__fmaf_rn(x, y, z) : (REAL)__fma_rn(x, y, z);
}

static __device__ __forceinline__ REAL mul_rn(REAL x, REAL y) {
    return sizeof(REAL) == sizeof(float) ? (REAL)__fmul_rn(x, y) : (REAL)__dmul_rn(x, y);
}

static __device__ __forceinline__ long long magnitude(long long stride) {
    return stride < 0 ? -stride : stride;
}

// How much of a tile of `size` exists when `left` rows or columns do.
static __device__ __forceinline__ int clip(long long left, int size) {
    return left < size ? (int)left : size;
}

// Copies the tile at `from`, of which `rows` x `cols` exist, consecutive threads along the shorter stride. Past the
// edge the last row or column comes again: memory that may be read, and it feeds no output that is stored.
template <int ROWS, int COLS>
static __device__ __forceinline__ void fetch(REAL (&tile)[ROWS][COLS + 1], const REAL *from, int rows, int cols,
                                             long long row, long long col) {
    const bool by_rows = magnitude(col) <= magnitude(row);
#pragma unroll
    for (int first = 0; first < ROWS * COLS; first += BM * BN) { // one word a thread when all tiles are equal
        const int i = first + threadIdx.y * BN + threadIdx.x;
        const int r = by_rows ? i / COLS : i % ROWS;
        const int c = by_rows ? i % COLS : i / ROWS;
        if (r < ROWS && c < COLS) tile[r][c] = from[min(r, rows - 1) * row + min(c, cols - 1) * col];
    }
}

extern "C" __global__ void __launch_bounds__(BM *BN)
    gemm_cuda_tile(const REAL *a, const REAL *b, const REAL *c, REAL *out, long long m, long long n, long long k,
                   long long a_row, long long a_col, long long a_batch, long long b_row, long long b_col,
                   long long b_batch, long long c_row, long long c_col, long long c_batch, long long out_row,
                   long long out_col, long long out_batch, REAL alpha, REAL beta) {
    __shared__ REAL a_tile[BM][BK + 1], b_tile[BK][BN + 1];

    const unsigned across = (unsigned)((n + BN - 1) / BN);
    const long long top = (long long)(blockIdx.x / across) * BM, left = (long long)(blockIdx.x % across) * BN;
    const int rows = clip(m - top, BM), cols = clip(n - left, BN);
    const int x = threadIdx.x, y = threadIdx.y;

    a += blockIdx.y * a_batch + top * a_row;
    b += blockIdx.y * b_batch + left * b_col;

    REAL acc = 0;
    for (long long todo = k; todo > 0; todo -= BK) {
        const int steps = clip(todo, BK);
        fetch<BM, BK>(a_tile, a, rows, steps, a_row, a_col);
        fetch<BK, BN>(b_tile, b, steps, cols, b_row, b_col);
        a += BK * a_col;
        b += BK * b_row;
        __syncthreads();
#pragma unroll(sizeof(REAL) == sizeof(float) ? 8 : 2) // more would spill on sm_53: 1024 threads have 32 registers each
        for (int p = 0; p < steps; ++p) acc = fma_rn(a_tile[y][p], b_tile[p][x], acc);
        __syncthreads();
    }

    if (y < rows && x < cols) {
        const long long i = top + y, j = left + x;
        const REAL t = mul_rn(alpha, acc);
        out += blockIdx.y * out_batch + i * out_row + j * out_col;
        *out = c ? fma_rn(beta, c[blockIdx.y * c_batch + i * c_row + j * c_col], t) : t;
    }
}
