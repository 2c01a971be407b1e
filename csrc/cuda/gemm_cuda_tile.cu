// gemm_cuda_tile: out = alpha * a * b + beta * c with one output per thread and tiles of a and b in shared memory.
//
//                        n
//                  +------+----+---     A block computes BM x BN outputs, one per thread. It steps along k by BK: its
//                k | b    |BKxBN        threads load one tile of a and one of b, synchronize, multiply from shared
//                  |      |    |        memory, and synchronize again before the next load.
//          k       +------+----+---
//      +-------+   +------+----+---     threadIdx.x runs along n. A warp computes 32 outputs of one row: it reads one
//    m | a     |   |      |    |        word of the a tile (a broadcast) and 32 adjacent words of the b tile (no bank
//      +-------+   +------+----+---     conflict), and it stores 32 adjacent outputs.
//      | BM x BK   |      |BMxBN
//
// Source: a 32x32 tile kernel for the Jetson Nano (Maxwell, sm_53), row-major fp32. The published kernel is wrong if k
// is not a multiple of 32: its guards skip the loads but not the products, so the last step multiplies with data that
// the previous step left in shared memory. This kernel stops at k. It adds strides, batches, alpha and beta. It loads a
// tile along the axis that is contiguous in memory. Rows in shared memory are one word longer than the tile, so storing
// the tile by columns (column-major operands) has no bank conflicts either.
//
// The kernel is ORDERED: acc = fma(a[i,p], b[p,j], acc) for p = 0 .. k-1, starting at +0; then t = alpha * acc; then
// fma(beta, c, t). Each step is rounded separately, and subnormals are not flushed. The code uses intrinsics, which
// compiler flags cannot contract or split. Narrow floats are converted when they are stored to shared memory, once for
// 32 products.
//
// Grid: x counts the tiles of one product (x may have 2^31 - 1 blocks, y and z only 65535); y counts the batch. Block:
// BM * BN threads. Strides may have any values. k is never split.

#ifndef BM
#define BM 32 // rows of out per block
#endif
#ifndef BN
#define BN 32 // columns of out per block; the block has BM * BN threads
#endif
#ifndef BK
#define BK 32 // elements of k between two barriers
#endif

#include "gemm.cuh"

INLINE long long magnitude(long long stride) {
    return stride < 0 ? -stride : stride;
}

// Returns the number of rows or columns of a tile that exist, if `left` of them remain in the matrix.
INLINE int clip(long long left, int size) {
    return left < size ? (int)left : size;
}

// Copies the tile at `from` to shared memory. Of the tile, `rows` x `cols` elements exist. Consecutive threads read
// along the shorter stride. Beyond the edge the copy repeats the last row or column: that memory is readable, and the
// values affect no output that is stored.
template <int ROWS, int COLS, class T>
INLINE void fetch(SUM (&tile)[ROWS][COLS + 1], const T *from, int rows, int cols, long long row, long long col) {
    const bool by_rows = magnitude(col) <= magnitude(row);
#pragma unroll
    for (int first = 0; first < ROWS * COLS; first += BM * BN) { // one iteration if BM, BN and BK are equal
        const int i = first + threadIdx.x;
        const int r = by_rows ? i / COLS : i % ROWS;
        const int c = by_rows ? i % COLS : i / ROWS;
        if (r < ROWS && c < COLS) tile[r][c] = (SUM)widen(from[min(r, rows - 1) * row + min(c, cols - 1) * col]);
    }
}

extern "C" __global__ void __launch_bounds__(BM *BN) gemm_cuda_tile(ARGUMENT Gemm g) {
    __shared__ SUM a_tile[BM][BK + 1], b_tile[BK][BN + 1];

    follow_launch();
    const Tile tile = tile_of<BM, BN>(g, blockIdx.x);
    const int rows = clip(g.m - tile.top, BM), cols = clip(g.n - tile.left, BN);
    const int x = threadIdx.x % BN, y = threadIdx.x / BN;
    const A_TYPE *a = g.a + blockIdx.y * g.a_batch + tile.top * g.a_row;
    const B_TYPE *b = g.b + blockIdx.y * g.b_batch + tile.left * g.b_col;

    SUM acc[1] = {};
    for (long long todo = g.k; todo > 0; todo -= BK) {
        const int steps = clip(todo, BK);
        fetch<BM, BK>(a_tile, a, rows, steps, g.a_row, g.a_col);
        fetch<BK, BN>(b_tile, b, steps, cols, g.b_row, g.b_col);
        a += BK * g.a_col;
        b += BK * g.b_row;
        __syncthreads();
// Unrolling more would spill on sm_53, where 1024 threads have 32 registers each.
#pragma unroll(sizeof(SUM) == 4 ? 8 : 2)
        for (int p = 0; p < steps; ++p) acc[0] = multiply_add(a_tile[y][p], b_tile[p][x], acc[0]);
        __syncthreads();
    }
    Output<1>(g, blockIdx.y).put(tile.top + y, tile.left + x, acc);
}
