/* 8 rows x 3 vectors of floats: 24 accumulators, 3 vectors of b, 2 of a (a lane per row): 29 of 32 registers. A step of
 * k is 24 FMAs and five loads. Four FMAs per cycle with a latency of 4 cycles (Neoverse V1, Apple's CPUs) need 16
 * independent chains; this tile has 24. Unpacked operands and tiles of other shapes (6 x 16, 12 x 8, 4 x 24, ...) use
 * tile.h's own loop. No include guard: tile.h undefines the parameters. */
#define ROW(r, av, lane)                                                \
    acc[3 * (r)] = vfmaq_laneq_f32(acc[3 * (r)], b0, av, lane);         \
    acc[3 * (r) + 1] = vfmaq_laneq_f32(acc[3 * (r) + 1], b1, av, lane); \
    acc[3 * (r) + 2] = vfmaq_laneq_f32(acc[3 * (r) + 2], b2, av, lane);
#define K_LOOP(rows, nv, acc, k, a, b)                                                                    \
    for (int64_t p = k; p > 0; p--, a += 8, b += 12) {                                                    \
        const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + 4);                                       \
        const float32x4_t b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4), b2 = vld1q_f32(b + 8);                \
        ROW(0, a0, 0)                                                                                     \
        ROW(1, a0, 1) ROW(2, a0, 2) ROW(3, a0, 3) ROW(4, a1, 0) ROW(5, a1, 1) ROW(6, a1, 2) ROW(7, a1, 3) \
    }
#define MR 8
#define NV 3
#define ACCUMULATORS 24
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4) X(5) X(6)
