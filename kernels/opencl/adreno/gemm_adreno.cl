/* out = alpha * a * b + beta * c on Adreno GPUs: TM x TN outputs per work-item in registers. Each operand is a buffer,
 * read through L2, or an RGBA image, read through the texture cache.
 *
 *                          TN columns             A step along K reads BK rows of TN elements of b and TM rows of BK
 *                        +------------+           elements of a, all as vectors of 4, and does TM x TN x BK
 *                   BK   |     b      |           multiply-adds. The work-items of a group advance along K together.
 *                        +------------+
 *             BK                                  A_TURNED: memory has a^T, k rows of m elements. A vector then has
 *         +--------+     +------------+           4 rows of a at one k, and BK may be less than 4, to save registers.
 *      TM |   a    |     |  TM x TN   |           Adjacent work-items along m read adjacent vectors.
 *         |        |     |  outputs   |
 *         +--------+     +------------+           Images: texel (x, z * rows + y) has elements 4x .. 4x + 3 of row y
 *                                                 of matrix z as memory stores it: a row of a^T if
 *                                                 A_TURNED, else a row of the operand.
 *
 * The number of registers determines the speed. With more outputs, a work-item needs more registers but fewer loads per
 * multiply-add. With fewer registers, more waves hide the latency of each other's loads: with 24 vector registers per
 * work-item, four waves of 128 work-items fit. To save registers, all indices are 32-bit numbers; the host ensures that
 * operands span fewer than 2^31 elements.
 *
 * m, n and k are padded to multiples of TM, TN and BK; `k` is the padded size. Along k, a is padded with -0.0 and b
 * with +0.0: adding their product, -0.0, changes no sum, not even -0.0. out and c are not padded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out per work-item, a multiple of 4 if A_TURNED */
#define TM 8
#endif
#ifndef TN        /* columns of out per work-item, a multiple of 4 */
#define TN 4
#endif
#ifndef BK        /* step along k, a multiple of 4 unless A_TURNED */
#define BK 4
#endif
#ifndef A_TURNED  /* 1: memory has the transpose of a */
#define A_TURNED 0
#endif
#ifndef A_IMAGE   /* 1: a is an image, 0: a buffer */
#define A_IMAGE 0
#endif
#ifndef B_IMAGE
#define B_IMAGE 1
#endif
#ifndef HALF_SUMS /* 1: sums over k in half; twice as fast and less accurate */
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

/* Images are read without a sampler: coordinates are integers and always within the image. Reading a float image may
 * flush subnormals. Reading an integer image preserves the bits and takes the same time, so ORDERED results use integer
 * images. */
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

/* at (in a) and b_now (in b): the start of a step, as an element index of a buffer or as the x or y of an image. */
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

    /* Element indices are unsigned, because compilers do not widen unsigned numbers to 64 bits. The loop needs no
     * counter: it tests `at`, which the loads need anyway. */
    for (const uint end = at + k / BK * a_step; at != end; at += a_step, b_now += b_step) {
        sum4 row[BK][NV];
#pragma unroll
        for (int u = 0; u < BK; ++u) {
#pragma unroll
            for (int v = 0; v < NV; ++v) row[u][v] = B_VECTOR(u, v);
        }
        /* A_VECTOR(t, q) has rows 4q .. 4q + 3 of a at step t if A_TURNED, else steps 4q .. 4q + 3 of row t. */
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
    /* The same as FINISH4, but with pointers that advance row by row, and with a loop at the edges. Otherwise the
     * compiler computes the addresses of all TM x TN elements at once, which takes so many registers that only half of
     * the waves fit. */
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
