/* 6 rows x 4 vectors of doubles: 24 accumulators, 4 vectors of b, 3 of a (a lane per row): 31 of 32 registers. */
#include "neon.h"
#include "doubles.h"

#define ROW(r, av, lane)                                                \
    acc[4 * (r)] = vfmaq_laneq_f64(acc[4 * (r)], b0, av, lane);         \
    acc[4 * (r) + 1] = vfmaq_laneq_f64(acc[4 * (r) + 1], b1, av, lane); \
    acc[4 * (r) + 2] = vfmaq_laneq_f64(acc[4 * (r) + 2], b2, av, lane); \
    acc[4 * (r) + 3] = vfmaq_laneq_f64(acc[4 * (r) + 3], b3, av, lane);
#define K_LOOP(rows, nv, acc, k, a, b)                                                     \
    for (int64_t p = k; p > 0; p--, a += 6, b += 8) {                                      \
        const float64x2_t a0 = vld1q_f64(a), a1 = vld1q_f64(a + 2), a2 = vld1q_f64(a + 4); \
        const float64x2_t b0 = vld1q_f64(b), b1 = vld1q_f64(b + 2);                        \
        const float64x2_t b2 = vld1q_f64(b + 4), b3 = vld1q_f64(b + 6);                    \
        ROW(0, a0, 0)                                                                      \
        ROW(1, a0, 1) ROW(2, a1, 0) ROW(3, a1, 1) ROW(4, a2, 0) ROW(5, a2, 1)              \
    }

#define KERNEL dgemm_neon_6x8
#define NAME dgemm
#define MR 6
#define NV 4
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define STREAM
#include "tile.h"
