/* The 4 x 4 tile in double. A row of four columns is two float64x2, so each step of k is eight FMAs by lane. The loop
 * is unrolled by four steps of k. Each accumulator adds its terms in the order of k. */
#include "neon.h"
#include "doubles.h"

#define ROW(r, av, lane)                                        \
    acc[2 * (r)] = vfmaq_laneq_f64(acc[2 * (r)], b0, av, lane); \
    acc[2 * (r) + 1] = vfmaq_laneq_f64(acc[2 * (r) + 1], b1, av, lane);
#define RANK1(a, b, p)                                                                  \
    {                                                                                   \
        const float64x2_t a0 = vld1q_f64(a + 4 * (p)), a1 = vld1q_f64(a + 4 * (p) + 2); \
        const float64x2_t b0 = vld1q_f64(b + 4 * (p)), b1 = vld1q_f64(b + 4 * (p) + 2); \
        ROW(0, a0, 0) ROW(1, a0, 1) ROW(2, a1, 0) ROW(3, a1, 1)                         \
    }
#define K_LOOP(rows, nv, acc, k, a, b)                                                                       \
    int64_t p = k;                                                                                           \
    for (; p >= 4; p -= 4, a += 16, b += 16) { RANK1(a, b, 0) RANK1(a, b, 1) RANK1(a, b, 2) RANK1(a, b, 3) } \
    for (; p > 0; p--, a += 4, b += 4) RANK1(a, b, 0)

#define KERNEL dgemm_neon_4x4
#define NAME dgemm
#define MR 4
#define NV 2
#define ACCUMULATORS 8
#define TALLEST 4
#define TILES(X) X(1) X(2)
#include "tile.h"
