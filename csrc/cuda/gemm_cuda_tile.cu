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
// Narrow floats are widened on the way into shared memory, once for the 32 products that they take part in.
//
// Grid: x over the tiles of one product (x may count 2^31 - 1 blocks, y and z only 65535); y over the batch.
// Block: BM * BN threads. Any strides. k is never cut.

#ifndef BM
#define BM 32 // rows of C a block
#endif
#ifndef BN
#define BN 32 // columns of C a block; BM * BN threads
#endif
#ifndef BK
#define BK 32 // steps along k between two barriers
#endif

#include "gemm.cuh"

INLINE long long magnitude(long long stride) {
    return stride < 0 ? -stride : stride;
}

// How much of a tile of `size` exists when `left` rows or columns do.
INLINE int clip(long long left, int size) {
    return left < size ? (int)left : size;
}

// Copies the tile at `from`, of which `rows` x `cols` exist, consecutive threads along the shorter stride. Past the
// edge the last row or column comes again: memory that may be read, and it feeds no output that is stored.
template <int ROWS, int COLS, class T>
INLINE void fetch(SUM (&tile)[ROWS][COLS + 1], const T *from, int rows, int cols, long long row, long long col) {
    const bool by_rows = magnitude(col) <= magnitude(row);
#pragma unroll
    for (int first = 0; first < ROWS * COLS; first += BM * BN) { // one word a thread when all tiles are equal
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
#pragma unroll(sizeof(SUM) == 4 ? 8 : 2) // more would spill on sm_53: 1024 threads have 32 registers each
        for (int p = 0; p < steps; ++p) acc[0] = multiply_add(a_tile[y][p], b_tile[p][x], acc[0]);
        __syncthreads();
    }
    Output<1>(g, blockIdx.y).put(tile.top + y, tile.left + x, acc);
}
