/* out = alpha * a * b + beta * c for few columns of b: one pass over a, at the speed of memory.
 *
 *                         LANES work-items            A work-group has TEAMS lane groups of LANES work-items. A lane
 *                        +--+--+--+--+--+   +--+      group computes TM rows of out. Its work-items read adjacent
 *     TM rows of a       |  |  |  |  |  |...|  |      vectors of a row, so that each row is one stream of memory.
 *                        +--+--+--+--+--+   +--+      Each work-item sums its own part of k for TM x BN outputs; at
 *                               k  ->                 the end these sums are added in the order of the work-items.
 *
 * All lane groups share BK x BN elements of b in local memory, transposed. With ORDERED, the work-items load a in the
 * same way, but share it in local memory, and work-item j of a lane group sums column j alone.
 *
 * a must have unit stride along k; it is read in vectors if its rows start at multiples of 4 elements. b may have any
 * strides. Nothing is padded.
 */

#include "gemm.clh"

#ifndef BM        /* rows of out per work-group */
#define BM 8
#endif
#ifndef BN        /* columns of out per work-group: all, or as many as registers can hold; at most LANES */
#define BN 1
#endif
#ifndef BK        /* rows of b in local memory, a multiple of 4 * LANES */
#define BK 512
#endif
#ifndef TM        /* rows of out per lane group */
#define TM 2
#endif
#ifndef LANES     /* work-items per lane group */
#define LANES 32
#endif
#define TEAMS (BM / TM)
#define ITEMS (TEAMS * LANES)
#define STEP (4 * LANES) /* elements of a row that a lane group reads at once */
/* Distance of b's columns in local memory; the 4 additional elements avoid bank conflicts of the transposed stores. */
#define PITCH (BK + 4)
#define OF_B (BN * PITCH)
#define OF_SUMS (TEAMS * BN * (LANES + 1))

__attribute__((reqd_work_group_size(LANES, TEAMS, 1)))
kernel void gemm_generic_dot(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    local accum b_tile[OF_B > OF_SUMS ? OF_B : OF_SUMS] __attribute__((aligned(32)));

    const int lane = get_local_id(0), team = get_local_id(1), id = team * LANES + lane;
    const int i0 = (get_group_id(1) * TEAMS + team) * TM, j0 = get_group_id(0) * BN;
    const int aligned = !((a_at.s0 | a_at.s1 | a_at.s3) & 3), turned = b_at.s1 == 1;
    global const real *line[TM];
#pragma unroll
    /* Instead of rows beyond the last row of a, the kernel reads the last row again. It does not store these sums. */
    for (int r = 0; r < TM; ++r) line[r] = AT(a, z, min(i0 + r, m - 1), k0);
    b = AT(b, z, k0, j0);

#if ORDERED
    local accum parts_of_a[TEAMS][STEP] __attribute__((aligned(32)));
    accum sum[TM];
#pragma unroll
    for (int r = 0; r < TM; ++r) sum[r] = lane < BN ? START(z, i0 + r, j0 + lane) : (accum)0;
#define SUM(r, row)                                                                                     \
    *(local accum4 *)&parts_of_a[team][4 * lane] = row;                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                       \
    if (lane < BN)                                                                                      \
        for (int e = 0; e < min(STEP, depth - s); ++e)                                                  \
            sum[r] = MAC(parts_of_a[team][e], b_tile[lane * PITCH + s + e], sum[r]);                             \
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    accum sum[TM][BN];
#pragma unroll
    for (int r = 0; r < TM; ++r) {
#pragma unroll
        for (int j = 0; j < BN; ++j) sum[r][j] = 0;
    }
#define SUM(r, row)                                                                                     \
    _Pragma("unroll") for (int j = 0; j < BN; ++j) {                                                    \
        const accum4 col = *(local const accum4 *)&b_tile[j * PITCH + s + 4 * lane];                    \
        sum[r][j] = MAC(row.s0, col.s0, sum[r][j]);                                                     \
        sum[r][j] = MAC(row.s1, col.s1, sum[r][j]);                                                     \
        sum[r][j] = MAC(row.s2, col.s2, sum[r][j]);                                                     \
        sum[r][j] = MAC(row.s3, col.s3, sum[r][j]);                                                     \
    }
#endif
/* Multiplies STEP columns, from s on, of a lane group's rows of a. `bring` is an expression that loads a work-item's
 * vector of row r. All work-items use the same s and the same `bring`. */
#define TAKE(bring)                                                                                     \
    {                                                                                                   \
        accum4 row[TM];                                                                                 \
        _Pragma("unroll") for (int r = 0; r < TM; ++r) row[r] = bring;                                  \
        _Pragma("unroll") for (int r = 0; r < TM; ++r) {                                                \
            SUM(r, row[r])                                                                              \
        }                                                                                               \
    }

    for (int p0 = 0; p0 < k; p0 += BK) {
        const int depth = min(BK, k - p0), filled = (depth + STEP - 1) / STEP * STEP;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint t = id; t < BN * (turned ? BK : filled); t += ITEMS) {
            const int j = turned ? t / BK : t % BN, p = turned ? t % BK : t / BN;
            b_tile[j * PITCH + p] = j0 + j < n && p < depth ? LOAD(b + (p0 + p) * b_at.s1 + j * b_at.s2) : (accum)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (aligned && depth == BK) {
#pragma unroll
            for (int s = 0; s < BK; s += STEP) TAKE(LOAD4(line[r] + p0 + s + 4 * lane))
        } else {
            for (int s = 0; s < depth; s += STEP)
                TAKE(four(line[r] + p0 + s + 4 * lane, 1, depth - s - 4 * lane, (accum)0))
        }
    }

#if ORDERED
    if (lane < BN) {
#pragma unroll
        for (int r = 0; r < TM; ++r) {
            FINISH(sum[r], z, i0 + r, j0 + lane)
        }
    }
#else
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
        for (int j = 0; j < BN; ++j) b_tile[(team * BN + j) * (LANES + 1) + lane] = sum[r][j];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint t = id; t < TEAMS * BN; t += ITEMS) {
            const int i = (get_group_id(1) * TEAMS + t / BN) * TM + r, j = j0 + t % BN;
            accum total = START(z, i, j);
            for (int l = 0; l < LANES; ++l) total += b_tile[t * (LANES + 1) + l];
            FINISH(total, z, i, j)
        }
    }
#endif
}
