/* out = alpha * a * b + beta * c on Intel GPUs: a and b go through the L3 cache, and the lanes of a sub-group share a's
 * elements by shuffles. TM x TN outputs per work-item, GH x SG work-items per work-group; each row of SG work-items
 * (lanes) is a sub-group. Each iteration of the loop multiplies SG * KV elements of k, from k = p0 on:
 *
 *                     lane 0    lane 1  ...             Lane l loads KV adjacent elements of each of TM rows of a, from
 *                    +---------+---------+              k = p0 + l * KV on. A shuffle gives one lane's element to all
 *    b:   SG KV k    | TN cols | TN cols |              lanes at no cost, because the compiler makes it a register
 *                    +---------+---------+              region of a mad operand. A lane's TN columns of b (one row)
 *                                                       are one vector.
 *    a:   SG KV k    +---------+---------+ out          BARRIER 1: the work-group synchronizes after each iteration, so
 *       +--------+   | TM x TN | TM x TN |              that its sub-groups read the same lines of b at the same time.
 *       |TM rows |   | outputs | outputs |
 *       +--------+   +---------+---------+
 *
 * a and b are row-major, padded buffers: a is padded to a multiple of TM * GH rows, b to a multiple of SG * TN columns,
 * and both along K to a multiple of SG * KV; `k` is that padded length. (This algorithm was published for column-major
 * matrices, for which the kernel computes b' a' = (a b)'.) Along K, a is padded with -0.0 and b with +0.0: adding
 * their product, -0.0, changes no sum, not even -0.0. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out per work-item */
#define TM 8
#endif
#ifndef TN        /* columns of out per work-item: 2 or 4 */
#define TN 4
#endif
#ifndef SG        /* work-items per sub-group, and per work-group along n */
#define SG 8
#endif
#ifndef GH        /* work-items per work-group along m */
#define GH 8
#endif
#ifndef KV        /* elements along k that a lane loads at a time: 1, 2 or 4, limited by the registers */
#define KV 4
#endif
#ifndef BARRIER
#define BARRIER 0
#endif
#ifndef HALF_SUMS /* 1: sums over k in half, requires PRECISION 16; twice as fast and less accurate */
#define HALF_SUMS 0
#endif

/* num: the type of products and sums. NUMS(n, p): loads n adjacent elements at p, which is aligned to n elements. */
#if HALF_SUMS
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define num half
#define NUM_MAC(x, y, sum) ((x) * (y) + (sum))
#define NUMS(n, p) (*(global const JOIN(half, n) *)(p))
#else
#define num accum
#define NUM_MAC(x, y, sum) MAC(x, y, sum)
#define NUMS(n, p) JOIN(LOAD, n)(p)
#endif

#if KV == 1
#define run num
#define RUN(p) NUMS(, p)
#define ELEMENT(x, e) (x)
#elif KV == 2
#define run JOIN(num, 2)
#define RUN(p) NUMS(2, p)
#define ELEMENT(x, e) ((e) == 0 ? (x).s0 : (x).s1)
#elif KV == 4
#define run JOIN(num, 4)
#define RUN(p) NUMS(4, p)
#define ELEMENT(x, e) ((e) == 0 ? (x).s0 : (e) == 1 ? (x).s1 : (e) == 2 ? (x).s2 : (x).s3)
#else
#error "KV must be 1, 2 or 4"
#endif
#if TN == 2
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1)
#elif TN == 4
#define EACH_COLUMN(DO, r) DO(r, 0) DO(r, 1) DO(r, 2) DO(r, 3)
#else
#error "TN must be 2 or 4"
#endif
#define vec JOIN(num, TN)
#define COLUMNS(p) NUMS(TN, p)
#define STEP (SG * KV)
#define TO_ALL(x, p) ((vec)(intel_sub_group_shuffle(ELEMENT(x, (p) % KV), (p) / KV)))

/* The address of row r. `from` is the address of row 0 in this iteration: the pointer a or b plus a 64-bit offset.
 * `row` is the distance between rows in bytes. r * row is a 32-bit number. Therefore each load needs only one addition,
 * on every generation of the GPUs. */
#define ROW(from, r, row) ((global const real *)((from) + (r) * (row)))

__attribute__((reqd_work_group_size(SG, GH, 1)))
__attribute__((intel_reqd_sub_group_size(SG)))
kernel void gemm_intel_L3_SIMD(BUFFER(a), BUFFER(b), RESULT)
{
    UNPACK
    const int lane = get_sub_group_local_id();
    const int left = get_group_id(0) * SG * TN;
    int i0 = get_global_id(1) * TM, j0 = left + lane * TN;
    a = AT(a, z, i0, 0);
    b = AT(b, z, 0, left);
    const int size_of = sizeof(real), a_row = size_of * (int)a_at.s1, b_row = size_of * (int)b_at.s1;

    vec sum[TM];
#define BEGIN(r, e) sum[r].s##e = (num)START(z, i0 + r, j0 + e);
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(BEGIN, r)
    }

    ulong a_pos = size_of * KV * lane, b_pos = size_of * TN * lane;
    int p0 = 0;
    for (; p0 < k; p0 += STEP, a_pos += size_of * STEP, b_pos += STEP * (long)b_row) {
        global const char *a_from = (global const char *)a + a_pos, *b_from = (global const char *)b + b_pos;
        /* The operand (a or b) that takes fewer registers stays in registers for the whole iteration. */
#if TM < SG * TN
        run mine[TM];
#pragma unroll
        for (int r = 0; r < TM; ++r) mine[r] = RUN(ROW(a_from, r, a_row));
#pragma unroll
        for (int p = 0; p < STEP; ++p) {
            const vec columns = COLUMNS(ROW(b_from, p, b_row));
#pragma unroll
            for (int r = 0; r < TM; ++r) sum[r] = NUM_MAC(TO_ALL(mine[r], p), columns, sum[r]);
        }
#else
        vec columns[STEP];
#pragma unroll
        for (int p = 0; p < STEP; ++p) columns[p] = COLUMNS(ROW(b_from, p, b_row));
#pragma unroll
        for (int r = 0; r < TM; ++r) {
            const run mine = RUN(ROW(a_from, r, a_row));
#pragma unroll
            for (int p = 0; p < STEP; ++p) sum[r] = NUM_MAC(TO_ALL(mine, p), columns[p], sum[r]);
        }
#endif
#if BARRIER
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }

    /* p0 is k here, so the next line adds 0. The compiler does not know this. If it did, it would compute the final
     * addresses before the loop and keep them in registers. */
    i0 += p0 - k, j0 += p0 - k;
#define STORE(r, e) FINISH((accum)sum[r].s##e, z, i0 + r, j0 + e)
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        EACH_COLUMN(STORE, r)
    }
}
