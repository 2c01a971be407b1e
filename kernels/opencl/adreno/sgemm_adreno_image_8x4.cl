/* out = alpha * a * b + beta * c on GPUs with a texture cache: b an image, a a buffer, 8 x 4 outputs a
 * work-item, so that two caches feed the ALUs at once.
 *
 *                      x = get_global_id(0)        b: RGBA image, a texel is 4 columns of a row:
 *                      TN = 4                        texel (x, z * b_rows + p) = b[z][p][4x .. 4x+3]
 *                    +--------+                      through the texture pipe and its L1.
 *              pos.. | b0..b3 | 4 texels a step    a: buffer, row-major, a_row elements a row,
 *                    +--------+                      a[z * a_batch + i * a_row + p], through L2.
 *         pos..                                    out, c: buffers, element (z, i, j) at
 *        +------+    +--------+                      offset + z * batch + i * row + j * col.
 * TM = 8 | 8 x  |    | 8 x 4  |
 *        | vec4 |    |  out   |                    A step: 4 texels of b, 8 vec4 of a, 32 float4 lanes
 *        +------+    +--------+                    of multiply-add; all work-items of a group (WGN x WGM
 *                                                  of these tiles) advance along K together.
 *
 * Padded: a's rows to TM, a and b along K to 4, b's columns to 4; `k` here is the padded one. a is padded
 * with -0.0 and b with +0.0 along K: their product -0.0 is what addition leaves every sum unchanged by,
 * a sum of -0.0 too. out and c are not padded: stores are guarded.
 */

#include "gemm.clh"

#ifndef TM        /* rows of out a work-item */
#define TM 8
#endif
#ifndef TN        /* columns of out a work-item: one texel */
#define TN 4
#endif
#ifndef WGM       /* preferred work-group: WGN work-items along n, WGM along m */
#define WGM 8
#endif
#ifndef WGN
#define WGN 8
#endif
#if TM != 8 || TN != 4
#error "the host pads for TM = 8 and TN = 4"
#endif

/* Reading a float image may flush denormals (OpenCL C, image conversions); the bits of an integer image
   may not change. Same texel size, same speed: ordered results read b as integers. */
#if ORDERED
#define TEXEL(x, y) as_float4(read_imageui(b, exact, (int2)(x, y)))
#else
#define TEXEL(x, y) read_imagef(b, exact, (int2)(x, y))
#endif
constant sampler_t exact = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;

__attribute__((work_group_size_hint(WGN, WGM, 1)))
kernel void sgemm_adreno_image_8x4(BUFFER(a), IMAGE(b), RESULT)
{
    UNPACK
    const int x = get_global_id(0), i0 = get_global_id(1) * TM, j0 = x * TN;
    if (i0 >= m || j0 >= n) return;
    a = AT(a, z, i0, 0);
    const int a_row = a_at.s1;

    float4 sum[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) sum[i] = START4(z, i0 + i, j0);

    for (int pos = 0, y = z * b_rows; pos < k; pos += 4, y += 4) {
        const float4 b0 = TEXEL(x, y), b1 = TEXEL(x, y + 1), b2 = TEXEL(x, y + 2), b3 = TEXEL(x, y + 3);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float4 ai = vload4(0, a + i * a_row + pos);
            sum[i] = MAC((float4)(ai.x), b0, sum[i]);
            sum[i] = MAC((float4)(ai.y), b1, sum[i]);
            sum[i] = MAC((float4)(ai.z), b2, sum[i]);
            sum[i] = MAC((float4)(ai.w), b3, sum[i]);
        }
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        FINISH4(sum[i], z, i0 + i, j0)
    }
}
