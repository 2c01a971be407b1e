/* out = alpha * a * b + beta * c on Adreno GPUs: TM x TN outputs a work-item in registers, each operand from a
 * buffer, through L2, or from an RGBA image, through the texture cache.
 *
 *                          TN columns             A step of BK along K: BK rows of TN from b, TM rows of BK from a,
 *                        +------------+           TM x TN x BK multiply-adds, all loads whole vectors of 4. The
 *                   BK   |     b      |           work-items of a group advance along K together.
 *                        +------------+
 *             BK                                  A_TURNED: a lies as a^T does, k rows of m: a vector is then 4
 *         +--------+     +------------+           rows of a for one k, and BK may be as small as the registers
 *      TM |   a    |     |  TM x TN   |           ask for; neighbours along m read neighbouring vectors.
 *         |        |     |  outputs   |
 *         +--------+     +------------+           Images: texel (x, z * rows + y) is elements 4x .. 4x + 3 of row
 *                                                 y of what lies in memory, a turned one's transpose.
 *
 * Registers decide: the more outputs a work-item, the fewer loads a multiply-add; the fewer registers, the more waves
 * to hide the latency of the others' loads. 24 vectors leave four waves of 128. So everything counts in 32 bits: the
 * host sees to it that operands span less than 2^31 elements.
 * Padded: m, n and k to TM, TN and BK (4 if a is not turned), k with -0.0 in a and +0.0 in b: their product -0.0 is
 * what addition leaves every sum unchanged by, a sum of -0.0 too. `k` is the padded one. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out a work-item, a multiple of 4 if a is turned */
#define TM 8
#endif
#ifndef TN        /* columns of out a work-item, a multiple of 4 */
#define TN 4
#endif
#ifndef BK        /* step along k, a multiple of 4 unless a is turned */
#define BK 4
#endif
#ifndef A_TURNED  /* 1: a lies in memory as its transpose */
#define A_TURNED 0
#endif
#ifndef A_IMAGE   /* 1: a is an image, 0: a buffer */
#define A_IMAGE 0
#endif
#ifndef B_IMAGE
#define B_IMAGE 1
#endif
#ifndef HALF_SUMS /* 1: sums over k in half, twice as fast and less exact */
#define HALF_SUMS 0
#endif
#ifndef WGM       /* preferred work-group: WGN work-items along n, WGM along m */
#define WGM 8
#endif
#ifndef WGN
#define WGN 16
#endif
#define NV (TN / 4)
#if TN % 4 || (A_TURNED ? TM : BK) % 4
#error "vectors of 4"
#endif

#if HALF_SUMS
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define sum4 half4
#define ADD(x, y, sum) ((half4)(x) * (y) + (sum))
#define TO_SUM convert_half4
#define FROM_SUM convert_float4
#define VECTOR(p) vload4(0, p)
#else
#define sum4 accum4
#define ADD(x, y, sum) MAC((accum4)(x), y, sum)
#define TO_SUM
#define FROM_SUM
#define VECTOR(p) LOAD4(p)
#endif

/* Without a sampler: coordinates are integers, and all within the image. Reading a float image may flush denormals;
 * the bits of an integer image may not change, and take the same time: ordered results read those. */
#if ORDERED && PRECISION == 16
float4 widened(ushort4 bits)
{
    return vload_half4(0, (const half *)&bits);
}
#define TEXEL(image, x, y) widened(convert_ushort4(read_imageui(image, (int2)(x, y))))
#elif ORDERED
#define TEXEL(image, x, y) as_float4(read_imageui(image, (int2)(x, y)))
#elif HALF_SUMS
#define TEXEL(image, x, y) read_imageh(image, (int2)(x, y))
#else
#define TEXEL(image, x, y) read_imagef(image, (int2)(x, y))
#endif

/* at, b_now: where a step begins: an element of a buffer, x or y of an image. */
#if A_IMAGE
#define A_OPERAND IMAGE(a)
#define A_VECTOR(u, v) (A_TURNED ? TEXEL(a, a_fixed + (v), at + (u)) : TEXEL(a, at + (v), a_fixed + (u)))
#else
#define A_OPERAND BUFFER(a)
#define A_VECTOR(u, v) VECTOR(a + (at + (u) * a_row + 4 * (v)))
#endif
#if B_IMAGE
#define B_OPERAND IMAGE(b)
#define B_VECTOR(u, v) TEXEL(b, x * NV + (v), b_now + (u))
#else
#define B_OPERAND BUFFER(b)
#define B_VECTOR(u, v) VECTOR(b + (b_now + (u) * b_row + 4 * (v)))
#endif

__attribute__((work_group_size_hint(WGN, WGM, 1)))
kernel void gemm_adreno(A_OPERAND, B_OPERAND, RESULT)
{
    UNPACK
    const int x = get_global_id(0), y = get_global_id(1);
    const int i0 = y * TM, j0 = x * TN;
    if (i0 >= m || j0 >= n) return;

#if A_IMAGE
    const int a_step = A_TURNED ? BK : BK / 4, a_fixed = A_TURNED ? y * (TM / 4) : (int)z * a_rows + i0;
    int at = A_TURNED ? (int)z * a_rows : 0;
#else
    const int a_row = a_at.s1, a_step = A_TURNED ? BK * a_row : BK;
    uint at = (uint)a_at.s0 + (uint)z * (uint)a_at.s3 + (A_TURNED ? i0 : i0 * a_row);
#endif
#if B_IMAGE
    const int b_step = BK;
    int b_now = (int)z * b_rows;
#else
    const int b_row = b_at.s1, b_step = BK * b_row;
    uint b_now = (uint)b_at.s0 + (uint)z * (uint)b_at.s3 + j0;
#endif

    sum4 sum[TM][NV];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int v = 0; v < NV; ++v) sum[i][v] = TO_SUM(START4(z, i0 + i, j0 + 4 * v));
    }

    /* In unsigned numbers, which compilers do not widen; and by `at`, which the loop needs anyway. */
    for (const uint end = at + k / BK * a_step; at != end; at += a_step, b_now += b_step) {
        sum4 row[BK][NV];
#pragma unroll
        for (int u = 0; u < BK; ++u) {
#pragma unroll
            for (int v = 0; v < NV; ++v) row[u][v] = B_VECTOR(u, v);
        }
        /* A vector of a is 4 rows of step u if turned, else steps 4q .. 4q + 3 of row i. */
#define EACH(DO) DO(0, x) DO(1, y) DO(2, z) DO(3, w)
#pragma unroll
        for (int t = 0; t < (A_TURNED ? BK : TM); ++t) {
#pragma unroll
            for (int q = 0; q < (A_TURNED ? TM : BK) / 4; ++q) {
                const sum4 column = A_VECTOR(t, q);
#pragma unroll
                for (int v = 0; v < NV; ++v) {
#if A_TURNED
#define STEP(e, s) sum[4 * q + e][v] = ADD(column.s, row[t][v], sum[4 * q + e][v]);
#else
#define STEP(e, s) sum[t][v] = ADD(column.s, row[4 * q + e][v], sum[t][v]);
#endif
                    EACH(STEP)
                }
            }
        }
    }

#if PIECES
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int v = 0; v < NV; ++v) {
            FINISH4(FROM_SUM(sum[i][v]), z, i0 + i, j0 + 4 * v)
        }
    }
#else
    /* As FINISH4, but along pointers that walk, and in a loop at the edges: compilers work out the addresses of all
     * TM x TN elements together otherwise, in so many registers that half of the waves have no room. */
    const int vectors = out_at.s2 == 1 && (beta == 0 || c_at.s2 == 1);
    global result *to = AT(out, z, i0, j0);
    global const result *from = AT(c, z, i0, j0);
#pragma unroll
    for (int i = 0; i < TM; ++i, to += out_at.s1, from += c_at.s1) {
        const int left = i0 + i < m ? n - j0 : 0;
#pragma unroll
        for (int v = 0; v < NV; ++v) {
            const sum4 four = sum[i][v];
            if (vectors && 4 * v + 4 <= left) {
                PUT4(EPILOGUE(accum4, FROM_SUM(four), GET4(from + 4 * v)), to + 4 * v);
            } else if (4 * v < left) {
                global result *put = to + 4 * v * out_at.s2;
                global const result *get = from + 4 * v * c_at.s2;
#pragma unroll 1
                for (int e = 0; e < min(4, left - 4 * v); ++e, put += out_at.s2, get += c_at.s2) {
                    const accum one = e == 0 ? four.s0 : e == 1 ? four.s1 : e == 2 ? four.s2 : four.s3;
                    PUT(EPILOGUE(accum, one, GET(get)), put);
                }
            }
        }
    }
#endif
}
