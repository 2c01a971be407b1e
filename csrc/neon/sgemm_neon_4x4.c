/* The 4 x 4 tile in float. The loop is unrolled by four steps of k, which load four vectors of a and four of b and
 * execute sixteen FMAs by lane. A panel stores a by columns, so a vector of a holds one step of k of four rows: lane i
 * belongs to row i of C. Each accumulator adds its terms in the order of k. */
#include "neon.h"
#include "floats.h"

#define RANK1(a, b, p)                                 \
    {                                                  \
        const float32x4_t av = vld1q_f32(a + 4 * (p)); \
        const float32x4_t bv = vld1q_f32(b + 4 * (p)); \
        acc[0] = vfmaq_laneq_f32(acc[0], bv, av, 0);   \
        acc[1] = vfmaq_laneq_f32(acc[1], bv, av, 1);   \
        acc[2] = vfmaq_laneq_f32(acc[2], bv, av, 2);   \
        acc[3] = vfmaq_laneq_f32(acc[3], bv, av, 3);   \
    }
#define K_LOOP(rows, nv, acc, k, a, b)                                                                       \
    int64_t p = k;                                                                                           \
    for (; p >= 4; p -= 4, a += 16, b += 16) { RANK1(a, b, 0) RANK1(a, b, 1) RANK1(a, b, 2) RANK1(a, b, 3) } \
    for (; p > 0; p--, a += 4, b += 4) RANK1(a, b, 0)

#define KERNEL sgemm_neon_4x4
#define NAME sgemm
#define MR 4
#define NV 1
#define ACCUMULATORS 4
#define TALLEST 4
#define TILES(X) X(1)
#include "tile.h"
